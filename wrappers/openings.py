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


def openings(
    copies: Copies,
    indices: Sequence[int],
    seed: int | None,
    options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
) -> list[Opening]:
    """Plan the next episodes of some copies: together they go through the rows, or the seeds.

    Args:
        copies: the copies.
        indices: which of them begin an episode.
        seed: one for all: the order of the rows begins anew, the episodes play the first rows of
            it, and copy i, with whatever is random in its views, is seeded with `seed + i`. None
            goes on in the order of rows, or of seeds.
        options: one for all, or one for each of `indices`.
    """
    each = options if isinstance(options, Sequence) else [options] * len(indices)
    planned = []
    for place, (index, own) in enumerate(zip(indices, each, strict=True)):
        own_seed, passed = copies.plan(None if place else seed, own)
        planned.append(Opening(index, own_seed if seed is None else seed + index, passed))
    return planned
