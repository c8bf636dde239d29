"""What environments of vectors have in common whose agents all move at once, as arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.actions import check_agents
from marlogue.envs.callbacks import shortened
from marlogue.envs.declared_spaces import DeclaredSpaces

Floats = NDArray[np.float64]


class NumericStep(NamedTuple):
    """What a PettingZoo parallel step returns; every dict is a fresh one, keyed by agent."""

    observations: dict[str, NDArray[Any]]
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, dict[str, Any]]


class NumericTeam(DeclaredSpaces, ParallelEnv, ABC):  # type: ignore[misc]
    """N agents with equal spaces, who begin and end together.

    A subclass says how an episode begins and goes on, for all agents at once; this class does
    PettingZoo's part: dictionaries, seeds, ends, and checks of actions. Random numbers come from a
    generator of the environment's own; `reset` with a seed begins it anew.

    Args:
        name: of the environment.
        agents: [N] names.
        observation_space: what each agent is shown.
        action_space: what each may do.
        max_cycles: steps after which an episode is truncated.
        render_mode: None or "rgb_array".

    Attributes:
        rng: the generator of the running episode.
        cycle: steps played in it.

    Raises:
        ValueError: when `max_cycles` is below 1, or for another `render_mode`.
    """

    rng: np.random.Generator

    def __init__(
        self,
        name: str,
        agents: list[str],
        observation_space: Box,
        action_space: Discrete | Box,
        *,
        max_cycles: int,
        render_mode: str | None = None,
    ) -> None:
        if max_cycles < 1:
            raise ValueError(f"max_cycles ({max_cycles}) must be at least 1.")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode ({render_mode!r}) must be None or 'rgb_array'.")
        self.metadata = {"name": name, "render_modes": ["rgb_array"], "render_fps": 10}
        self.render_mode = render_mode
        self.max_cycles = max_cycles
        self.possible_agents = list(agents)
        self.agents: list[str] = []
        self.observation_spaces: dict[str, Space[Any]] = dict.fromkeys(agents, observation_space)
        self.action_spaces: dict[str, Space[Any]] = dict.fromkeys(agents, action_space)
        self.cycle = 0
        self._names = frozenset(agents)
        self._space = action_space

    @abstractmethod
    def begin(self, options: Mapping[str, Any]) -> None:
        """Start an episode, with random numbers from `self.rng`."""

    @abstractmethod
    def advance(self, actions: NDArray[Any]) -> tuple[Floats, bool]:
        """Play a step.

        Args:
            actions: [N] indices or [N, A] numbers, inside the action space.

        Returns:
            Rewards [N], and whether the episode has come to its own end.
        """

    @abstractmethod
    def observe_all(self) -> NDArray[Any]:
        """What the agents are shown now, [N, ...], in an array that nobody else holds."""

    @abstractmethod
    def state(self) -> NDArray[np.float32]:
        """The whole situation as [S] numbers."""

    @abstractmethod
    def picture(self) -> NDArray[np.uint8]:
        """The situation as an image [height, width, 3]."""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, Any]]]:
        """Start an episode.

        Args:
            seed: begins the random numbers anew; None goes on with them.
            options: see the environment.
        """
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.begin(dict(options or {}))
        self.agents = list(self.possible_agents)
        self.cycle = 0
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> NumericStep:
        """Move all agents.

        Raises:
            RuntimeError: when no episode is running.
            ValueError: when agents are missing or unknown, or an action is outside its space; the
                environment is then as it was before.
        """
        if not self.agents:
            raise RuntimeError("step was called without a running episode; call reset first")
        if set(actions) != self._names:
            check_agents(actions, self.agents)  # its own look-up takes N^2 comparisons
        rewards, terminated = self.advance(self._joint(actions))
        self.cycle += 1
        truncated = self.cycle >= self.max_cycles and not terminated
        names = self.possible_agents
        result = NumericStep(
            self._shown(),
            dict(zip(names, rewards.tolist(), strict=True)),
            dict.fromkeys(names, terminated),
            dict.fromkeys(names, truncated),
            {agent: {} for agent in names},
        )
        if terminated or truncated:
            self.agents = []
        return result

    def render(self) -> NDArray[np.uint8] | None:
        """The situation as an image [height, width, 3]; None without a render mode."""
        return None if self.render_mode is None else self.picture()

    def close(self) -> None:
        """Nothing is held open."""

    def __str__(self) -> str:
        return str(self.metadata["name"])

    def _shown(self) -> dict[str, NDArray[Any]]:
        return dict(zip(self.possible_agents, self.observe_all(), strict=True))

    def _joint(self, actions: Mapping[str, Any]) -> NDArray[Any]:
        rows = [actions[agent] for agent in self.possible_agents]
        joint = _inside(rows, self._space)
        if joint is None:
            for agent, row in zip(self.possible_agents, rows, strict=True):
                if _inside([row], self._space) is None:
                    raise ValueError(
                        f"the action of {agent} ({shortened(row)}) must be in its action space, "
                        f"{self._space}"
                    )
            raise ValueError(f"actions must all be of one type, each in {self._space}")
        return joint


def _inside(rows: list[Any], space: Discrete | Box) -> NDArray[Any] | None:
    """The actions as one array, if all are in the space. A number of another precision is fine."""
    try:
        joint = np.asarray(rows)
    except ValueError:  # of unlike shapes
        return None
    low: Any
    high: Any
    if isinstance(space, Discrete):
        kinds, low, high = "iu", space.start, space.start + space.n - 1
    else:
        kinds, low, high = "fiu", space.low, space.high
    if joint.dtype.kind not in kinds or joint.shape != (len(rows), *(space.shape or ())):
        return None
    return joint if ((low <= joint) & (joint <= high)).all() else None
