"""Small environments of numeric teams: agents that leave and come, unlike spaces, and faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]


class Shift(ParallelEnv):
    """Ann is there from 4 to 6 steps, as the seed says, and then terminates; bob leaves after two;
    cy comes after one and is cut off at the end. What they see depends on the seed and on all
    actions so far.

    Args:
        discrete: 3, 2 and 4 actions; or continuous ones of unlike shapes, from 0 to 4.
        bob: how he leaves, "terminated" or "truncated".
        deadly: seeds of episodes in which step 1 kills the process.
        faulty: name of what goes wrong in step 1: "observation", "reward", "state", "raise",
            "vanish", "blind".
    """

    metadata = {"name": "shift_v0"}  # noqa: RUF012

    def __init__(
        self,
        discrete: bool = True,
        bob: str = "terminated",
        deadly: Collection[int] = (),
        faulty: str = "",
    ) -> None:
        self.possible_agents = ["ann", "bob", "cy"]
        self.agents: list[str] = []
        self.bob, self.deadly, self.faulty = bob, deadly, faulty
        self.sizes = {"ann": 2, "bob": 3, "cy": 1}
        actions = {"ann": 3, "bob": 2, "cy": 4}
        shapes: dict[str, tuple[int, ...]] = {"ann": (2,), "bob": (1,), "cy": (1, 2)}
        self._observations = {a: Box(-99.0, 99.0, (size,)) for a, size in self.sizes.items()}
        self._actions: dict[str, Any] = {
            a: Discrete(actions[a], start=1) if discrete else Box(0.0, 4.0, shapes[a])
            for a in self.possible_agents
        }
        self.turn = self.turns = 0
        self.seed = 0
        self.total = 0.0
        self.rng = np.random.default_rng(0)
        self.closed = False

    def observation_space(self, agent: str) -> Box:
        return self._observations[agent]

    def action_space(self, agent: str) -> Any:
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.turn, self.turns, self.total = 0, 4 + seed % 3, 0.0
        self.agents = ["ann", "bob"]
        return self.shown(), self.infos()

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents), (actions, self.agents)
        for agent, action in actions.items():
            assert self._actions[agent].contains(action), (agent, action)
        if self.turn == 1 and self.seed in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.turn == 1 and self.faulty == "raise":
            raise LookupError("no such lever")
        done = {agent: float(np.sum(action)) for agent, action in actions.items()}
        self.total += sum(done.values())
        self.turn += 1
        over = self.turn == self.turns
        terminated = {a: a == "ann" and over for a in self.agents}
        truncated = {a: a == "cy" and over for a in self.agents}
        if self.turn == 2:
            {"terminated": terminated, "truncated": truncated}[self.bob]["bob"] = True
        acted = list(self.agents)
        self.agents = [a for a in acted if not terminated[a] and not truncated[a]]
        if self.turn == 1:
            self.agents.append("cy")
        shown = self.shown({*acted, *self.agents})
        rewards = {a: 10 * self.turn + done[a] for a in acted}
        if self.faulty and self.turn == 2:
            self._spoil(shown, rewards)
        return shown, rewards, terminated, truncated, self.infos()

    def shown(self, agents: Collection[str] = ("ann", "bob")) -> dict[str, Any]:
        noise = {a: self.rng.normal(size=n).astype(np.float32) for a, n in self.sizes.items()}
        return {a: noise[a] + np.float32(self.total) for a in self.possible_agents if a in agents}

    def infos(self) -> dict[str, dict[str, Any]]:
        return {a: {"turn": self.turn} for a in self.agents}

    def state(self) -> Any:
        if self.faulty == "state" and self.turn == 2:
            return np.array([np.inf])
        return np.array([self.turn, self.total], np.float64)

    def guidance(self, state: Any, actions: dict[str, Any], infos: Any) -> dict[str, float]:
        """An action is worth its number times the turn."""
        assert all(infos[agent]["turn"] == state[0] for agent in actions)
        return {agent: float(np.sum(action)) * state[0] for agent, action in actions.items()}

    def close(self) -> None:
        self.closed = True

    def _spoil(self, shown: dict[str, Any], rewards: dict[str, float]) -> None:
        if self.faulty == "observation":
            shown["cy"][0] = np.nan
        elif self.faulty == "reward":
            rewards["ann"] = np.inf
        elif self.faulty == "vanish":
            self.agents.remove("ann")
        elif self.faulty == "blind":
            del shown["ann"]


class Masked(Shift):
    """Cy may only take action 2 (counted from 0), as its mask says; those of others that are over
    allow nothing."""

    def infos(self) -> dict[str, dict[str, Any]]:
        masks = {"ann": [1, 1, 1], "bob": [1, 1], "cy": [0, 0, 1, 0]}
        return {
            a: {"turn": self.turn, "action_mask": masks[a] if a in self.agents else [0] * 2}
            for a in self.possible_agents
        }


class Deserted(Shift):
    """Nobody is there."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed, options)
        self.agents = []
        return {}, {}


def played(vector: Any, steps: int, seed: int = 0) -> list[Any]:
    """The views and steps of random actions, which are the same for a team and number of
    environments."""
    rng = np.random.default_rng(seed)
    team, E = vector.team, vector.num_envs
    found: list[Any] = [vector.reset()]
    for _ in range(steps):
        drawn = rng.random((E, team.num_agents, team.action_size), np.float32)
        if team.discrete:
            given = (drawn[..., 0] * np.array(team.action_sizes)).astype(np.int64)
        else:
            given = 2 * drawn - 1
        found.append(vector.step(given))
    return found


def assert_equal(one: Any, other: Any) -> None:
    """Compare nested tuples and lists of arrays."""
    if isinstance(one, tuple | list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
