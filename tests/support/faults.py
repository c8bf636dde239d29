"""Faults at named points: a child process that dies, or fails, at its k-th call to the system."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Calls that change the disk, as far as Python makes them one by one.
CALLS = ("fsync", "rename", "replace", "mkdir", "rmdir", "unlink", "write")


class Faults:
    """Counts the calls of ``os`` named in ``CALLS``, and acts before the one of a number.

    Args:
        act: what happens at that call.
        at: the number of the call, from 1; 0 for none.
        names: the calls that count.
    """

    def __init__(
        self, act: Callable[[], None], at: int = 0, names: tuple[str, ...] = CALLS
    ) -> None:
        self.act, self.at, self.names = act, at, names
        self.count = 0

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Within, the calls are counted."""
        originals = {name: getattr(os, name) for name in self.names}
        for name, original in originals.items():
            setattr(os, name, self._counted(original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                self.act()
            return original(*arguments, **named)

        return call


def kill() -> None:
    """As ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def disk_full() -> None:
    """As a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def in_child(function: Callable[[], object]) -> int:
    """Run in a forked process.

    Returns:
        Its exit code: 0, 1 after an exception, or minus the signal that ended it.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        function()
    except BaseException:  # the child may not return into the tests
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def put(file: Path, content: bytes, piece: int = 8) -> None:
    """Write a file with many calls that can fail."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    try:
        for start in range(0, len(content), piece):
            os.write(descriptor, content[start : start + piece])
    finally:
        os.close(descriptor)
