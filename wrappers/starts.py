"""How the episodes of a text environment begin, for libraries that keep a data set of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.callbacks import shortened
from marlogue.envs.copies import Copies
from marlogue.envs.task import whole_number
from marlogue.envs.text_env import text_env_inside


class Starts(NamedTuple):
    """The episodes that there are.

    Fields:
        kind: `"row"` or `"seed"`.
        numbers: of the rows, or the seeds.
    """

    kind: str
    numbers: Sequence[int]


def number_of_rows(env: ParallelEnv) -> int:
    """The number of rows of the `TextEnv` inside; 0 where there is none.

    Raises:
        ValueError: when they are streamed, so that none can be asked for by its number.
    """
    inner = text_env_inside(env)
    if inner is None:
        return 0
    length = inner.task.rows.length
    if length is None:
        raise ValueError(
            f"the dataset of {inner} ({type(inner.dataset).__name__}) must have a length, since "
            "rows are asked for by their numbers; pass a list, or a datasets.Dataset"
        )
    return length


def starts(env: ParallelEnv, seeds: Iterable[int] | None) -> Starts:
    """One episode per seed, or where there are none, per row.

    Raises:
        TypeError: when `seeds` is not a collection of integers.
        ValueError: when it is empty, or a seed negative; without seeds, when the environment has
            no rows that can be counted.
    """
    given: Any = seeds
    if given is not None:
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise TypeError(f"seeds ({shortened(given)}) must be integers, such as range(100)")
        numbers = [whole_number(f"seeds[{k}]", seed, 0) for k, seed in enumerate(given)]
        if not numbers:
            raise ValueError("seeds (none) must hold a seed; set seeds=range(100), say")
        return Starts("seed", numbers)
    count = number_of_rows(env)
    if not count:
        raise ValueError(
            f"seeds (None) must be given for an environment without rows ({env}); set "
            "seeds=range(100) for a hundred different episodes"
        )
    return Starts("row", range(count))


def first_prompts(
    env: ParallelEnv, begun: Starts
) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
    """Begin each episode in a copy: `{kind: number}`, and agent to what it is shown first."""
    copies = Copies(env)
    for number in begun.numbers:
        options = {"row": number} if begun.kind == "row" else None
        seed = number if begun.kind == "seed" else None
        shown, _ = copies.reset(0, *copies.plan(seed, options))
        yield {begun.kind: number}, dict(shown)
