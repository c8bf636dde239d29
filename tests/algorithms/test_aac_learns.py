"""Actor-attention-critic learns small games whose best return is known, from near random."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marlogue.algorithms import AACConfig, AACTrainer
from tests.support.games import CUES, Cues, Idler, Leavers, Memory, Targets


def config(**changes) -> AACConfig:
    small = {
        "total_steps": 1_000,
        "num_envs": 5,
        "learning_starts": 200,
        "train_interval": 5,
        "batch_size": 64,
        "hidden_size": 32,
        "num_heads": 2,
        "actor_hidden_sizes": (32,),
        "agent_learning_rate": 5e-3,
        "eval_interval": 0,
        "eval_episodes": 40,
        "id_embedding": 2,
        "device": "cpu",
        "verbose": False,
    }
    return AACConfig(**{**small, **changes})


def returns(trainer) -> float:
    return trainer.evaluate()["eval/team/return_mean"]


def learnt(env, *, guidance=None, **changes) -> tuple[float, float, AACTrainer]:
    """Mean returns before and after, per agent."""
    trainer = AACTrainer(args=config(**changes), env=env, guidance=guidance)
    count = trainer.team.num_agents
    before = returns(trainer) / count
    trainer.train()
    return before, returns(trainer) / count, trainer


@pytest.mark.parametrize("gradient", ["expected", "counterfactual", "shared_value"])
def test_discrete_gradients(gradient):
    before, after, _ = learnt(Cues, actor_gradient=gradient)
    assert before < 0.6  # 1/3 by chance
    assert after > (0.75 if gradient == "shared_value" else 0.95)


@pytest.mark.parametrize(
    ("deterministic", "sharing"), [(False, "own"), (False, "mean"), (True, "mean")]
)
def test_continuous_actions(deterministic, sharing):
    before, after, _ = learnt(
        Targets,
        deterministic=deterministic,
        reward_sharing=sharing,
        noise=0.3,
        temperature=0.003,
        agent_learning_rate=1e-3,
        critic_learning_rate=5e-3,
        total_steps=2_000,
    )
    assert before < -0.05
    assert after > -0.02


@pytest.mark.parametrize(
    "changes",
    [
        {"critic_architecture": "mean", "learn_temperature": True, "temperature": 0.1},
        {"critic_architecture": "concat", "replay": "prioritized", "n_step": 2},
        {"attention": "linear", "attention_entropy_coef": 0.01, "layer_norm": True},
        {"attention": "local", "attention_graph": [[1], [2], [0]], "num_queries": 2},
        {"consistency_coef": 0.5, "local_value_coef": 0.5, "team_head": "monotonic"},
        {"normalize_observations": True, "epsilon": {"start": 0.5, "end": 0.0}},
        {"sharing": "none", "id_embedding": 0, "huber": 1.0, "policy_delay": 2},
        {"reward_sharing": "mean", "lr_scheduler_type": "linear", "warmup_steps": 300},
    ],
    ids=lambda changes: "-".join(map(str, changes)),
)
def test_options(changes):
    _, after, _ = learnt(Cues, **changes)
    assert after > 0.9


def test_only_actors_that_remember_solve_a_memory_task():
    changes = {
        "total_steps": 3_000,
        "train_interval": 10,
        "agent_learning_rate": 1e-3,
        "critic_learning_rate": 5e-3,
    }
    _, without, _ = learnt(Memory, **changes)
    _, after, _ = learnt(Memory, actor_trunk="gru", sequence_length=4, burn_in=0, **changes)
    assert without < 0.7  # 1/2 by chance
    assert after > 0.9


def test_an_agent_that_does_not_matter():
    """Credit: what the idler does changes no value, by the critic's counterfactual advantages."""
    _, after, trainer = learnt(Idler, actor_gradient="counterfactual")
    assert after > 0.9
    assert trainer.team.types == (0, 0, 1)
    seen = np.zeros((CUES * CUES, 3, CUES), np.float32)
    cues = np.array([(a, b) for a in range(CUES) for b in range(CUES)])
    seen[:, :2] = np.eye(CUES)[cues]
    seen[:, 2, 0] = 1.0
    actions = torch.from_numpy(np.concatenate([cues, np.zeros((len(cues), 1), int)], 1))
    with torch.no_grad():
        q = trainer.networks.critic(torch.from_numpy(seen), actions)
    spread = q.amax(-1) - q.amin(-1)
    idler = (q[:, 2, 0] - q[:, 2, 1]).abs().mean()
    assert idler < 0.2 * spread[:, :2].mean()


def test_agents_that_leave_early():
    _, after, _ = learnt(Leavers)
    assert after > 0.9 * 2  # agent i acts i + 1 times


def test_guidance_alone_and_annealed():
    """With a weight of 1 nothing but the guidance acts on the actors."""
    _, after, _ = learnt(Cues, guidance=True, guidance_weight=1.0, total_steps=600)
    assert after > 0.95

    def wrong(state, actions, infos):
        return -np.eye(CUES)[state.astype(int)]

    _, misled, _ = learnt(Cues, guidance=wrong, guidance_weight=1.0)
    assert misled < 0.3
    recovering = {"start": 0.9, "end": 0.0, "until": 0.4}
    _, recovered, _ = learnt(
        Cues,
        guidance=wrong,
        guidance_weight=recovering,
        advantage_normalization=True,
        temperature=0.05,
        total_steps=2_000,
    )
    assert recovered > 0.9


def test_a_curriculum_over_the_number_of_agents():
    trainer = AACTrainer(
        args=config(total_steps=2_000, id_embedding=0),
        env=Cues,
        curriculum=[{"num_agents": 2, "until": 0.4}, {"num_agents": 4}],
    )
    assert trainer.team.num_agents == 2
    trainer.train()
    assert trainer.team.num_agents == 4
    assert returns(trainer) / 4 > 0.9
    larger = trainer.evaluate(num_agents=9)["eval/team/return_mean"]
    assert larger / 9 > 0.9
