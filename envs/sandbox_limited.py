"""The weaker way to keep a process apart: limits, an environment and a folder of its own."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from marlogue.envs.sandbox_types import Limits
from marlogue.envs.sandbox_worker import OPTIONS, START

OPEN_FILES = 64


def rlimits(limits: Limits) -> list[tuple[str, int, int]]:
    """Name, soft and hard value of each limit that a process puts on itself."""
    cpu = math.ceil(limits.cpu_seconds)
    both = {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": OPEN_FILES,
    }
    # At the soft limit comes a signal that can be caught, a second later one that cannot.
    return [("RLIMIT_CPU", cpu, cpu + 1), *((name, size, size) for name, size in both.items())]


def interpreter() -> Path:
    """The interpreter itself, not that of a virtual environment, which is a link to it."""
    base: str = getattr(sys, "_base_executable", "") or sys.executable
    return Path(base).resolve()


class LimitedProcess:
    """A supervisor with the process that it has started, and the folder that they are in."""

    def __init__(self, popen: subprocess.Popen[bytes], folder: Path):
        self.popen, self.folder = popen, folder

    def kill(self, *, by_force: bool) -> None:
        """Ask the supervisor, which finds the processes that left the group; or kill the group."""
        if by_force:
            self._kill_group()
        else:
            self.popen.send_signal(signal.SIGTERM)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def clean(self) -> None:
        """Remove the folder, and processes that are left where the supervisor was killed."""
        self._kill_group()
        remove_folder(self.folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder whose contents may have been made hard to remove."""
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


class Limited:
    """Processes with limits only; see `Sandbox` for what that does not do."""

    def __init__(self, limits: Limits, imports_from: Sequence[Path]):
        self.limits, self.imports_from = limits, [str(path) for path in imports_from]

    def job(self) -> dict[str, Any]:
        """What the process does to itself."""
        return {
            "rlimits": rlimits(self.limits),
            "imports_from": self.imports_from,
            "supervise": True,
            "uid": None,
            "filter": None,
        }

    def start(self, pass_fds: Sequence[int]) -> LimitedProcess:
        """Start the interpreter in an empty folder."""
        folder = Path(tempfile.mkdtemp(prefix=f"marlogue-sandbox-{os.getpid()}-"))
        try:
            popen = subprocess.Popen(
                [str(interpreter()), *OPTIONS, "-c", START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=pass_fds,
                env={"PYTHONHASHSEED": "0"},
                cwd=folder,
                start_new_session=True,
            )
        except BaseException:
            remove_folder(folder)
            raise
        return LimitedProcess(popen, folder)
