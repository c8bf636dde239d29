"""Datasets and environments from a configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.cli.errors import UsageError, unknown
from marlogue.cli.lookup import Named, call, find
from marlogue.envs import NUMERIC_TASKS, TASKS, TextEnv

Rows = str | list[int] | None

_BUILDERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass
class EnvSource(Named):
    """An environment.

    Args:
        name: one of the tasks, as in story_length_v0 (AAC: spread_v0), or the dotted path of a
            function or class that makes an environment.
        kwargs: its arguments.
        rows: which of the dataset's rows it plays (not for AAC): a slice, as in "0:24" or "24:",
            or a list of row numbers; null for all.
    """

    rows: Rows = None


@dataclass
class DataSource:
    """A dataset.

    Args:
        path: a file (.json, .jsonl, .csv, .parquet), a folder, or a name on the hub, for
            datasets.load_dataset.
        name: instead of path, the dotted path of a function that returns the rows.
        split: which split is loaded from path.
        kwargs: more arguments of datasets.load_dataset, or those of the function.
        rows: which rows are used: a slice, as in "0:24", or a list of row numbers; null for all.
    """

    path: str | None = None
    name: str | None = None
    split: str = "train"
    kwargs: dict[str, Any] = field(default_factory=dict)
    rows: Rows = None


@dataclass(frozen=True)
class EnvMaker:
    """Makes the environment that a configuration names, a new one at each call, also in other
    processes.

    Args:
        name: one of the numeric tasks, or the dotted path of a function or class.
        kwargs: its arguments; those of a call come on top.
        key: the configuration's key, for messages.
    """

    name: str
    kwargs: Mapping[str, Any]
    key: str

    def __call__(self, **kwargs: Any) -> ParallelEnv:
        """The environment.

        Raises:
            UsageError: when it cannot be found, or takes no such arguments.
        """
        factory = _factory(self.name, self.key, NUMERIC_TASKS)
        return _made(factory, {**self.kwargs, **kwargs}, self.key)


def env_maker(source: str | EnvSource | None, key: str) -> EnvMaker | None:
    """What makes the numeric environment that a configuration names.

    Raises:
        UsageError: when there is no such environment, or rows are asked of it.
    """
    source = EnvSource(source) if isinstance(source, str) else source
    if source is None:
        return None
    if source.rows is not None:
        raise UsageError(f"{key}.rows needs an environment with a dataset; leave it out for aac")
    _factory(source.name, key, NUMERIC_TASKS)
    return EnvMaker(source.name, source.kwargs, key)


def make_env(source: str | EnvSource | None, key: str) -> ParallelEnv | None:
    """The environment that a configuration names.

    Raises:
        UsageError: when it cannot be found or made, or rows are asked of one that has none.
    """
    if source is None:
        return None
    if isinstance(source, str):
        source = EnvSource(source)
    factory = _factory(source.name, key, TASKS)
    env = _made(factory, source.kwargs, key)
    if source.rows is None:
        return env
    if not isinstance(env, TextEnv):
        raise UsageError(f"{key}.rows needs an environment with a dataset (a TextEnv)")
    chosen = pick_rows(env.dataset, source.rows, f"{key}.rows")
    return _made(factory, {**source.kwargs, "dataset": chosen}, key)


def load_rows(source: str | DataSource | None, key: str) -> Any:
    """The dataset that a configuration names.

    Raises:
        UsageError: when it cannot be found or loaded.
    """
    if source is None:
        return None
    if isinstance(source, str):
        source = DataSource(source)
    if (source.path is None) == (source.name is None):
        raise UsageError(f"{key} must have either path or name")
    if source.name is not None:
        rows = call(find(source.name, f"{key}.name"), source.kwargs, key)
    else:
        assert source.path is not None
        rows = _load(source.path, source, key)
    return rows if source.rows is None else pick_rows(rows, source.rows, f"{key}.rows")


def pick_rows(dataset: Any, rows: str | Sequence[int], key: str) -> Any:
    """Some rows of a dataset, in the order asked for.

    Raises:
        UsageError: when ``rows`` cannot be read, or chooses none.
    """
    if isinstance(rows, str):
        wanted = re.fullmatch(r"(\d*):(\d*)", re.sub(r"[\s\"']", "", rows))
        if wanted is None:
            raise UsageError(f"{key} ({rows}) must be a slice, as in 0:24 or 24:, or a list")
        start, stop = (int(number) if number else None for number in wanted.groups())
        if not hasattr(dataset, "__len__"):
            skipped = dataset.skip(start or 0)
            return skipped if stop is None else skipped.take(stop - (start or 0))
        numbers: Sequence[int] = range(*slice(start, stop).indices(len(dataset)))
    else:
        numbers = rows
        if not hasattr(dataset, "__len__"):
            raise UsageError(f"{key} ({rows}) must be a slice: this dataset is a stream")
    count = len(dataset)
    if not numbers or any(not 0 <= number < count for number in numbers):
        raise UsageError(f"{key} ({rows}) must choose rows that are there: 0 to {count - 1}")
    if hasattr(dataset, "select"):
        return dataset.select(list(numbers))
    return [dataset[number] for number in numbers]


def _factory(name: str, key: str, tasks: Mapping[str, Callable[..., Any]]) -> Any:
    if name in tasks:
        return tasks[name]
    if name in TASKS:
        raise UsageError(f"{key} ({name}) is a task of texts; set algorithm: maac or iac")
    if name in NUMERIC_TASKS:
        raise UsageError(f"{key} ({name}) is a task of vectors; set algorithm: aac")
    if "." not in name:
        raise unknown(f"{key}: the environment", name, tasks)
    return find(name, key)


def _made(factory: Any, kwargs: Mapping[str, Any], key: str) -> ParallelEnv:
    try:
        env = call(factory, kwargs, key)
    except TypeError as error:
        misspelt = _misspelt(error, kwargs, key)
        if misspelt is None:
            raise
        raise misspelt from None
    if not isinstance(env, ParallelEnv):
        raise UsageError(
            f"{key} ({getattr(factory, '__name__', factory)}) made a {type(env).__name__}; it must "
            "make a PettingZoo ParallelEnv"
        )
    return env


def _misspelt(error: TypeError, kwargs: Mapping[str, Any], key: str) -> UsageError | None:
    """The error about an argument that a factory passed on to what does not know it, so that the
    factory's own signature does not tell; None when the error is another one."""
    said = re.search(
        r"(\w+)(\.__init__)?\(\) got an unexpected keyword argument '(\w+)'", str(error)
    )
    if said is None or said[3] not in kwargs:
        return None
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = None if trace is None else trace.tb_frame
    names = {} if frame is None else {**frame.f_globals, **frame.f_locals}
    taker = names.get(said[1])
    known = inspect.signature(taker).parameters if callable(taker) else {}
    if known:
        return unknown(f"{key}.kwargs: the argument", said[3], known)
    return UsageError(f"{key}.kwargs: the argument {said[3]} is unknown ({error})")


def _load(path: str, source: DataSource, key: str) -> Any:
    import datasets  # type: ignore[import-untyped]

    datasets.disable_progress_bars()
    builder = _BUILDERS.get(Path(path).suffix.lower())
    try:
        if builder is None:
            return datasets.load_dataset(path, split=source.split, **source.kwargs)
        if not Path(path).is_file():
            raise UsageError(f"{key} ({path}) must be a file that exists; there is none")
        return datasets.load_dataset(builder, data_files=path, split=source.split, **source.kwargs)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"{key} ({path}) could not be loaded: {error}") from error
