"""The checkpoints of a run: the newest intact one is found, and the oldest ones go."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from marlogue.algorithms.folders import (
    CheckpointError,
    check_folder,
    read_about,
    remove_folder,
    state_of,
    tidy_folder,
    write_folder,
)

__all__ = [
    "CheckpointError",
    "CheckpointStore",
    "check_folder",
    "read_about",
    "step_of",
    "write_folder",
]

_STEP = re.compile(r"step_(\d+)")
_LEFT_OVER = re.compile(r"\.(step_\d+)\.marlogue-\w+")


class CheckpointStore:
    """The checkpoints of a run, in folders named ``step_000000123``.

    Args:
        folder: where they lie; made with the first of them.
        total_limit: how many are kept; None for all.

    Raises:
        ValueError: when ``total_limit`` is not a positive number.
    """

    def __init__(self, folder: Path, total_limit: int | None) -> None:
        if total_limit is not None and total_limit < 1:
            raise ValueError(
                f"total_limit ({total_limit}) must be at least 1, or None to keep all checkpoints."
            )
        self.folder = folder
        self.total_limit = total_limit

    def save(self, step: int, write: Callable[[Path], None], about: Mapping[str, Any]) -> Path:
        """Save a checkpoint of a step, then remove the oldest ones above the limit.

        One of the same step is replaced. Those that are damaged are not counted, and removed with
        the others above the limit; what was not made here is left alone.

        Raises:
            OSError: as :func:`write_folder`. When only the removal fails, that is a warning.
        """
        place = self.folder / f"step_{step:09d}"
        write_folder(place, write, about)
        try:
            self._prune(place)
        except OSError as error:
            warnings.warn(
                f"{place} is saved, but older checkpoints could not be removed ({error}); remove "
                f"them from {self.folder} before the disk is full.",
                stacklevel=2,
            )
        return place

    def newest(self, *, tidy: bool = True) -> Path | None:
        """The checkpoint of the latest step that is intact; None when there is none.

        What is damaged or was not made here is named in a warning and skipped.

        Args:
            tidy: remove what a process that was killed left half-written; only for the one process
                that writes here.
        """
        if not self.folder.is_dir():
            return None
        if tidy:
            self._tidy()
        for entry in sorted(self.folder.iterdir()):
            if not _STEP.fullmatch(entry.name) and not entry.name.startswith("."):
                warnings.warn(f"{entry} is no checkpoint of this run: skipped.", stacklevel=2)
        for place in self.places():
            try:
                check_folder(place)
            except (CheckpointError, OSError) as error:
                warnings.warn(f"{place} is no intact checkpoint: {error} Skipped.", stacklevel=2)
            else:
                return place
        return None

    def places(self) -> list[Path]:
        """All that is named as a checkpoint, intact or not, latest step first."""
        if not self.folder.is_dir():
            return []
        found = [entry for entry in self.folder.iterdir() if _STEP.fullmatch(entry.name)]
        return sorted(found, key=step_of, reverse=True)

    def _tidy(self) -> None:
        with suppress(OSError):  # on a disk that cannot be written it stays as it is
            for entry in list(self.folder.iterdir()):
                if found := _LEFT_OVER.fullmatch(entry.name):
                    tidy_folder(self.folder / found[1])

    def _prune(self, newest: Path) -> None:
        if self.total_limit is None:
            return
        kept = 1  # the newest, which is durable by now
        for place in self.places():
            if place == newest:
                continue
            state = state_of(place)
            if state == "whole" and kept < self.total_limit:
                kept += 1
            elif state != "foreign":
                remove_folder(place)


def step_of(place: Path) -> int:
    """The step that is in a checkpoint's name.

    Raises:
        CheckpointError: when there is none.
    """
    found = _STEP.fullmatch(place.name)
    if found is None:
        raise CheckpointError(f"{place} is not named as a checkpoint; name one such as step_123.")
    return int(found[1])
