"""Where there is no namespace to hold processes: one that finds and ends those of a run.

This module runs inside the weaker sandbox.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER = 1, 22, 36


def prctl(option: int, *values: int) -> None:
    """Ask the kernel to change how it treats this process.

    Raises:
        OSError: it does not.
    """
    import ctypes  # some milliseconds, which not every process has to spend

    libc = ctypes.CDLL(None, use_errno=True)
    rest = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *rest) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def supervise() -> None:
    """Fork. The child returns; the parent stays until the child ends or it gets SIGTERM.

    Then it ends all that has come from the child: orphans are handed to it, as the nearest
    "subreaper". Only Linux has that.
    """
    linux, starter = sys.platform == "linux", os.getppid()
    if linux:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    awaited = {signal.SIGCHLD, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if linux:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # or nobody would see the child close its pipes
    code = None
    while code is None and signal.sigwait(awaited) != signal.SIGTERM:
        code = reap(child)
    os.kill(child, signal.SIGKILL) if code is None else None
    while end_children():
        continue
    # The starter, who would have removed this folder, is gone or going: the signal comes when the
    # thread that started us ends, and others of a killed process may last a moment longer.
    if code is None or os.getppid() != starter:
        import shutil

        shutil.rmtree(os.getcwd(), ignore_errors=True)
    os._exit(128 + signal.SIGKILL if code is None else code)


def reap(child: int) -> int | None:
    """Collect whoever has ended; the exit code (128 + n: signal n) if the child was among them."""
    found = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return found
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                found = 128 - code if code < 0 else code
    except ChildProcessError:
        return found


def end_children() -> bool:
    """Kill the children that there are, and wait for one; whether there was one."""
    for pid in children():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def children() -> list[int]:
    """Whose parent we are, as the kernel tells."""
    found = []
    me = str(os.getpid())
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                # "pid (name) state parent ..."; the name may hold anything, so from its end.
                parent = file.read().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if parent == me:
            found.append(int(name))
    return found
