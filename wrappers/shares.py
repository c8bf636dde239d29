"""Copies of an environment in several processes that divide its episodes among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.copies import Copies
from marlogue.envs.task import whole_number


class Share:
    """One of several shares of an environment's episodes, and copies to play them with.

    Around a `TextEnv`, share i of n plays the i-th episode and every n-th after that, so that all
    shares together play what one environment would have played. Any other environment is seeded,
    wherever the caller does not do it, with i, i + n, i + 2n, ...; after a seed of the caller, who
    gives share i `seed + i`, with every n-th that follows it.

    Args:
        env: the environment, of which deep copies are made, or a function that makes it.
        index: i, counted from 0.
        shares: n.

    Raises:
        TypeError: when `env` is neither, or `index` or `shares` is no integer.
        ValueError: when not 0 <= index < shares.
    """

    def __init__(
        self, env: ParallelEnv | Callable[[], ParallelEnv], index: int = 0, shares: int = 1
    ) -> None:
        self.shares = whole_number("shares", shares)
        self.index = whole_number("index", index, 0)
        if self.index >= self.shares:
            raise ValueError(f"index ({index}) must be less than shares ({shares})")
        self.copies = Copies(env)
        self._made = 0
        self._skip = self.index

    def make(self) -> ParallelEnv:
        """The next copy; reset it with what `plan` returns."""
        self._made += 1
        self.copies.grow(self._made)
        return self.copies[self._made - 1]

    def plan(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[int | None, dict[str, Any] | None]:
        """The seed and options of a reset, of any of the copies, that begins the next episode.

        Args:
            seed: begins the order of rows anew.
            options: passed on. A row or item chosen by them takes no turn.
        """
        if not self.copies.has_rows and seed is not None:
            self._skip = self.shares - 1
            return self.copies.plan(seed, options)
        if self.copies.has_rows and {"row", "item"} & set(options or {}):
            return self.copies.plan(seed, options)
        skipped = self.index if seed is not None else self._skip
        self._skip = self.shares - 1
        planned = self.copies.plan(seed, options)
        for _ in range(skipped):
            later, options_of_later = self.copies.plan(None, options)
            planned = (later if seed is None else seed), options_of_later
        return planned
