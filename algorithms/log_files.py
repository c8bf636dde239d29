"""The files of a log: rows as JSON, the same as a table, and TensorBoard's events.

What they hold survives a kill at any moment and a disk that is full for a while, and a resumed run
goes on in the same files; see :class:`marlogue.algorithms.append_file.AppendFile`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from numbers import Number
from pathlib import Path
from typing import Any, TextIO

from stable_baselines3.common.logger import (
    HParam,
    HumanOutputFormat,
    Image,
    KVWriter,
    filter_excluded_keys,
)
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams, image, scalar, text
from typing_extensions import override

from marlogue.algorithms.append_file import AppendFile, Trouble

ROWS, TABLE, EVENTS = "progress.json", "progress.csv", "events.out.tfevents."
_WIDTH = 60
Excluded = dict[str, tuple[str, ...]]


class PrintedTable(HumanOutputFormat):
    """The table of figures on the terminal; a terminal that is gone does not stop the training.

    Args:
        stream: where it is printed.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, max_length=_WIDTH)
        self._gone = False

    @override
    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        if self._gone:
            return
        try:
            super().write(key_values, key_excluded, step)
        except OSError as error:
            self._gone = True
            warnings.warn(f"no more tables are printed: {error}.", stacklevel=2)


class JsonRows(KVWriter):
    """A line of JSON for each row.

    Args:
        file: where they go.
    """

    def __init__(self, file: AppendFile) -> None:
        self.file = file

    @override
    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        row = _plain(key_values, key_excluded, "json")
        self.file.append((json.dumps(row) + "\n").encode())

    @override
    def close(self) -> None:
        self.file.catch_up()


class CsvTable(KVWriter):
    """The same rows as a table, with a column for each figure that there has been.

    A figure that is new gives all rows another column, so the table is then made anew, out of the
    rows in the JSON file; likewise after a failure, and when a run is resumed.

    Args:
        path: the table.
        rows: the JSON file.
        trouble: told of what fails.
    """

    def __init__(self, path: Path, rows: AppendFile, trouble: Trouble) -> None:
        self.path, self.rows, self._trouble = path, rows, trouble
        self._file = AppendFile(path, trouble)
        self._columns: dict[str, None] = {}
        self._whole = False  # the table has every row
        if rows.path.exists():
            self._make_anew()

    @override
    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        row = _plain(key_values, key_excluded, "csv")
        if self._whole and row.keys() <= self._columns.keys() and not self.rows.waiting:
            self._file.append(self._line(row))
            self._whole = not self._file.waiting
        else:
            self._make_anew()

    @override
    def close(self) -> None:
        if not self._whole:
            self._make_anew()

    def _make_anew(self) -> None:
        self._whole = False
        if self.rows.waiting or not self.rows.path.exists():
            return  # its turn comes when the rows are there
        try:
            self._columns = dict.fromkeys(key for row in self._read() for key in row)
            made = self.path.with_name(f".{self.path.name}.new")
            with open(made, "wb") as file:
                file.write(self._line({key: key for key in self._columns}))
                file.writelines(self._line(row) for row in self._read())
            os.replace(made, self.path)
        except OSError as error:
            self._trouble.failed(self.path, error)
            return
        self._file = AppendFile(self.path, self._trouble)
        self._trouble.mended(self.path)
        self._whole = True

    def _read(self) -> Iterator[dict[str, Any]]:
        with open(self.rows.path, encoding="utf-8") as file:
            for line in file:
                with suppress(ValueError):  # somebody has been at the file
                    yield json.loads(line)

    def _line(self, row: Mapping[str, Any]) -> bytes:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow([row.get(key, "") for key in self._columns])
        return line.getvalue().encode()


class TensorBoardEvents(KVWriter):
    """Numbers, texts and pictures for TensorBoard, in one file.

    A writer of TensorBoard's own begins another file each time, and cannot go on after a failure.

    Args:
        file: where they go.
    """

    def __init__(self, file: AppendFile) -> None:
        self.file = file

    def begin(self, config: Mapping[str, Any]) -> None:
        """What stands at the beginning of the file: a mark of its kind, and the
        hyperparameters."""
        shown = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in config.items()
        }
        first = Event(wall_time=time.time(), file_version="brain.Event:2")
        self.file.append(_record(first))
        self.write({"hparams": HParam(shown, {"team/turn_1/reward_mean": 0.0})}, {"hparams": ()})

    @override
    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        shown = filter_excluded_keys(key_values, key_excluded, "tensorboard")
        now = time.time()
        events = (
            Event(wall_time=now, step=step, summary=summary)
            for key in sorted(shown)
            for summary in _summaries(key, shown[key])
        )
        self.file.append(b"".join(map(_record, events)))

    @override
    def close(self) -> None:
        self.file.catch_up()


def new_events_name() -> str:
    """A name as TensorBoard's own writers give it; files are read in the order of their names."""
    return f"{EVENTS}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"


def _plain(key_values: dict[str, Any], excluded: Excluded, form: str) -> dict[str, Any]:
    shown = filter_excluded_keys(key_values, excluded, form)
    return {key: value.item() if hasattr(value, "item") else value for key, value in shown.items()}


def _summaries(key: str, value: Any) -> list[Summary]:
    if isinstance(value, HParam):
        return list(hparams(value.hparam_dict, value.metric_dict))
    if isinstance(value, Image):
        return [image(key, value.image, dataformats=value.dataformats)]
    if isinstance(value, str):
        return [text(key, value)]
    if isinstance(value, Number):
        return [scalar(key, value)]
    raise TypeError(f"{key} ({type(value).__name__}) must be a number, text, or picture.")


def _record(event: Event) -> bytes:
    written = io.BytesIO()
    RecordWriter(written).write(event.SerializeToString())
    return written.getvalue()
