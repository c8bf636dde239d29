"""Files that only grow, piece by piece, and outlive a disk that is full, read-only or gone."""

from __future__ import annotations

import base64
import errno
import os
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The most bytes that wait in memory for a file that cannot be written; what comes after is lost.
MOST_WAITING = 2**26


class Trouble:
    """Says once that the files of a folder cannot be written, until they can be again.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, int | None] = {}

    def failed(self, path: Path, error: OSError) -> None:
        """A file could not be written."""
        told = error.errno in self._known.values()
        self._known[path] = error.errno
        if told:
            return
        warnings.warn(
            f"the log in {self.folder} cannot be written ({path.name}: {error.strerror or error}). "
            "The training goes on, and what is missing is kept in memory and written as soon as "
            f"that works again; {self._mend(error.errno)}.",
            stacklevel=2,
        )

    def mended(self, path: Path) -> None:
        """A file could be written."""
        self._known.pop(path, None)

    def _mend(self, number: int | None) -> str:
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return "free some space on its disk"
        if number == errno.ENOENT:
            return f"make the folder {self.folder} again"
        return "make it writable"


class AppendFile:
    """A file to which pieces are appended whole, in order, or not at all.

    A piece that cannot be written waits in memory for the next time that something is written. The
    file is opened for each piece, so that one that was deleted is noticed.

    Args:
        path: the file; made with the first piece.
        trouble: told of what fails.
        room: the most bytes that wait.
    """

    def __init__(self, path: Path, trouble: Trouble, room: int = MOST_WAITING) -> None:
        self.path = path
        self.lost = 0  #: pieces that there was no more room for
        self._trouble = trouble
        self._waiting: deque[bytes] = deque()
        self._room = room

    @property
    def waiting(self) -> int:
        """Pieces that are not on disk yet."""
        return len(self._waiting)

    def append(self, piece: bytes) -> None:
        """Write a piece, or keep it for later."""
        if len(piece) > self._room:
            self.catch_up()
        if len(piece) > self._room:
            self.lost += 1
        else:
            self._waiting.append(piece)
            self._room -= len(piece)
        self.catch_up()

    def catch_up(self) -> None:
        """Write what waits."""
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self._room += len(self._waiting.popleft())
        except OSError as error:
            self._trouble.failed(self.path, error)
        else:
            self._trouble.mended(self.path)

    def state_dict(self) -> dict[str, Any]:
        """The file's size, which is on disk for good, and what waits; fit for JSON."""
        self.catch_up()
        size = 0
        try:
            if self.path.exists():
                with open(self.path, "rb+") as file:
                    os.fsync(file.fileno())
                size = self.path.stat().st_size
        except OSError as error:
            self._trouble.failed(self.path, error)
        waiting = [base64.b64encode(piece).decode() for piece in self._waiting]
        return {"size": size, "waiting": waiting, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what waited; that the file has its size again is up to the caller."""
        self._waiting = deque(base64.b64decode(piece) for piece in state["waiting"])
        self._room -= sum(map(len, self._waiting))
        self.lost = state["lost"]

    def _write(self, piece: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            try:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except BaseException:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
