"""One run as its starter sees it: what it prints, how long it takes, and an end in any case."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from marlogue.envs.sandbox_process import Isolation, Process, SandboxUnavailable, Stopped

# How long a process may take until it is ready, on a machine under heavy load.
START_SECONDS = 60.0


class Pipe:
    """A pipe whose ends are closed at the end of a `with`, or before."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self._open = {self.read, self.write}

    def close_end(self, end: int) -> None:
        """Close one end."""
        self._open.remove(end)
        os.close(end)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        for end in tuple(self._open):
            self.close_end(end)


class Group:
    """Runs that can be cancelled together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Watch] = set()
        self._cancelled = False

    def add(self, watch: Watch) -> None:
        """Take a run in.

        Raises:
            Stopped: they have been cancelled.
        """
        with self._lock:
            if self._cancelled:
                raise Stopped("error", "cancelled")
            self._running.add(watch)

    def remove(self, watch: Watch) -> None:
        """Let a run go."""
        with self._lock:
            self._running.discard(watch)

    def cancel(self) -> None:
        """Kill the processes of every run; the runs end soon after, and no other begins."""
        with self._lock:
            self._cancelled = True
            for watch in self._running:
                watch.cancel()


class Watch:
    """The processes of one run, what they print, and how long they may take.

    Used in a `with`, after which nothing of them is left.
    """

    def __init__(self, isolation: Isolation, wall_seconds: float, output_bytes: int, group: Group):
        self.output = {"stdout": bytearray(), "stderr": bytearray()}
        self._isolation, self._group = isolation, group
        self._wall_seconds, self._output_bytes = wall_seconds, output_bytes
        self._deadline = 0.0
        self._processes: list[Process] = []
        self._selector = selectors.PollSelector()
        self._cancelled = False

    def __enter__(self) -> Watch:
        self._group.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for process in self._processes:
                process.finish()
            for process in self._processes:
                self._drain(process)
        finally:
            self._selector.close()
            for process in self._processes:
                process.close()
            self._group.remove(self)

    def start(self, job: Mapping[str, Any], pipes: Sequence[int] = ()) -> Process:
        """Start a process and wait until it is ready; that time is not counted.

        Raises:
            SandboxUnavailable: it does not get ready.
        """
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            raise SandboxUnavailable(
                "this program ignores SIGCHLD, and so would the processes that it starts; set it "
                "to signal.SIG_DFL"
            )
        begin = time.monotonic()
        left = self._deadline - begin if self._processes else self._wall_seconds
        self._deadline = begin + START_SECONDS
        try:
            process = Process(self._isolation, job, pipes)
        except OSError as error:
            raise SandboxUnavailable(f"a process could not be started: {error}") from error
        self._processes.append(process)
        if self._cancelled:  # meanwhile
            process.kill()
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            self._selector.register(pipe, selectors.EVENT_READ, self.output[name])
        self._selector.register(process.status_pipe, selectors.EVENT_READ, process.status)
        self._selector.register(process.stdin, selectors.EVENT_WRITE, process)
        if not self._is_ready(process):
            process.finish()
            self._drain(process)
            said = self.output["stderr"].decode("utf-8", "replace").strip()
            raise SandboxUnavailable(
                f"a process did not get ready (exit code {process.exit_code}): {said[-2000:]}"
            )
        self._deadline = time.monotonic() + left
        return process

    def _is_ready(self, process: Process) -> bool:
        try:
            return self.answer(process) == "ready"
        except Stopped:
            return False

    def answer(self, process: Process) -> str | None:
        """The next message of a process; None: it ended, or closed the pipe, without one.

        Raises:
            Stopped: the time is over, or there is too much output.
        """
        while (message := process.message()) is None:
            if process.status_pipe not in self._selector.get_map():
                return None
            self._step()
        return message

    def end(self, process: Process) -> None:
        """Wait until a process has ended by itself.

        Raises:
            Stopped: the time is over, or there is too much output.
        """
        pipes = (process.status_pipe, process.stdout, process.stderr)
        while any(pipe in self._selector.get_map() for pipe in pipes):
            self._step()
        process.reap()

    def _step(self) -> None:
        """Wait for the pipes, and read or write what can be."""
        left = self._deadline - time.monotonic()
        ready = self._selector.select(left) if left > 0 else []
        if not ready and time.monotonic() >= self._deadline:
            raise Stopped("timeout", f"the run took more than {self._wall_seconds:g} seconds")
        for key, _ in ready:
            if not isinstance(key.data, Process):
                self._read(key.fd, key.data)
            elif key.data.send():
                self._selector.unregister(key.fd)
                key.data.close_stdin()
        if sum(map(len, self.output.values())) > self._output_bytes:
            raise Stopped("violation", f"more than {self._output_bytes:,} bytes of output")

    def _read(self, pipe: int, into: bytearray) -> bool:
        """Take what is there, or note that the other side has closed; whether there may be more."""
        try:
            part = os.read(pipe, 65536)
        except BlockingIOError:
            return False
        into += part
        if not part:
            self._selector.unregister(pipe)
        return bool(part)

    def _drain(self, process: Process) -> None:
        """Read what an ended process has left in its pipes, up to the limit."""
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            while (
                pipe in self._selector.get_map()
                and len(self.output[name]) <= self._output_bytes
                and self._read(pipe, self.output[name])
            ):
                continue

    def cancel(self) -> None:
        """Kill every process, from another thread; the run ends soon after."""
        self._cancelled = True
        for process in tuple(self._processes):
            process.kill()
