"""Tasks for teams with numeric observations, and one way to judge every library's policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marlogue.agents.teams import TeamSpec

#: From what all agents observe [N, D] to their actions: [N] indices, or [N, A] in [-1, 1].
Policy = Callable[[NDArray[np.float32]], NDArray[Any]]

# Far from the seeds of any training.
_FIRST_SEED = 1_000_000


@dataclass(frozen=True)
class Task:
    """A task and how policies for it are judged.

    Attributes:
        make: makes the environment.
        steps: steps of the training by default.
        episodes: of an evaluation.
        max_cycles: steps of an episode.
        greedy: whether the most probable actions are played (or sampled ones).
        random, best: mean returns, summed over agents, of random actions and of the best known
            policy; for the reader.
        larger: makes the same task with more agents, for networks that fit any number of them;
            None for none.
        random_larger: mean return of random actions there.
    """

    make: Callable[[], ParallelEnv[Any, Any, Any]]
    steps: int
    episodes: int
    max_cycles: int
    greedy: bool
    random: float
    best: float | None
    larger: Callable[[], ParallelEnv[Any, Any, Any]] | None = None
    random_larger: float | None = None


class Flat(BaseParallelWrapper[Any, Any, Any]):
    """Observations as vectors, whatever their shape."""

    def observation_space(self, agent: Any) -> Box:
        """The inner space, flat."""
        space = self.env.observation_space(agent)
        assert isinstance(space, Box)
        return Box(space.low.reshape(-1), space.high.reshape(-1), dtype=np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As the inner environment."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return _flat(observations), infos

    def step(self, actions: dict[Any, Any]) -> Any:
        """As the inner environment."""
        observations, *rest = self.env.step(actions)
        return _flat(observations), *rest


class Noise(ParallelEnv[str, NDArray[np.float32], int]):
    """N agents that see D normal numbers, have A actions and get normal rewards: something to
    measure the cost of learning with, not to learn."""

    metadata: ClassVar[dict[str, Any]] = {"name": "noise"}

    def __init__(self, num_agents: int, size: int, num_actions: int) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self._seen, self._done = Box(-np.inf, np.inf, (size,), np.float32), Discrete(num_actions)
        self._rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> Box:
        """D numbers."""
        return self._seen

    def action_space(self, agent: str) -> Discrete:
        """A actions."""
        return self._done

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Numbers for all."""
        self.agents = list(self.possible_agents)
        return self._numbers(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        """Numbers for all, without an end."""
        names = self.agents
        rewards = dict(zip(names, self._rng.normal(size=len(names)).tolist(), strict=True))
        never = dict.fromkeys(names, False)
        return self._numbers(), rewards, never, never, {agent: {} for agent in names}

    def _numbers(self) -> dict[str, NDArray[np.float32]]:
        shape = (len(self.agents), *self._seen.shape)
        rows = self._rng.normal(size=shape).astype(np.float32)
        return dict(zip(self.agents, rows, strict=True))


def evaluate(task: Task, policy: Policy, env: ParallelEnv[Any, Any, Any] | None = None) -> float:
    """Mean return, summed over agents, of the same episodes for every policy.

    Args:
        task: what is played.
        policy: who plays.
        env: an environment of the task to use; None for a new one.
    """
    env = task.make() if env is None else env
    team = TeamSpec.of(env)
    total = 0.0
    for episode in range(task.episodes):
        observations, _ = env.reset(seed=_FIRST_SEED + episode)
        while env.agents:
            seen, _ = team.observe(observations)
            actions = team.environment_actions(policy(seen), env.agents)
            observations, rewards, *_ = env.step(actions)
            total += float(sum(rewards.values()))
    return total / task.episodes


def random_policy(team: TeamSpec, seed: int) -> Policy:
    """Uniformly random actions."""
    rng = np.random.default_rng(seed)
    if team.discrete:
        return lambda seen: rng.integers(team.action_sizes)
    return lambda seen: rng.uniform(-1.0, 1.0, (team.num_agents, team.action_size))


def _spread(**kwargs: Any) -> ParallelEnv[Any, Any, Any]:
    from mpe2 import simple_spread_v3

    env: ParallelEnv[Any, Any, Any] = simple_spread_v3.parallel_env(**kwargs)
    return env


def _tag() -> ParallelEnv[Any, Any, Any]:
    """Three pursuers learn to catch a faster prey that moves at random."""
    from mpe2 import simple_tag_v3

    from marlogue.wrappers import Subteam

    return Subteam(simple_tag_v3.parallel_env(), "adversary_*")


def _crowd(num_agents: int) -> ParallelEnv[Any, Any, Any]:
    """Spread as crowded as with three agents, where each sees what is near."""
    from marlogue.envs import spread_v0

    return spread_v0.parallel_env(num_agents=num_agents, observe="nearest", half_width=None)


def _pursuit() -> ParallelEnv[Any, Any, Any]:
    from pettingzoo.sisl import pursuit_v5

    return Flat(pursuit_v5.parallel_env())


def _flat(observations: dict[Any, Any]) -> dict[Any, NDArray[np.float32]]:
    return {agent: np.asarray(seen, np.float32).reshape(-1) for agent, seen in observations.items()}


TASKS = {
    "spread": Task(_spread, 50_000, 40, 25, True, -80.6, -23.4),
    "spread_continuous": Task(
        partial(_spread, continuous_actions=True), 50_000, 40, 25, True, -77.9, None
    ),
    "spread_10": Task(
        partial(_crowd, 10), 30_000, 40, 25, True, -830.0, None, partial(_crowd, 30), -6856.0
    ),
    "tag": Task(_tag, 20_000, 40, 25, True, 11.7, None),
    "pursuit": Task(_pursuit, 20_000, 10, 500, False, -365.0, None),
}
