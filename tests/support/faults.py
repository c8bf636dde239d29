"""Faults at named points: a child process that dies, or fails, at its k-th call to the system."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Calls that change the disk, as far as Python makes them one by one.
CALLS = ("fsync", "rename", "replace", "mkdir", "rmdir", "unlink", "write")


class Faults:
    """Counts the calls of ``os`` named in ``CALLS``, and acts before the one of a number.

    Args:
        act: what happens at that call.
        at: the number of the call, from 1; 0 for none.
        names: the calls that count.
        onwards: it happens at every later one, too.
    """

    def __init__(
        self,
        act: Callable[[], None],
        at: int = 0,
        names: tuple[str, ...] = CALLS,
        *,
        onwards: bool = False,
    ) -> None:
        self.act, self.at, self.names, self.onwards = act, at, names, onwards
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
            if self.count == self.at or (self.onwards and self.count > self.at):
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


def as_nobody(folder: Path, function: Callable[[], object]) -> int:
    """Run as :func:`in_child`, in that folder, as a user who owns nothing: root may write
    everywhere."""

    def child() -> None:
        os.chdir(folder)
        if os.geteuid() == 0:
            os.setuid(65534)
        function()

    return in_child(child)


def put(file: Path, content: bytes, piece: int = 8) -> None:
    """Write a file with many calls that can fail."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    try:
        for start in range(0, len(content), piece):
            os.write(descriptor, content[start : start + piece])
    finally:
        os.close(descriptor)


@contextmanager
def small_disk(place: Path, size: str = "64k") -> Iterator[Path]:
    """A disk of its own, mounted at a folder that is made; the test is skipped where only root can
    do that."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
