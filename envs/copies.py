"""Copies of one environment, one per running episode, that do not all play the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import logger
from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.callbacks import noted
from marlogue.envs.text_env import text_env_inside


class Copies:
    """Grows a list of copies of a parallel environment, and says how each episode begins.

    Copies are made and seeded so that together they play what the one environment would have
    played: around a `TextEnv` each unseeded reset takes the next row; any other environment gets
    the next seed of a counter.

    Args:
        env: the environment, of which deep copies are made, or a function that makes it.

    Attributes:
        possible_agents: the agents' names.

    Raises:
        TypeError: when it is not a `ParallelEnv`, or does not name its possible agents.
        ValueError: in `grow`, when the function returns an environment that it made before.
    """

    def __init__(self, env: ParallelEnv | Callable[[], ParallelEnv]) -> None:
        self._make = env if not isinstance(env, ParallelEnv) and callable(env) else copier(env)
        self._envs: list[ParallelEnv] = []
        self.grow(1)
        self._next_seed = 0
        self._warned = False
        # A wrapped TextEnv counts its rows for itself; copies of it would all play the same ones.
        self._rows = copy.deepcopy(text_env_inside(self._envs[0]))
        agents = getattr(self._envs[0], "possible_agents", None)
        if not agents:
            raise TypeError(f"env ({self._envs[0]}) must define possible_agents")
        self.possible_agents: list[str] = list(agents)

    def __len__(self) -> int:
        return len(self._envs)

    def __getitem__(self, index: int) -> ParallelEnv:
        return self._envs[index]

    @property
    def has_rows(self) -> bool:
        """Whether episodes play rows of a `TextEnv`."""
        return self._rows is not None

    def grow(self, count: int) -> None:
        """See that there are at least `count` copies."""
        while len(self._envs) < count:
            self._envs.append(self._made())

    def plan(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[int | None, dict[str, Any] | None]:
        """The arguments of a reset, of any copy, that begins the next episode.

        Args:
            seed: begins the order of rows anew; of other environments, the plans that follow
                count on from it.
            options: passed on.
        """
        options = None if options is None else dict(options)
        if self._rows is not None:
            origin = self._rows.next_origin(seed, options)
            return seed, {**(options or {}), "item": origin.item, "row": origin.row}
        if seed is None:
            seed = self._next_seed
        self._next_seed = seed + 1
        return seed, options

    def reset(self, index: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset a copy with the arguments of a plan; returns what it returns."""
        env = self._envs[index]
        with noted(f"resetting episode {index} of {env} with seed {seed}"):
            begun = env.reset(seed=seed, options=options)
        if self.has_rows and not self._warned:
            self._warn_of_other_rows(env, options or {})
        return begun

    def _warn_of_other_rows(self, env: ParallelEnv, options: Mapping[str, Any]) -> None:
        state = env.unwrapped._state
        if state is not None and state.origin.row != options.get("row"):
            self._warned = True
            logger.warn(
                f"{env} plays row {state.origin.row} where row {options.get('row')} was to be "
                "played; a wrapper around a TextEnv must pass the options of reset on, or all "
                "episodes play the same rows"
            )

    def close(self) -> None:
        """Close the copies."""
        for env in self._envs:
            env.close()

    def _made(self) -> ParallelEnv:
        env = self._make()
        if not isinstance(env, ParallelEnv):
            raise TypeError(f"the environment factory returned {env!r}, not a ParallelEnv")
        if any(env.unwrapped is other.unwrapped for other in self._envs):
            raise ValueError(
                f"the environment factory returned {env} a second time, and one environment cannot "
                "play several episodes at once; let the factory make a new one at each call, or "
                "pass the environment itself, which is copied"
            )
        return env


def copier(env: Any) -> Callable[[], ParallelEnv]:
    """A function that makes deep copies of an environment.

    Raises:
        TypeError: when it is not a `ParallelEnv`.
    """
    if isinstance(env, AECEnv):
        raise TypeError(
            f"env ({env}) is an AEC environment; pass the parallel one, as from "
            "pettingzoo.utils.aec_to_parallel"
        )
    if not isinstance(env, ParallelEnv):
        raise TypeError(f"env ({env!r}) must be a PettingZoo ParallelEnv, or a function making one")

    def copied() -> ParallelEnv:
        with noted(f"copying {env}; pass a function that makes the environment if it cannot be"):
            return copy.deepcopy(env)

    return copied
