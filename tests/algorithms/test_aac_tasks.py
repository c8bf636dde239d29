"""Actor-attention-critic learns tasks that others publish, a short part of what the curves in
benchmarks/ show."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from marlogue.algorithms import AACConfig, AACTrainer
from marlogue.envs import spread_v0

EPISODES = 100


def trained(make, **changes) -> AACTrainer:
    settings = {
        "num_envs": 5,
        "learning_starts": 500,
        "train_interval": 5,
        "batch_size": 128,
        "hidden_size": 64,
        "actor_hidden_sizes": (64, 64),
        "eval_interval": 0,
        "eval_episodes": EPISODES,
        "device": "cpu",
        "verbose": False,
    }
    trainer = AACTrainer(args=AACConfig(**{**settings, **changes}), env=make)
    trainer.train()
    return trainer


def random_returns(env) -> np.ndarray:
    """Returns of the team, summed over its agents, when actions are random."""
    rng = np.random.default_rng(0)
    returns = np.zeros(EPISODES)
    for episode in range(EPISODES):
        env.reset(seed=episode)
        while env.agents:
            actions = {agent: rng.integers(env.action_space(agent).n) for agent in env.agents}
            _, rewards, *_ = env.step(actions)
            returns[episode] += sum(rewards.values())
    return returns


def clearly_above(trainer, random: np.ndarray, margin: float, **env_kwargs) -> bool:
    """By a margin, in mean returns, and by three standard errors of the random ones."""
    learnt = trainer.evaluate(**env_kwargs)["eval/team/return_mean"]
    error = random.std() / np.sqrt(len(random))
    return learnt > random.mean() + max(margin, 3 * error)


@pytest.mark.slow
def test_simple_spread():
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    trainer = trained(spread.parallel_env, total_steps=6_000)
    assert clearly_above(trainer, random_returns(spread.parallel_env()), 8.0)


@pytest.mark.slow
def test_networks_of_ten_agents_play_with_thirty():
    """In a crowd of the same density, where agents see what is near."""
    crowd = partial(spread_v0.parallel_env, num_agents=10, observe="nearest", half_width=None)
    trainer = trained(crowd, total_steps=5_000, num_queries=4)
    for count in (10, 30):
        random = random_returns(crowd(num_agents=count))
        assert clearly_above(trainer, random, -0.05 * random.mean(), num_agents=count)
