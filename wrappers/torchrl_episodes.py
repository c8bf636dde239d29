"""The episodes that several TorchRL environments play together, and one of those that play them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from pettingzoo.utils import BaseParallelWrapper  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.copies import Copies
from marlogue.wrappers.numeric_spaces import info_numbers
from marlogue.wrappers.view import ACTION_MASK, require_all

Plan: TypeAlias = tuple[int | None, dict[str, Any] | None]
"""Seed and options of a reset."""


class SharedEpisodes:
    """Copies of an environment, and which episode each of them plays next."""

    def __init__(self, env: ParallelEnv | Callable[[], ParallelEnv]) -> None:
        self.copies = Copies(env)
        self.handed_out = 0
        self.seeded: set[int] = set()
        self.unplayed: list[Plan] = []

    def next_copy(self) -> int:
        """The index of a copy that nobody else has."""
        index = self.handed_out
        self.handed_out += 1
        self.copies.grow(self.handed_out)
        return index

    def plan(self, index: int, seed: int | None, options: Mapping[str, Any] | None) -> Plan:
        """How the next episode of a copy begins."""
        if seed is None and options is None and self.unplayed:
            return self.unplayed.pop(0)
        if self.copies.has_rows:
            return self._plan_row(index, seed, options)
        if seed is not None:
            self.seeded.add(index)
        if index in self.seeded:  # it has a generator of its own, which goes on
            return seed, None if options is None else dict(options)
        return self.copies.plan(None, options)

    def _plan_row(self, index: int, seed: int | None, options: Mapping[str, Any] | None) -> Plan:
        if seed is None:
            return self.copies.plan(None, options)
        # Vectorised environments seed their parts one by one, each with another seed. The first
        # one begins the order of the rows anew, the others go on with it.
        if self.seeded and index not in self.seeded:
            self.seeded.add(index)
            return seed, self.copies.plan(None, options)[1]
        self.seeded, self.unplayed = {index}, []
        return self.copies.plan(seed, options)


class OneOfMany(BaseParallelWrapper):  # type: ignore[misc]
    """One copy, which asks the others what is left to play, and checks what TorchRL would not."""

    def __init__(
        self, episodes: SharedEpisodes, info_keys: tuple[str, ...], use_mask: bool
    ) -> None:
        self.index = episodes.next_copy()
        super().__init__(episodes.copies[self.index])
        self._episodes = episodes
        self._info_keys = info_keys
        self._use_mask = use_mask
        self._unplayed: Plan | None = None
        self._only_looked_at = True
        self._last: dict[str, Any] = {}
        self._ends: dict[str, tuple[bool, bool]] = {}  # agent to terminated, truncated

    @override
    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        # TorchRL resets to read the specs and to set a seed, and once more to begin: an episode
        # that was only looked at is played then, so that no row is lost.
        plan = self._unplayed
        if plan is None or seed is not None or options is not None:
            plan = self._episodes.plan(self.index, seed, options)
        self._unplayed = plan if self._only_looked_at or seed is not None else None
        self._only_looked_at = False
        observations, infos = self._episodes.copies.reset(self.index, *plan)
        require_all(self.env, observations, "TorchRL")
        self._last, self._ends = dict(observations), {}
        return observations, self._numeric(infos)

    @override
    def step(self, actions: Mapping[str, Any]) -> Any:
        self._unplayed = None
        acting = {agent: actions[agent] for agent in self.agents}
        result = self.env.step(acting)
        self._last.update(result[0])
        for agent in acting:
            self._ends[agent] = (bool(result[2][agent]), bool(result[3][agent]))
        self._check_ends()
        # TorchRL drops the reward of an agent without an observation, as in the last turn of an
        # environment that shows nothing to agents that have ended. So all have one, always.
        agents = self.possible_agents
        return (
            {agent: self._last[agent] for agent in agents},
            {agent: result[1].get(agent, 0.0) for agent in agents},
            {agent: self._ends[agent][0] for agent in agents},
            {agent: self._ends[agent][1] for agent in agents},
            self._numeric(result[4]),
        )

    def _check_ends(self) -> None:
        over = not self.agents
        if over and len(set(self._ends.values())) > 1:
            raise ValueError(
                f"an episode of {self.env} ended terminated for some agents and truncated for "
                f"others ({self._ends}), of which TorchRL makes neither for the team; put "
                "UniformEnd around the environment"
            )
        left = [agent for agent, ends in self._ends.items() if any(ends)]
        if left and not over and not self._use_mask:
            raise ValueError(
                f"{', '.join(left)} left an episode of {self.env} before the others; set "
                "use_mask=True and leave out samples where the mask is False, or put UniformEnd "
                "around the environment"
            )

    @override
    def close(self) -> None:
        if self._unplayed is not None:
            self._episodes.unplayed.append(self._unplayed)
            self._unplayed = None
        self.env.close()

    def _numeric(self, infos: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        kept: dict[str, dict[str, Any]] = {}
        for agent in self.possible_agents:
            info = infos.get(agent, {})
            kept[agent] = info_numbers(agent, info, self._info_keys)
            if ACTION_MASK in info:
                kept[agent][ACTION_MASK] = info[ACTION_MASK]
        return kept
