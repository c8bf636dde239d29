"""What a team of numeric agents sees and does, as arrays of one size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.spaces.utils import flatdim, flatten
from numpy.typing import NDArray
from torch import Tensor

from marlogue.agents.team_spaces import check_action_space, check_observation_space


@dataclass(frozen=True)
class TeamSpec:
    """N agents and their spaces, padded to one size: D numbers are observed, and there are A
    actions (discrete) or numbers in an action (continuous).

    Made by `of` from an environment or by `of_spaces`. Agents with equal spaces are of one type.

    Attributes:
        agents: names, in the order of every [N] below.
        observation_spaces: [N] spaces; anything that gymnasium flattens to numbers.
        action_spaces: [N] spaces, all `Discrete` or all bounded `Box`.
    """

    agents: tuple[str, ...]
    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]

    @classmethod
    def of(cls, env: Any) -> TeamSpec:
        """The team of a PettingZoo `ParallelEnv`, in the order of its `possible_agents`.

        Raises:
            TypeError, ValueError: see `of_spaces`.
        """
        agents = list(env.possible_agents)
        return cls.of_spaces(
            {agent: env.observation_space(agent) for agent in agents},
            {agent: env.action_space(agent) for agent in agents},
        )

    @classmethod
    def of_spaces(
        cls, observation_spaces: Mapping[str, Space[Any]], action_spaces: Mapping[str, Space[Any]]
    ) -> TeamSpec:
        """The team of agents with these spaces.

        Raises:
            TypeError: when an observation space has no fixed number of numbers, an action space is
                neither `Discrete` nor `Box`, or some are discrete and others continuous.
            ValueError: for no agent, an agent in one mapping only, an empty or unbounded space.
        """
        agents = tuple(observation_spaces)
        if not agents:
            raise ValueError("observation_spaces ({}) must name at least one agent.")
        if set(agents) != set(action_spaces):
            raise ValueError(
                f"action_spaces (of {list(action_spaces)}) must be of the agents of "
                f"observation_spaces ({list(agents)})."
            )
        for agent in agents:
            check_observation_space(agent, observation_spaces[agent])
            check_action_space(agent, action_spaces[agent])
        kinds = {agent: type(action_spaces[agent]).__name__ for agent in agents}
        if len({isinstance(action_spaces[agent], Discrete) for agent in agents}) > 1:
            raise TypeError(
                f"action spaces ({kinds}) must be all Discrete or all Box; make the continuous "
                "ones discrete, or train the two kinds of agents apart."
            )
        return cls(
            agents,
            tuple(observation_spaces[agent] for agent in agents),
            tuple(action_spaces[agent] for agent in agents),
        )

    @property
    def num_agents(self) -> int:
        """N."""
        return len(self.agents)

    @property
    def discrete(self) -> bool:
        """Whether actions are indices (True) or vectors in [-1, 1] (False)."""
        return isinstance(self.action_spaces[0], Discrete)

    @cached_property
    def observation_sizes(self) -> tuple[int, ...]:
        """[N], numbers that each agent observes."""
        return tuple(flatdim(space) for space in self.observation_spaces)

    @cached_property
    def action_sizes(self) -> tuple[int, ...]:
        """[N], actions of each agent (discrete) or numbers in one (continuous)."""
        return tuple(flatdim(space) for space in self.action_spaces)

    @property
    def observation_size(self) -> int:
        """D, the longest observation."""
        return max(self.observation_sizes)

    @property
    def action_size(self) -> int:
        """A, the most actions or the longest action."""
        return max(self.action_sizes)

    @cached_property
    def kinds(self) -> tuple[tuple[Space[Any], Space[Any]], ...]:
        """The spaces (observation, action) of each type, in the order of first appearance."""
        found: list[tuple[Space[Any], Space[Any]]] = []
        for pair in zip(self.observation_spaces, self.action_spaces, strict=True):
            if pair not in found:
                found.append(pair)
        return tuple(found)

    @cached_property
    def types(self) -> tuple[int, ...]:
        """[N], the type of each agent: an index into `kinds`."""
        pairs = zip(self.observation_spaces, self.action_spaces, strict=True)
        return tuple(self.kinds.index(pair) for pair in pairs)

    def action_mask(self) -> Tensor:
        """[N, A] bool: the actions, or the numbers in an action, that an agent has."""
        sizes = torch.tensor(self.action_sizes)
        return torch.arange(self.action_size) < sizes.unsqueeze(1)

    def observe(
        self, observations: Mapping[str, Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """What the environment showed, as numbers.

        Returns:
            observations [N, D], zeros where an agent has fewer numbers or was shown nothing, and
            present [N], whether it was shown something.

        Raises:
            ValueError: when an observation has another size, or holds NaN or infinity.
            KeyError: for an agent that is not of the team.
        """
        rows = self._alike(observations)
        if rows is None:
            rows, present = self._unlike(observations)
        else:
            present = np.ones(self.num_agents, np.bool_)
        if not np.isfinite(rows).all():
            i, d = np.argwhere(~np.isfinite(rows))[0]
            raise ValueError(
                f"observation of {self.agents[i]} (number {d} is {rows[i, d]}) must be finite; "
                "mend the environment, or clip what it returns."
            )
        return rows, present

    def members(self, agents: Iterable[str]) -> NDArray[np.bool_]:
        """[N] bool: which of the team these agents are.

        Raises:
            KeyError: for an agent that is not of the team.
        """
        found = np.zeros(self.num_agents, np.bool_)
        found[[self._row(agent) for agent in agents]] = True
        return found

    def environment_actions(
        self, actions: NDArray[Any], agents: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """Actions of networks as the environment wants them.

        Args:
            actions: [N] indices (the space's `start` is added), or [N, A] in [-1, 1] (stretched
                to the bounds of the `Box`, in its shape and dtype).
            agents: those that act; None for all.
        """
        given = self._indices(actions) if self.discrete else self._stretched(actions)
        if agents is None:
            return dict(zip(self.agents, given, strict=True))
        return {agent: given[self._row(agent)] for agent in agents}

    def available(self, infos: Mapping[str, Any]) -> NDArray[np.bool_]:
        """[N, A] bool: actions that exist and are not ruled out by an `action_mask` in an agent's
        info (1 = allowed). Discrete actions only.

        Raises:
            ValueError: when a mask has another length or allows nothing.
        """
        allowed = self._every_action.copy()
        for agent, info in infos.items():
            if agent not in self._rows or "action_mask" not in info:
                continue
            i = self._rows[agent]
            mask = np.asarray(info["action_mask"], np.bool_).reshape(-1)
            if len(mask) != self.action_sizes[i] or not mask.any():
                raise ValueError(
                    f"infos[{agent!r}]['action_mask'] ({mask.astype(int).tolist()}) must have "
                    f"{self.action_sizes[i]} entries, at least one of them 1."
                )
            allowed[i, : len(mask)] = mask
        return allowed

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {agent: row for row, agent in enumerate(self.agents)}

    def _row(self, agent: str) -> int:
        if agent not in self._rows:
            raise KeyError(f"{agent!r} is not of the team {list(self.agents)}")
        return self._rows[agent]

    @cached_property
    def _every_action(self) -> NDArray[np.bool_]:
        return self.action_mask().numpy()

    @cached_property
    def _one_shape(self) -> tuple[int, ...] | None:
        """That of every observation; None where they differ or have to be flattened."""
        spaces = self.observation_spaces
        alike = all(isinstance(s, Box) and s.shape == spaces[0].shape for s in spaces)
        return spaces[0].shape if alike else None

    def _alike(self, observations: Mapping[str, Any]) -> NDArray[np.float32] | None:
        """Observations [N, D] of one shape, in one go; None where that is not possible."""
        if self._one_shape is None or len(observations) != self.num_agents:
            return None
        try:
            rows = np.array([observations[agent] for agent in self.agents], np.float32)
        except (KeyError, ValueError):
            return None
        if rows.shape != (self.num_agents, *self._one_shape):
            return None
        return rows.reshape(self.num_agents, -1)

    def _unlike(
        self, observations: Mapping[str, Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        rows = np.zeros((self.num_agents, self.observation_size), np.float32)
        present = np.zeros(self.num_agents, np.bool_)
        for agent, seen in observations.items():
            i = self._row(agent)
            space, size = self.observation_spaces[i], self.observation_sizes[i]
            numbers = np.asarray(
                seen if isinstance(space, Box) else flatten(space, seen), np.float32
            ).reshape(-1)
            if len(numbers) != size:
                raise ValueError(
                    f"observation of {agent} ({len(numbers)} numbers) must be as its space says "
                    f"({size}: {space})."
                )
            rows[i, :size] = numbers
            present[i] = True
        return rows, present

    @cached_property
    def _starts(self) -> list[int]:
        return [int(space.start) for space in self.action_spaces if isinstance(space, Discrete)]

    def _indices(self, actions: NDArray[Any]) -> list[int]:
        chosen = np.asarray(actions).tolist()
        if not any(self._starts):
            return [int(action) for action in chosen]
        return [int(action) + start for action, start in zip(chosen, self._starts, strict=True)]

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[N, A] each, the lowest and highest numbers of continuous actions; zeros beyond."""
        low = np.zeros((self.num_agents, self.action_size))
        high = low.copy()
        for i, space in enumerate(self.action_spaces):
            assert isinstance(space, Box)
            low[i, : self.action_sizes[i]] = space.low.reshape(-1)
            high[i, : self.action_sizes[i]] = space.high.reshape(-1)
        return low, high

    def _stretched(self, actions: NDArray[Any]) -> list[NDArray[Any]]:
        low, high = self._bounds
        unit = np.clip(actions, -1.0, 1.0)
        found = np.clip(low + (unit + 1.0) / 2.0 * (high - low), low, high)
        return [
            row[:size].astype(space.dtype).reshape(space.shape)
            for row, size, space in zip(found, self.action_sizes, self.action_spaces, strict=True)
        ]
