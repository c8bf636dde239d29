"""Runners of a `TeamVector` in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from marlogue.algorithms.team_failures import Failure, RemoteRunner
from marlogue.algorithms.team_game import Job
from marlogue.algorithms.team_workers import GRACE, WorkerDiedError


class ProcessWorker:
    """A runner in a process, which begins at once.

    Args:
        context: makes the process.
        job: what is played, pickled.
        numbers: of the environments.
    """

    def __init__(self, context: Any, job: bytes, numbers: Sequence[int]) -> None:
        self._connection, there = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(there, job, list(numbers)), daemon=True
        )
        self._process.start()
        there.close()
        self._asked = 0

    @property
    def pid(self) -> int | None:
        """Number of the process."""
        return self._process.pid

    def ask(self, method: str, *args: Any) -> None:
        """See `Worker`."""
        self._asked += 1
        with suppress(OSError):  # it is dead, and the answer will say so
            self._connection.send_bytes(cloudpickle.dumps((self._asked, method, args)))

    def answer(self) -> Any:
        """See `Worker`."""
        number, found = 0, None
        try:
            while number != self._asked:  # older ones were left behind by an interruption
                self._connection.poll(None)
                number, found = cloudpickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise WorkerDiedError(self._end()) from None
        if isinstance(found, Failure):
            raise found.error()
        return found

    def close(self) -> None:
        """See `Worker`."""
        self._connection.close()  # it ends when it sees that
        self._process.join(GRACE)
        for end in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                end()
                self._process.join(GRACE)

    def _end(self) -> str:
        self._process.join(GRACE)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"process {self.pid}, ended by signal {signal.Signals(-code).name}"
        return f"process {self.pid}, ended with exit code {code}"


class ProcessWorkers:
    """The backend "subprocess".

    The processes are forked from a fresh one that has imported what all of them need (and that
    has no threads), so neither torch's threads nor the state of this process get into them.

    Args:
        job: what is played.
    """

    def __init__(self, job: Job) -> None:
        self._job: bytes = cloudpickle.dumps(job)
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            self._context.set_forkserver_preload([__name__])

    def open(self, numbers: Sequence[int]) -> ProcessWorker:
        """See `Workers`."""
        return ProcessWorker(self._context, self._job, numbers)

    def close(self) -> None:
        """See `Workers`."""


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _serve(connection: Connection, job: bytes, numbers: Sequence[int]) -> None:
    """Answer until the connection or the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runner = RemoteRunner(job, numbers)
    while True:
        try:
            number, method, args = cloudpickle.loads(connection.recv_bytes())
            connection.send_bytes(cloudpickle.dumps((number, runner.call(method, *args))))
        except (EOFError, OSError):
            break
    runner.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    time.sleep(GRACE)  # usually the connection's end was seen, and this process is gone by now
    os._exit(1)
