"""A process in the sandbox as its starter sees it: pipes, messages, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from marlogue.envs.sandbox_codec import COUNT
from marlogue.envs.sandbox_types import Status
from marlogue.envs.sandbox_worker import bundle

# How long the end of a process that was told to end is waited for, before it is made to.
KILL_SECONDS = 5.0
# The longest message of a process about itself.
STATUS_BYTES = 64 * 1024


class SandboxUnavailable(RuntimeError):  # noqa: N818
    """There is no sandbox here, or it stopped working; the message says what to do."""


class Stopped(Exception):  # noqa: N818
    """A run that its limits ended."""

    def __init__(self, status: Status, message: str):
        super().__init__(message)
        self.status, self.message = status, message


class Started(Protocol):
    """A process that an isolation has started, with pipes for stdin, stdout and stderr."""

    popen: subprocess.Popen[bytes]

    def kill(self, *, by_force: bool) -> None:
        """End it with all that it has started; by force where that did not help."""

    def clean(self) -> None:
        """Remove what was made for it, after its end."""


class Isolation(Protocol):
    """A way to keep a process apart."""

    def start(self, pass_fds: Sequence[int]) -> Started:
        """Start the interpreter that reads what to do from stdin."""

    def job(self) -> dict[str, Any]:
        """What the process has to know in order to limit itself."""


class Process:
    """One process in the sandbox, with its status pipe.

    Args:
        isolation: starts it.
        job: what it has to do, see `sandbox_inside`.
        pipes: file descriptors that it inherits.
    """

    def __init__(self, isolation: Isolation, job: Mapping[str, Any], pipes: Sequence[int]):
        self.status_pipe, write = os.pipe()
        self.exit_code: int | None = None
        self.begin = time.monotonic()
        self.seconds = 0.0
        self.status = bytearray()
        self._lock = threading.Lock()
        self._ended = False
        told = {**job, **isolation.job(), "status": write, "status_bytes": STATUS_BYTES}
        self.unsent = memoryview(bundle(told))
        try:
            self.started = isolation.start([write, *pipes])
        except BaseException:
            os.close(self.status_pipe)
            raise
        finally:
            os.close(write)
        self.popen = self.started.popen
        self.stdin, self.stdout, self.stderr = (
            stream.fileno()
            for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr)
            if stream is not None
        )
        for pipe in (self.stdin, self.stdout, self.stderr, self.status_pipe):
            os.set_blocking(pipe, False)

    def message(self) -> str | None:
        """Take the next whole message out of what has come on the status pipe.

        Raises:
            Stopped: it is longer than one may be.
        """
        if len(self.status) < COUNT.size:
            return None
        (size,) = COUNT.unpack(self.status[: COUNT.size])
        if size > STATUS_BYTES:
            raise Stopped("violation", "the process broke the protocol: an endless message")
        end = COUNT.size + size
        if len(self.status) < end:
            return None
        text = self.status[COUNT.size : end].decode("utf-8", "replace")
        del self.status[:end]
        return text

    def send(self) -> bool:
        """Send the next part of the job; whether that was the last."""
        try:
            self.unsent = self.unsent[os.write(self.stdin, self.unsent) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # it has ended; why is seen elsewhere
            self.unsent = memoryview(b"")
        return not self.unsent

    def close_stdin(self) -> None:
        """Close the pipe that the job went through: whoever reads on sees its end."""
        if self.popen.stdin is not None:
            close_quietly(self.popen.stdin.close)

    def reap(self, flags: int = 0) -> bool:
        """Wait for the end; note the time, and the exit code (128 + n: killed by signal n)."""
        with self._lock:
            if self._ended:
                return True
            try:
                pid, status = os.waitpid(self.popen.pid, flags)
            except ChildProcessError:  # another part of the program has waited for it
                self._ended, self.popen.returncode = True, 0
                return True
            if pid == 0:
                return False
            code = os.waitstatus_to_exitcode(status)
            self._ended, self.popen.returncode = True, code
            self.exit_code = 128 - code if code < 0 else code
            self.seconds = time.monotonic() - self.begin
            return True

    def kill(self, *, by_force: bool = False) -> None:
        """Kill the whole tree, from any thread, if it has not ended."""
        with self._lock:
            if not self._ended:
                self.started.kill(by_force=by_force)

    def finish(self) -> None:
        """Kill it and wait for its end."""
        self.kill()
        until, pause = time.monotonic() + KILL_SECONDS, 0.0005
        while not self.reap(os.WNOHANG):
            if time.monotonic() > until:
                self.kill(by_force=True)
                self.reap()
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def close(self) -> None:
        """Close the pipes and clean up, after the end."""
        self.close_stdin()
        for stream in (self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()
        os.close(self.status_pipe)
        self.started.clean()


def close_quietly(close: Callable[[], None]) -> None:
    """Close a pipe whose reader may be gone."""
    try:
        close()
    except OSError:
        return


def how_it_ended(process: Process, who: str, cpu_limit: float) -> tuple[Status, str]:
    """Status and message for a process that ended before it should.

    Raises:
        SandboxUnavailable: nobody knows.
    """
    if process.exit_code is None:
        raise SandboxUnavailable(
            "the exit code of a sandboxed process was lost: another part of this program waited "
            "for it; let it wait for its own children only, by their ids"
        )
    number = max(process.exit_code - 128, 0)
    # Code that ignores the first signal is killed a second later.
    if number == signal.SIGXCPU or (number == signal.SIGKILL and process.seconds >= cpu_limit):
        return "timeout", f"{who} took more than {cpu_limit:g} seconds of CPU time"
    if number == signal.SIGSYS:
        return "violation", f"{who} made a system call that is forbidden"
    if number == signal.SIGXFSZ:
        return "violation", f"{who} wrote a file over the limit"
    if number == signal.SIGKILL:
        return "memory", f"{who} was killed, by the system for want of memory, or by itself"
    if number:
        return "error", f"{who} was ended by signal {number}"
    return "error", f"{who} ended with exit code {process.exit_code} before it was done"
