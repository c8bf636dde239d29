"""Plays episodes of a numeric team in one environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.streams import derived_seed
from marlogue.algorithms.team_guidance import Guidance, Guide, own_guidance, state_or
from marlogue.algorithms.team_views import EpisodeEnd, TeamView
from marlogue.envs.callbacks import noted

Flags = NDArray[np.bool_]
_MEND = "mend the environment"
#: Squares of rewards that sum to less are certainly of finite float32 numbers.
_LARGE = 1e77


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is played.

    Args:
        make: makes an environment; or an environment, which is played as it is.
        seed: episode k of environment e is reset with ``derived_seed(seed, stream, e, k)``.
        stream: what for.
        guidance: a callable, True for the environment's own, or None.
        with_state: whether views have the environment's state.
        env_kwargs: for `make`.
    """

    make: Callable[..., ParallelEnv] | ParallelEnv
    seed: int
    stream: int
    guidance: Guidance | bool | None = None
    with_state: bool = False
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def made(self, number: int) -> ParallelEnv:
        """Environment `number`.

        Raises:
            TypeError: when it is not a `ParallelEnv`.
        """
        if isinstance(self.make, ParallelEnv):
            return self.make
        with noted(f"making environment {number}"):
            env = self.make(**self.env_kwargs)
        if not isinstance(env, ParallelEnv):
            raise TypeError(
                f"env must make a PettingZoo ParallelEnv, but made {env!r}; convert it, as with "
                "pettingzoo.utils.aec_to_parallel."
            )
        return env


class Played(NamedTuple):
    """One step of one environment: a row of `VectorStep`."""

    rewards: NDArray[np.float32]
    terminated: Flags
    truncated: Flags
    after: TeamView
    guidance: NDArray[np.float32] | None
    end: EpisodeEnd | None


class Game:
    """One environment and its running episode.

    Args:
        job: what is played.
        number: of the environment.
    """

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.env = job.made(number)
        with noted(f"reading the spaces of environment {number}"):
            self.team = TeamSpec.of(self.env)
        self.names = list(self.team.agents)
        self.guide = self._guide()
        self._nobody: Flags = np.zeros(len(self.names), np.bool_)
        self.present = self._nobody
        self.returns = np.zeros(len(self.names))
        self.episode = self.length = 0
        self.infos: Mapping[str, Any] = {}
        self.state: Any = None

    def begin(self, episode: int) -> TeamView:
        """Reset for an episode.

        Raises:
            ValueError: when it shows nobody, or something that it must not.
        """
        seed = derived_seed(self.job.seed, self.job.stream, self.number, episode)
        self.episode, self.length = episode, 0
        self.returns = np.zeros(len(self.names))
        with noted(f"resetting environment {self.number} for episode {episode} with seed {seed}"):
            observations, infos = self.env.reset(seed=seed)
            view = self._view(observations, infos, self._nobody, self._nobody)
            if not self.present.any():
                raise ValueError(
                    f"env.agents ({self.env.agents}) must name who acts first after a reset; "
                    f"{_MEND}, or leave out episodes in which nobody does anything."
                )
        return view

    def step(self, actions: NDArray[Any], *, guided: bool = True) -> Played:
        """Act.

        Args:
            actions: [N] or [N, A]; those of absent agents are left out.
            guided: ask the guidance, where there is one.

        Raises:
            ValueError: when the environment gives what it must not.
        """
        acted = self.present
        acting = [name for name, acts in zip(self.names, acted.tolist(), strict=True) if acts]
        with noted(
            f"playing step {self.length} (counted from 0) of episode {self.episode} in environment "
            f"{self.number}"
        ):
            given = self.team.environment_actions(actions, acting)
            guidance = None
            if self.guide is not None and guided:
                guidance = self.guide(self.state, given, self.infos, actions, acted, self.number)
            observations, rewards, terminations, truncations, infos = self.env.step(given)
            earned = self._rewards(rewards, acting)
            terminated, truncated, left = self._leavers(acted, terminations, truncations)
            after = self._view(observations, infos, left, truncated)
            self._check_leavers(acted & ~(self.present | left))
        self.length += 1
        self.returns += earned
        end = None
        if not self.present.any():
            end = EpisodeEnd(self.number, self.episode, self.length, self.returns)
        return Played(earned.astype(np.float32), terminated, truncated, after, guidance, end)

    def close(self) -> None:
        """Close the environment, unless the user made it."""
        if not isinstance(self.job.make, ParallelEnv):
            self.env.close()

    def _guide(self) -> Guide | None:
        if self.job.guidance is None:
            return None
        given = self.job.guidance
        return Guide(own_guidance(self.env) if isinstance(given, bool) else given, self.team)

    def _view(
        self,
        observations: Mapping[str, Any],
        infos: Mapping[str, Any],
        left: Flags,
        truncated: Flags,
    ) -> TeamView:
        """What is shown, kept for the step from here."""
        rows, shown = self.team.observe(observations)
        self.present = present = self.team.members(self.env.agents) & ~left
        wanted = present | truncated
        if not (wanted & shown).all():
            rows[~wanted] = 0.0
            self._check_seeing(wanted & ~shown, observations)
        self.infos = infos
        available = None
        if self.team.discrete:
            available = self.team.available(self._masking(infos, truncated))
        state = self._state(observations)
        return TeamView(rows, present.copy(), available, state)  # nobody changes ours

    def _masking(self, infos: Mapping[str, Any], truncated: Flags) -> dict[str, Any]:
        """The infos with masks that count: not those of agents that are over, which may rule out
        everything."""
        masked = [agent for agent, info in infos.items() if info and "action_mask" in info]
        if not masked:
            return {}
        present = dict(zip(self.names, self.present.tolist(), strict=True))
        cut = dict(zip(self.names, truncated.tolist(), strict=True))
        return {
            agent: infos[agent]
            for agent in masked
            if present.get(agent)
            or (cut.get(agent) and np.asarray(infos[agent]["action_mask"]).any())
        }

    def _state(self, observations: Mapping[str, Any]) -> NDArray[np.float32] | None:
        if not self.job.with_state:
            if self.guide is not None:
                self.state = state_or(self.env, observations)
            return None
        self.state = self.env.state()
        state = np.array(self.state, np.float32).reshape(-1)
        bad = np.flatnonzero(~np.isfinite(state))
        if len(bad):
            raise ValueError(
                f"env.state() (number {bad[0]} is {state[bad[0]]}) must be finite; {_MEND}."
            )
        return state

    def _rewards(self, rewards: Mapping[str, Any], acting: Iterable[str]) -> NDArray[np.float64]:
        missing = [agent for agent in acting if agent not in rewards]
        if missing:
            raise ValueError(
                f"rewards (of {list(rewards)}) must hold one of {missing[0]}, who acted; {_MEND}."
            )
        earned = np.array([rewards.get(agent, 0.0) for agent in self.names], np.float64)
        earned = earned.reshape(len(self.names))  # some give arrays of one number
        if not earned.dot(earned) < _LARGE:
            with np.errstate(over="ignore"):  # it is held as float32
                bad = np.flatnonzero(~np.isfinite(earned.astype(np.float32)))
            if len(bad):
                raise ValueError(
                    f"reward of {self.names[bad[0]]} ({earned[bad[0]]}) must be a finite number; "
                    f"{_MEND}."
                )
        return earned

    def _leavers(
        self, acted: Flags, terminations: Mapping[str, Any], truncations: Mapping[str, Any]
    ) -> tuple[Flags, Flags, Flags]:
        """[N] each: those that acted and terminated, those that were cut off instead, and all that
        are over, also those that were before (some environments go on naming them)."""
        if not any(terminations.values()) and not any(truncations.values()):
            return self._nobody.copy(), self._nobody.copy(), self._nobody
        ended, cut = (
            np.array([bool(flags.get(agent, False)) for agent in self.names], np.bool_)
            for flags in (terminations, truncations)
        )
        return acted & ended, acted & cut & ~ended, ended | cut

    def _check_leavers(self, vanished: Flags) -> None:
        if vanished.any():
            raise ValueError(
                f"env.agents ({self.env.agents}) no longer has {self._named(vanished)}, which must "
                "then be terminated or truncated: it decides whether what follows counts; set one "
                "of the flags in the environment."
            )

    def _check_seeing(self, blind: Flags, observations: Mapping[str, Any]) -> None:
        if blind.any():
            raise ValueError(
                f"observations (of {list(observations)}) must hold one of "
                f"{self._named(blind)}, who acts next or was cut off; {_MEND}."
            )

    def _named(self, some: Flags) -> str:
        return self.names[int(np.flatnonzero(some)[0])]
