"""A process in the sandbox as its starter sees it: pipes, limits in time and output, its end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from marlogue.envs.sandbox_codec import COUNT
from marlogue.envs.sandbox_worker import bundle

# How long a process may take until it is ready, on a machine under heavy load.
START_SECONDS = 60.0
KILL_SECONDS = 5.0
# The longest text that a process tells of itself.
STATUS_BYTES = 64 * 1024


class SandboxUnavailable(RuntimeError):  # noqa: N818
    """There is no sandbox here, or it stopped working; the message says what to do."""


class Stopped(Exception):  # noqa: N818
    """A run that its limits ended."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status, self.message = status, message


class Pipe:
    """A pipe whose ends are closed at the end of a `with`, or before."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self._open = [self.read, self.write]

    def close_read(self) -> None:
        """Close the end that is read from."""
        self._close(self.read)

    def close_write(self) -> None:
        """Close the end that is written to."""
        self._close(self.write)

    def _close(self, end: int) -> None:
        self._open.remove(end)
        os.close(end)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        for end in list(self._open):
            self._close(end)


class Started(Protocol):
    """A process that an isolation has started, with pipes for stdin, stdout and stderr."""

    popen: subprocess.Popen[bytes]

    def kill(self, patient: bool) -> None:
        """Kill it with all that it has started; not patient: by the bluntest means."""

    def clean(self) -> None:
        """Remove what was made for it, after its end."""


class Isolation(Protocol):
    """A way to keep a process apart."""

    def start(self, pass_fds: Sequence[int]) -> Started:
        """Start the interpreter that reads what to do from stdin."""

    def job(self) -> dict[str, Any]:
        """What the process has to know in order to limit itself."""


class Process:
    """One process in the sandbox, with its status pipe."""

    def __init__(self, isolation: Isolation, job: Mapping[str, Any], pipes: Sequence[int]):
        self.status_pipe, write = os.pipe()
        self.lock = threading.Lock()
        self.exit_code: int | None = None
        self.cpu_seconds = 0.0
        self.unsent = memoryview(
            bundle({**job, **isolation.job(), "status": write, "message_bytes": STATUS_BYTES})
        )
        self.status = bytearray()
        try:
            self.started = isolation.start([write, *pipes])
        except BaseException:
            os.close(self.status_pipe)
            raise
        finally:
            os.close(write)
        for stream in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(stream, False)
        os.set_blocking(self.status_pipe, False)

    @property
    def popen(self) -> subprocess.Popen[bytes]:
        """The process that we wait for."""
        return self.started.popen

    @property
    def stdin(self) -> int:
        """The pipe that the job goes through."""
        assert self.popen.stdin is not None
        return self.popen.stdin.fileno()

    @property
    def stdout(self) -> int:
        """The pipe of what it prints."""
        assert self.popen.stdout is not None
        return self.popen.stdout.fileno()

    @property
    def stderr(self) -> int:
        """The pipe of what it complains."""
        assert self.popen.stderr is not None
        return self.popen.stderr.fileno()

    def message(self) -> str | None:
        """Take the next whole message out of what has come on the status pipe.

        Raises:
            Stopped: it is longer than one may be.
        """
        if len(self.status) < COUNT.size:
            return None
        (size,) = COUNT.unpack(self.status[: COUNT.size])
        if size > STATUS_BYTES:
            raise Stopped("violation", "the process broke the protocol: an endless status")
        end = COUNT.size + size
        if len(self.status) < end:
            return None
        text = self.status[COUNT.size : end].decode("utf-8", "replace")
        del self.status[:end]
        return text

    def reap(self, flags: int = 0) -> bool:
        """Wait for the end; note the exit code (128 + n: killed by signal n) and the CPU time."""
        with self.lock:
            if self.exit_code is not None:
                return True
            pid, status, usage = os.wait4(self.popen.pid, flags)
            if pid == 0:
                return False
            code = os.waitstatus_to_exitcode(status)
            self.popen.returncode = code
            self.exit_code = 128 - code if code < 0 else code
            self.cpu_seconds = usage.ru_utime + usage.ru_stime
            return True

    def kill(self, patient: bool = True) -> None:
        """Kill the whole tree, from any thread, if it has not ended."""
        with self.lock:
            if self.exit_code is None:
                self.started.kill(patient)

    def finish(self) -> None:
        """Kill it and wait for its end."""
        self.kill()
        until, pause = time.monotonic() + KILL_SECONDS, 0.0005
        while not self.reap(os.WNOHANG):
            if time.monotonic() > until:
                self.kill(patient=False)
                self.reap()
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def close(self) -> None:
        """Kill it, wait for it, close its pipes, clean up."""
        try:
            self.finish()
        finally:
            for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
                if stream is not None:
                    _close(stream.close)
            os.close(self.status_pipe)
            self.started.clean()


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except OSError:  # what was still to be written is of no use
        return


def how_it_ended(process: Process, who: str, cpu_limit: float) -> tuple[str, str]:
    """Status and message for a process that ended before it should."""
    code = process.exit_code or 0
    number = code - 128 if code > 128 else 0
    cpu = process.cpu_seconds
    over = f"{who} took more than {cpu_limit:g} seconds of CPU time"
    if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu >= cpu_limit):
        return "timeout", over
    if number == signal.SIGSYS:
        return "violation", f"{who} made a system call that is forbidden"
    if number == signal.SIGXFSZ:
        return "violation", f"{who} wrote a file over the limit"
    if number == signal.SIGKILL:
        return "memory", f"{who} was killed: out of memory, or by itself"
    if number:
        return "error", f"{who} was ended by signal {number}"
    return "error", f"{who} ended with exit code {code} before it was done"


class Watch:
    """One run: its processes, what they print, and how long they may take."""

    def __init__(self, isolation: Isolation, wall_seconds: float, output_bytes: int):
        self.isolation = isolation
        self.wall_seconds, self.output_bytes = wall_seconds, output_bytes
        self.deadline = time.monotonic() + START_SECONDS
        self.processes: list[Process] = []
        self.output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.selector = selectors.PollSelector()
        self.cancelled = False

    def start(self, job: Mapping[str, Any], pipes: Sequence[int] = ()) -> Process:
        """Start a process and wait until it is ready; that time is not counted.

        Raises:
            SandboxUnavailable: it does not get ready.
        """
        begin = time.monotonic()
        left = self.deadline - begin if self.processes else self.wall_seconds
        self.deadline = begin + START_SECONDS
        process = Process(self.isolation, job, pipes)
        self.processes.append(process)
        if self.cancelled:  # meanwhile
            process.kill()
        for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            self.selector.register(stream, selectors.EVENT_READ, self.output[name])
        self.selector.register(process.status_pipe, selectors.EVENT_READ, process.status)
        self.selector.register(process.stdin, selectors.EVENT_WRITE, process)
        try:
            ready = self.answer(process) == "ready"
        except Stopped:
            ready = False
        if not ready:
            raise self.unavailable(process)
        self.deadline = time.monotonic() + left
        return process

    def unavailable(self, process: Process) -> SandboxUnavailable:
        """Why a process did not get ready."""
        process.finish()
        said = self.output["stderr"].decode("utf-8", "replace").strip()
        return SandboxUnavailable(
            f"a sandboxed process did not start (exit code {process.exit_code}): {said[-2000:]}"
        )

    def answer(self, process: Process) -> str | None:
        """The next status message of a process; None: it ended, or closed the pipe, without one.

        Raises:
            Stopped: the time is over, or there is too much output.
        """
        while (message := process.message()) is None:
            if process.status_pipe not in self.selector.get_map():
                return None
            self.step()
        return message

    def end(self, process: Process) -> None:
        """Wait until a process has ended by itself.

        Raises:
            Stopped: the time is over, or there is too much output.
        """
        pipes = (process.status_pipe, process.stdout, process.stderr)
        while any(pipe in self.selector.get_map() for pipe in pipes):
            self.step()
        process.reap()

    def step(self) -> None:
        """Wait for the pipes, and read or write what can be."""
        left = self.deadline - time.monotonic()
        ready = self.selector.select(left) if left > 0 else []
        if not ready and time.monotonic() >= self.deadline:
            raise Stopped("timeout", f"the run took more than {self.wall_seconds:g} seconds")
        for key, _ in ready:
            if isinstance(key.data, Process):
                self.write(key.fd, key.data)
            else:
                self.read(key.fd, key.data)
        if sum(map(len, self.output.values())) > self.output_bytes:
            raise Stopped("violation", f"more than {self.output_bytes:,} bytes of output")

    def write(self, pipe: int, process: Process) -> None:
        """Send the next part of the job."""
        try:
            process.unsent = process.unsent[os.write(pipe, process.unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            process.unsent = memoryview(b"")
        if not process.unsent:
            self.selector.unregister(pipe)
            assert process.popen.stdin is not None
            _close(process.popen.stdin.close)

    def read(self, pipe: int, into: bytearray) -> None:
        """Take what is there, or note that the other side has closed."""
        try:
            part = os.read(pipe, 65536)
        except BlockingIOError:
            return
        if part:
            into += part
        else:
            self.selector.unregister(pipe)

    def cancel(self) -> None:
        """Kill every process, from another thread; the run ends soon after."""
        self.cancelled = True
        for process in list(self.processes):
            process.kill()

    def close(self) -> None:
        """Kill what still runs and give everything back."""
        self.selector.close()
        for process in self.processes:
            process.close()
