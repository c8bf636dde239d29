"""Stepping many episodes of one environment together."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.episodes import (
    EpisodeState,
    Infos,
    StepResult,
    advance,
    begin,
    first_infos,
    observations,
)
from marlogue.envs.foreign import ForeignEpisodes
from marlogue.envs.text_env import TextEnv
from marlogue.envs.waiting import idle_text


class Start(NamedTuple):
    """The arguments of one reset: `env.reset(seed=..., options=...)`."""

    seed: int | None = None
    options: Mapping[str, Any] | None = None


@dataclass(eq=False)
class Episode:
    """A view of one running episode; the runner that made it keeps it up to date.

    Fields:
        index: its place in the list that `BatchRunner.reset` returned.
        start: index of the start it came from.
        generation: which of the episodes from that start it is.
        turn: turns played so far.
        agents: the live agents; empty when the episode is over.
        observations: agent to prompt, as of the last reset or step.
        infos: agent to info, as of the last reset or step.
    """

    index: int
    start: int
    generation: int
    turn: int = 0
    agents: list[str] = field(default_factory=list)
    observations: dict[str, str] = field(default_factory=dict)
    infos: Infos = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether no agent is left."""
        return not self.agents


class Episodes(Protocol):
    """How a runner plays one kind of environment: episodes by index."""

    idle_texts: dict[str, str]

    def reset(
        self, starts: Sequence[Start], num_generations: int
    ) -> list[tuple[list[str], dict[str, str], Infos]]:
        """Begin episodes; returns live agents, observations and infos of each."""
        ...

    def step(
        self, indices: Sequence[int], actions: Sequence[Mapping[str, str]]
    ) -> list[tuple[list[str], StepResult]]:
        """Play a turn of some; returns the agents that live on and the result of each."""
        ...

    def env(self, index: int) -> ParallelEnv:
        """The environment that plays an episode."""
        ...

    def close(self) -> None:
        """Release what the episodes hold."""
        ...


class BatchRunner:
    """Plays many episodes of one environment definition at once.

    On a `TextEnv` all episodes share dataset and callbacks; the joint actions of one start and
    turn are scored in one reward call (all of them in one, if the function is marked with
    `batched_reward`). For any other parallel environment, a wrapped `TextEnv` included, each
    episode has a deep copy of its own, or one from the factory, and copies are used again by later
    resets. The environment that was passed is never touched.

    Starts take effect in order, as if one environment were reset with each: an unseeded start of a
    `TextEnv` plays the next row, a seeded one begins its row order anew. Of other environments
    every copy starts out the same, so an unseeded start gets the seed after the last one (from 0).

    Args:
        env: the environment, or a function that makes it (for one that cannot be deep-copied).

    Attributes:
        possible_agents: the agents' names.
        idle_texts: for each of them what it says while it waits.

    Raises:
        TypeError: when it is not a PettingZoo `ParallelEnv` (or makes none).
    """

    def __init__(self, env: ParallelEnv | Callable[[], ParallelEnv]) -> None:
        self._backend: Episodes
        if isinstance(env, TextEnv) and _is_plain(env):
            self._backend = TextEpisodes(env)
        else:
            self._backend = ForeignEpisodes(env)
        self.possible_agents = list(self._backend.idle_texts)
        self.idle_texts = self._backend.idle_texts
        self._episodes: list[Episode] = []

    def reset(self, starts: Sequence[Start], num_generations: int = 1) -> list[Episode]:
        """Begin `num_generations` episodes from each start; earlier episodes end.

        Args:
            starts: one per dataset item or seed.
            num_generations: how many episodes share a start, and so its row and prompts.

        Returns:
            The episodes, item-major: episode k belongs to start `k // num_generations`.
        """
        generations = operator.index(num_generations)
        if isinstance(num_generations, bool) or generations < 1:
            raise ValueError(f"num_generations ({num_generations}) must be 1 or more")
        self._episodes = []
        begun = self._backend.reset(starts, generations)
        self._episodes = [
            Episode(k, k // generations, k % generations, 0, agents, shown, infos)
            for k, (agents, shown, infos) in enumerate(begun)
        ]
        return list(self._episodes)

    def step(
        self, episodes: Sequence[Episode], actions: Sequence[Mapping[str, str]]
    ) -> list[StepResult]:
        """Play one turn of some of the running episodes, and update them.

        Args:
            episodes: running episodes of the latest reset, each at most once, in any order.
            actions: for each of them live agent to completion.

        Returns:
            For each what `env.step` returns.

        Raises:
            RuntimeError: when an episode is over or belongs to an earlier reset.
            TypeError, ValueError: as `TextEnv.step`.
        """
        if len(episodes) != len(actions):
            raise ValueError(
                f"actions ({len(actions)}) must be as many as episodes ({len(episodes)})"
            )
        for episode in episodes:
            self._check_running(episode)
        indices = [episode.index for episode in episodes]
        if len(set(indices)) < len(indices):
            raise ValueError(f"episodes ({indices}) must be different ones")
        stepped = self._backend.step(indices, actions)
        for episode, (agents, result) in zip(episodes, stepped, strict=True):
            episode.turn += 1
            episode.agents = agents
            episode.observations = dict(result.observations)
            episode.infos = dict(result.infos)
        return [result for _, result in stepped]

    def env_of(self, index: int) -> ParallelEnv:
        """The environment that plays an episode: a copy of its own, or for a `TextEnv` the
        definition that all episodes share (and no episode's state)."""
        return self._backend.env(index)

    def close(self) -> None:
        """Close the copies that the runner made."""
        self._episodes = []
        self._backend.close()

    def _check_running(self, episode: Episode) -> None:
        known = self._episodes[episode.index : episode.index + 1]
        if not known or known[0] is not episode:
            raise RuntimeError(
                f"episode {episode.index} is not one of the latest reset; step the episodes that "
                "it returned"
            )
        if episode.over:
            raise RuntimeError(
                f"episode {episode.index} is over ({episode.turn} turn(s) played); leave it out"
            )


def _is_plain(env: TextEnv) -> bool:
    """Whether nothing that the fast way goes around was overridden by a subclass."""
    kind = type(env)
    return all(getattr(kind, name) is getattr(TextEnv, name) for name in ("reset", "step"))


class TextEpisodes:
    """Episodes of a `TextEnv`, as values that share its task."""

    def __init__(self, env: TextEnv) -> None:
        self._env = copy.deepcopy(env)  # for the row order; the user's own does not move
        self._states: list[EpisodeState] = []
        self.idle_texts = {a: idle_text(env.action_space(a)) for a in env.possible_agents}

    def reset(
        self, starts: Sequence[Start], num_generations: int
    ) -> list[tuple[list[str], dict[str, str], Infos]]:
        """Begin episodes; prompts are formatted once per start."""
        task = self._env.task
        begun = [begin(task, self._env.next_origin(*start)) for start in starts]
        self._states = [state for state in begun for _ in range(num_generations)]
        return [
            (list(task.agents), observations(task, state), first_infos(task, state))
            for state in self._states
        ]

    def step(
        self, indices: Sequence[int], actions: Sequence[Mapping[str, str]]
    ) -> list[tuple[list[str], StepResult]]:
        """Play a turn of some, with one reward call per start."""
        task = self._env.task
        stepped = advance(task, [self._states[index] for index in indices], actions)
        for index, (state, _) in zip(indices, stepped, strict=True):
            self._states[index] = state
        return [([] if state.over else list(task.agents), result) for state, result in stepped]

    def env(self, index: int) -> ParallelEnv:
        """The definition that the episodes share."""
        return self._env

    def close(self) -> None:
        """Forget the episodes, and end the workers of the reward function."""
        self._states = []
        self._env.task.close()
