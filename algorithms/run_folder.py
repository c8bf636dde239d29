"""A run's folder belongs to one run, and to one process at a time."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from marlogue.algorithms.folders import sync_folder
from marlogue.algorithms.log_files import TABLE
from marlogue.algorithms.log_position import log_files
from marlogue.algorithms.run_description import compare

ABOUT = "run.json"
_LOCK = ".lock"


class RunFolderError(ValueError):
    """A folder that this run may not write into; the message says why, and what to do."""


def holds_run(folder: Path) -> bool:
    """Whether a run has left its log or its checkpoints there."""
    return (
        any((folder / name).exists() for name in (ABOUT, TABLE))
        or bool(log_files(folder))
        or any((folder / "checkpoints").glob("step_*"))
    )


def fresh_folder(folder: str | Path) -> Path:
    """The folder, or with the next free number behind its name where it holds a run already."""
    candidate, number = Path(folder), 1
    while holds_run(candidate):
        number += 1
        candidate = candidate.with_name(f"{Path(folder).name}-{number}")
    return candidate


class RunFolder:
    """Makes a folder the place of one run; a context manager.

    Within, no other process can enter it; a process that is killed leaves it free.

    Args:
        logdir: the folder; None for a run without one.
        description: what is trained, kept as ``run.json``.
        resume: what the run goes on from: "auto", a checkpoint's folder or that of its run, or
            None for a new run.
    """

    def __init__(
        self, logdir: Path | None, description: Mapping[str, Any], resume: str | None
    ) -> None:
        self.logdir, self.description, self.resume = logdir, description, resume
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        """Enter it.

        Raises:
            RunFolderError: when it holds another run, or a link to elsewhere, or another process
                is in it.
            ResumeError: when another training is to go on than the one that it holds.
            OSError: when it cannot be made, or written into.
        """
        if self.logdir is None:
            return self
        make_folder(self.logdir)
        refuse_links("logdir", self.logdir)
        self._take(self.logdir)
        try:
            self._refuse_another_run(self.logdir)
            _write(self.logdir / ABOUT, self.description)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _take(self, logdir: Path) -> None:
        lock = FileLock(logdir / _LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise RunFolderError(
                f"logdir ({logdir}) is in use by another process; wait until it ends, or name "
                "another folder."
            ) from None
        except NotImplementedError:
            warnings.warn(
                f"the disk of {logdir} knows no locks: see to it yourself that only one process "
                "uses this folder.",
                stacklevel=3,
            )
        else:
            self._lock = lock

    def _refuse_another_run(self, logdir: Path) -> None:
        if not holds_run(logdir):
            return
        if self.resume is None:
            raise RunFolderError(
                f"logdir ({logdir}) holds a run already; set resume='auto' to go on with it, or "
                "name another folder for a new one (marlogue.algorithms.fresh_folder finds one)."
            )
        if self.resume != "auto" and not _is_inside(Path(self.resume), logdir):
            raise RunFolderError(
                f"logdir ({logdir}) holds another run than the checkpoint ({self.resume}); name a "
                f"new folder, or the one that the checkpoint lies in."
            )
        if not (logdir / ABOUT).exists():
            raise RunFolderError(
                f"logdir ({logdir}) holds the log of something that cannot be resumed: it has no "
                f"{ABOUT}; name another folder."
            )
        self._compare(logdir / ABOUT)

    def _compare(self, about: Path) -> None:
        """Also where no checkpoint is left that could be compared."""
        try:
            saved = json.loads(about.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunFolderError(
                f"{about} is damaged ({error}); name another folder for a new run, and set resume "
                "to a checkpoint in this one to go on with it there."
            ) from error
        if saved.get("trained") != self.description.get("trained"):
            compare(saved, self.description, about.parent)


def make_folder(logdir: Path) -> None:
    """Make a run's folder, or see that it can be written into.

    Raises:
        OSError: when not, with a note of what to do.
    """
    try:
        logdir.mkdir(parents=True, exist_ok=True)
        if not os.access(logdir, os.W_OK | os.X_OK):
            raise PermissionError(13, "it may not be written into", str(logdir))
    except OSError as error:
        error.add_note(
            f"logdir ({logdir}) must be a folder that can be written into; name another one."
        )
        raise


def refuse_links(name: str, folder: Path) -> None:
    """Refuse a folder with a symbolic link in it that leads out of it: what is written through the
    link lands elsewhere. The folder itself may be a link.

    Args:
        name: the argument that names the folder.
        folder: need not exist.

    Raises:
        RunFolderError: names a link, and where it leads.
    """
    inside = Path(os.path.realpath(folder))
    for place, folders, files in os.walk(inside):
        for entry in (Path(place, found) for found in (*folders, *files)):
            if entry.is_symlink() and not _is_within(entry, inside):
                raise RunFolderError(
                    f"{name} ({folder}) holds the link {entry.relative_to(inside)} to "
                    f"{os.readlink(entry)}, through which files elsewhere would be written; put "
                    "what it leads to in its place, or name another folder."
                )


def _is_within(link: Path, inside: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(inside)


def _is_inside(place: Path, logdir: Path) -> bool:
    return place.resolve().is_relative_to(logdir.resolve())


def _write(path: Path, description: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    made = path.with_name(f".{path.name}.new")
    try:
        with open(made, "w", encoding="utf-8") as file:
            json.dump(description, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
        sync_folder(path.parent)
    except OSError as error:
        error.add_note(
            f"logdir ({path.parent}) must be a folder that can be written into: free some space, "
            "make it writable, or name another one."
        )
        raise
