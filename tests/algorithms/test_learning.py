"""The learners learn: from the random level to a solved task, within seconds each."""

from __future__ import annotations

import random

import pytest

from marlogue.agents import tiny_model
from marlogue.algorithms import IACConfig, IACTrainer, MAACConfig, MAACTrainer
from marlogue.envs import BatchRunner, Start, coordination_v0
from tests.support.team import KINDS

SEEDS = (0, 1, 2)


def random_level(num_turns: int = 1, episodes: int = 400) -> float:
    """Mean reward of a team that says any word of the vocabulary, in its last turn."""
    draw = random.Random(0)
    runner = BatchRunner(coordination_v0.parallel_env(num_turns=num_turns))
    running = runner.reset([Start(options={"row": k % 4}) for k in range(episodes)])
    for _ in range(num_turns):
        said = [
            {agent: draw.choice(coordination_v0.VOCABULARY) for agent in episode.agents}
            for episode in running
        ]
        results = runner.step(running, said)
    return sum(result.rewards["agent_0"] for result in results) / episodes


def team(kind: str, seed: int, *, num_turns: int = 1, rows: int = 1, **settings):
    """A team of random weights on the coordination task, and 64 rows to judge it by."""
    models = [tiny_model(coordination_v0.VOCABULARY, seed=10 * seed + k) for k in range(4)]
    own = {
        "agents": [models[0][0], models[1][0]],
        "tokenizer": models[0][1],
        "env": coordination_v0.parallel_env(
            num_turns=num_turns, dataset=coordination_v0.dataset() * rows
        ),
        "eval_env": coordination_v0.parallel_env(
            num_turns=num_turns, dataset=coordination_v0.dataset() * 16
        ),
    }
    args = {
        "agent_learning_rate": 4e-3,
        "critic_learning_rate": 1e-2,
        "rollout_buffer_size": 128,
        "max_new_tokens": 1,
        "seed": seed,
        "eval_interval": 0,
        "eval_num_samples": 64,
        "eval_batch_size": 64,
        "verbose": False,
        **settings,
    }
    if kind == "maac":
        return MAACTrainer(args=MAACConfig(**args), critic_model=models[2][0], **own)
    if kind == "separate":
        critics = [models[2][0], models[3][0]]
        return IACTrainer(args=IACConfig(**args), critics=critics, **own)
    return IACTrainer(args=IACConfig(use_separate_critic=False, **args), **own)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_from_the_random_level_to_nine_tenths(kind, seed):
    chance = random_level()
    assert chance == pytest.approx(0.055, abs=0.03)
    trainer = team(kind, seed, num_generations=32, num_train_epochs=60)
    before = trainer.evaluate()["eval/team/turn_1/reward_mean"]
    assert before < chance + 0.1
    trainer.train()
    assert trainer.evaluate()["eval/team/turn_1/reward_mean"] >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["maac", "shared"])
def test_two_turns(kind):
    chance = random_level(num_turns=2)
    trainer = team(kind, 0, num_turns=2, rows=16, num_train_epochs=40)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    for turn in (1, 2):
        name = f"eval/team/turn_{turn}/reward_mean"
        assert before[name] < chance + 0.1
        assert after[name] > chance + 0.4
