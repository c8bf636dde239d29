"""How episodes that share one environment definition begin when many of them are reset at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from marlogue.envs.copies import Copies


class Opening(NamedTuple):
    """The arguments of the reset of a copy.

    Fields:
        copy: which copy.
        seed: its seed, or None.
        options: its options, or None.
    """

    copy: int
    seed: int | None
    options: dict[str, Any] | None


class Openings:
    """Plans episodes of copies so that together they go through the rows, or the seeds.

    Args:
        copies: the copies, as many as episodes are played side by side.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._next_seed: int | None = None

    def plan(
        self,
        indices: Sequence[int],
        seed: int | None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[Opening]:
        """Plan the next episode of some copies.

        Args:
            indices: which of them.
            seed: one for all: the order of the rows begins anew, the episodes play the first rows
                of it, and copy i, with whatever is random in its views, is seeded with `seed + i`.
                None goes on in the order of rows, or of seeds.
            options: one for all, or one for each of `indices`.
        """
        each = options if isinstance(options, Sequence) else [options] * len(indices)
        if seed is not None:
            self._next_seed = seed + len(self._copies)
        planned = []
        for place, (index, own) in enumerate(zip(indices, each, strict=True)):
            own_seed, passed = self._copies.plan(None if place else seed, own)
            if seed is not None:
                own_seed = seed + index
            elif own_seed is not None and self._next_seed is not None:
                own_seed, self._next_seed = self._next_seed, self._next_seed + 1
            planned.append(Opening(index, own_seed, passed))
        return planned

    def plan_each(
        self, seeds: Mapping[int, int | None], options: Mapping[str, Any] | None = None
    ) -> list[Opening]:
        """Plan the next episode of some copies, each with a seed of its own.

        Args:
            seeds: copy to seed. Each seed begins the order of the rows anew, so that copies with
                the same seed play the same row.
            options: one for all.
        """
        given = [seed for seed in seeds.values() if seed is not None]
        if given:
            self._next_seed = max(given) + 1
        return [
            Opening(index, *self._copies.plan(seed, options)) for index, seed in seeds.items()
        ]
