"""Datasets: rows by index or as a stream, and the order in which they are taken."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from marlogue.envs.callbacks import noted, shortened

Row = dict[str, Any]


@runtime_checkable
class MapStyle(Protocol):
    """A dataset with a length and an index: a list, `datasets.Dataset`, any sequence."""

    def __len__(self) -> int:
        """The number of rows."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """One row."""
        ...


Dataset = MapStyle | Iterable[Any]


class Rows:
    """Checked, read-only access to a dataset.

    Every row is handed out as a deep copy, so nobody can write into the dataset. A copy of `Rows`
    (of an environment, that is) shares the dataset instead of duplicating it.

    Args:
        dataset: map-style (a list of dicts, `datasets.Dataset`, any sequence), or streaming
            (`datasets.IterableDataset`, or any iterable that can be iterated again).

    Raises:
        TypeError: when it is neither.
        ValueError: when a map-style dataset has no rows.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.source = dataset
        if isinstance(dataset, str | bytes):
            raise TypeError(f"dataset ({dataset!r}) must hold rows, not be a text; load it first")
        if isinstance(dataset, Mapping):
            raise TypeError(
                f"dataset is a mapping with the keys {', '.join(map(repr, list(dataset)[:8]))}; "
                "choose one of its splits, or put a single row into a list"
            )
        if isinstance(dataset, MapStyle):
            self.length: int | None = len(dataset)
            if self.length == 0:
                raise ValueError("dataset is empty; it must have at least one row")
        elif isinstance(dataset, Iterator):
            raise TypeError(
                f"dataset ({type(dataset).__name__}) can be iterated only once; pass a list, or "
                "an object whose __iter__ starts again"
            )
        elif isinstance(dataset, Iterable):
            self.length = None
        else:
            raise TypeError(
                f"dataset ({type(dataset).__name__}) must be a list of dicts, a datasets.Dataset, "
                "a datasets.IterableDataset, or another sequence or iterable of dicts"
            )

    def read(self, index: int) -> Row:
        """A copy of one row of a map-style dataset.

        Raises:
            TypeError: when the index is not an integer, or the row not a dict.
            ValueError: when the index is out of range, or the dataset is a stream.
        """
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise TypeError(f"row ({index!r}) must be an integer")
        index = operator.index(index)
        if self.length is None or not isinstance(self.source, MapStyle):
            raise ValueError(
                f"row ({index}) cannot be chosen in a streaming dataset; leave it out to get the "
                'next row, or give the row itself as options={"item": ...}'
            )
        if not 0 <= index < self.length:
            raise ValueError(f"row ({index}) must be within 0 and {self.length - 1}")
        with noted(f"reading row {index} of the dataset"):
            row = self.source[index]
        return checked_row(row, index)

    def stream(self, start: int = 0) -> Iterator[Row]:
        """Copies of the rows in their own order, from row `start` on.

        Raises:
            TypeError: at a row that is not a dict.
        """
        if self.length is not None:
            for index in range(start, self.length):
                yield self.read(index)
            return
        assert isinstance(self.source, Iterable)
        for index, row in enumerate(islice(iter(self.source), start, None), start):
            yield checked_row(row, index)

    def __deepcopy__(self, memo: dict[int, Any]) -> Rows:
        return self


def checked_row(row: Any, index: int | None) -> Row:
    """A deep copy of a row.

    Raises:
        TypeError: when the row is not a dict.
    """
    if not isinstance(row, Mapping):
        name = "the given item" if index is None else f"row {index} of the dataset"
        raise TypeError(
            f"{name} ({shortened(row)}) must be a dict of its fields, not {type(row).__name__}"
        )
    return copy.deepcopy(dict(row))


class RowOrder:
    """The order in which rows are taken: epoch by epoch, resumable at any row.

    Iterating gives `(row index, row)` for what is left of the current epoch; iterating again
    gives the next epoch. `take` goes on for ever. With `shuffle`, each epoch has an order of its
    own, drawn by `torch.randperm` from one private generator.

    Args:
        dataset: see `Rows`; one that is already a `Rows` is used as it is.
        shuffle: whether the order is drawn; map-style datasets only.
        seed: of the private generator.

    Attributes:
        epoch: the epoch that the next row belongs to, or, right after an epoch's last row, the
            one that has just been played.
        position: rows taken in this epoch.

    Raises:
        ValueError: when a streaming dataset is to be shuffled, or the seed is negative.
    """

    def __init__(self, dataset: Dataset | Rows, *, shuffle: bool = False, seed: int = 0) -> None:
        self.rows = dataset if isinstance(dataset, Rows) else Rows(dataset)
        if shuffle and self.rows.length is None:
            raise ValueError(
                "shuffle (True) needs a dataset with a length; set shuffle=False and shuffle the "
                "stream itself, as in dataset.shuffle(seed=..., buffer_size=...)"
            )
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise TypeError(f"seed ({seed!r}) must be an integer")
        if seed < 0:
            raise ValueError(f"seed ({seed}) must be 0 or more")
        self.shuffle = shuffle
        self.seed = operator.index(seed)
        self.epoch = 0
        self.position = 0
        self._upcoming: Iterator[tuple[int, Row]] | None = None

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        """What is left of the current epoch."""
        while (taken := self._advance()) is not None:
            yield taken

    def take(self) -> tuple[int, Row]:
        """The next row, from the next epoch when this one is over.

        Raises:
            ValueError: when a stream turns out to have no rows.
        """
        taken = self._advance() or self._advance()
        assert taken is not None  # an empty epoch has raised
        return taken

    def _advance(self) -> tuple[int, Row] | None:
        """Take a row of this epoch; None, and on to the next epoch, when there is none left."""
        if self._upcoming is None:
            self._upcoming = self._rest_of_epoch()
        taken = next(self._upcoming, None)
        if taken is not None:
            self.position += 1
            return taken
        if self.position == 0:
            raise ValueError("dataset is empty; it must have at least one row")
        self.epoch, self.position, self._upcoming = self.epoch + 1, 0, None
        return None

    def _rest_of_epoch(self) -> Iterator[tuple[int, Row]]:
        if self.shuffle:
            order = self._permutation()[self.position :]
            return ((index, self.rows.read(index)) for index in order)
        return enumerate(self.rows.stream(self.position), self.position)

    def _permutation(self) -> list[int]:
        """The order of the current epoch, drawn after those of the epochs before it."""
        import torch  # only shuffling needs it, and it is slow to import

        assert self.rows.length is not None
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epoch):
            torch.randperm(self.rows.length, generator=generator)
        order: list[int] = torch.randperm(self.rows.length, generator=generator).tolist()
        return order

    def state_dict(self) -> dict[str, Any]:
        """Where the order stands; plain numbers, fit for JSON."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "length": self.rows.length,
            "epoch": self.epoch,
            "position": self.position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where another order of the same dataset stood; the seed comes along.

        Raises:
            ValueError: when the state belongs to a dataset of another length, or to an order
                that was shuffled where this one is not.
        """
        for name, mine in (("length", self.rows.length), ("shuffle", self.shuffle)):
            if state[name] != mine:
                raise ValueError(
                    f"the saved order has {name} {state[name]}, this one has {name} {mine}; "
                    "resume with the dataset and the settings that it was saved with"
                )
        self.seed = state["seed"]
        self.epoch = state["epoch"]
        self.position = state["position"]
        self._upcoming = None

    def __getstate__(self) -> dict[str, Any]:
        # A running iterator cannot be copied; it is made again from the position.
        return {**self.__dict__, "_upcoming": None}
