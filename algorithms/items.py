"""Training items: which episodes are started, in which order, and when an epoch ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import Any, TypeAlias

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.algorithms.collect import Item
from marlogue.algorithms.streams import RESET, derived_seed
from marlogue.envs import RowOrder, Start
from marlogue.envs.text_env import text_env_inside

EnvOrFactory: TypeAlias = ParallelEnv | Callable[[], ParallelEnv]


class Items:
    """The items of a run.

    With a text environment of ours an item is a dataset row. Any other environment has no rows:
    there an item is a seed for ``reset``, and the run is as long as ``max_steps`` says.

    Args:
        env: the environment.
        epochs: passes over the dataset.
        max_steps: items of the run; overrides ``epochs``, the dataset is repeated as needed.
        shuffle: take rows in a seeded order.
        seed: of the order, or of the seeds.

    Raises:
        ValueError: when the length of the run would be unknown.
    """

    def __init__(
        self, env: EnvOrFactory, *, epochs: int, max_steps: int | None, shuffle: bool, seed: int
    ) -> None:
        inner = text_env_inside(env)
        self._order: RowOrder | None = None
        if inner is not None:
            self._order = RowOrder(inner.task.rows, shuffle=shuffle, seed=seed)
        elif max_steps is None:
            raise ValueError(
                "max_steps (None) must be given with an environment that has no dataset; set it "
                "to the number of episodes to start."
            )
        self._epochs = epochs
        self._max_steps = max_steps
        self._seed = seed
        self.taken = 0

    @property
    def total(self) -> int | None:
        """Items of the whole run; None for a stream."""
        if self._max_steps is not None:
            return self._max_steps
        assert self._order is not None
        length = self._order.rows.length
        return None if length is None else length * self._epochs

    def epochs(self) -> Iterator[Iterator[Item]]:
        """The epochs of the run, each an iterator over its items. Take an epoch's items before
        the next epoch."""
        for _ in count() if self._max_steps is not None else range(self.epoch, self._epochs):
            if self.over:
                return
            yield self._epoch()

    @property
    def epoch(self) -> int:
        """The epoch of the next item, as far as it is known: one that has been played to its end
        counts as over when another item was asked for."""
        return 0 if self._order is None else self._order.epoch

    @property
    def over(self) -> bool:
        """Whether ``max_steps`` items have been taken."""
        return self._left == 0

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands; fit for JSON."""
        order = None if self._order is None else self._order.state_dict()
        return {"taken": self.taken, "order": order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where other items of the same environment stood.

        Raises:
            ValueError: when they were in another order, or of other data.
        """
        if self._order is not None:
            self._order.load_state_dict(state["order"])
        self.taken = state["taken"]

    @property
    def _left(self) -> int | None:
        # A run that goes on with fewer of them than it has taken is over.
        return None if self._max_steps is None else max(0, self._max_steps - self.taken)

    def _epoch(self) -> Iterator[Item]:
        for start in islice(self._starts(), self._left):
            item = Item(self.taken, start)
            self.taken += 1
            yield item

    def _starts(self) -> Iterator[Start]:
        if self._order is None:
            yield from (Start(seed=derived_seed(self._seed, RESET, k)) for k in count(self.taken))
            return
        streams = self._order.rows.length is None
        for index, row in self._order:
            yield Start(options={"row": index, "item": row} if streams else {"row": index})


def first_items(env: EnvOrFactory, most: int, seed: int) -> list[Item]:
    """The first rows (or, without a dataset, seeds) of an environment, for evaluation."""
    limit = max(most, 1) if text_env_inside(env) is None else None
    items = Items(env, epochs=1, max_steps=limit, shuffle=False, seed=seed)
    return list(islice(next(items.epochs()), most))
