"""Where the runners of a `TeamVector` live."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from marlogue.algorithms.team_game import Job
from marlogue.algorithms.team_runner import TeamRunner

#: Seconds that a worker has for closing its environments.
GRACE = 5.0


class WorkerDiedError(RuntimeError):
    """A worker process is gone; the message says how it ended."""


class Worker(Protocol):
    """Somewhere a `TeamRunner` lives. Its answers come in the order of the questions."""

    def ask(self, method: str, *args: Any) -> None:
        """Begin a call of the runner's method, or of its property; never raises."""

    def answer(self) -> Any:
        """The result of the oldest call.

        Raises:
            WorkerDiedError: when it will never come.
            Exception: what the call raised.
        """

    def close(self) -> None:
        """End the runner and where it lives; never raises."""


class Workers(Protocol):
    """A backend."""

    def open(self, numbers: Sequence[int]) -> Worker:
        """Begin to make a runner of the environments with these numbers; errors come with the
        first answer."""

    def close(self) -> None:
        """Free what the workers shared."""


def called(runner: TeamRunner, method: str, args: Sequence[Any]) -> Any:
    """What a question of a `Worker` means."""
    found = getattr(runner, method)
    return found(*args) if callable(found) else found


class LocalWorker:
    """A runner in this process, which works when it is asked for the answer.

    Args:
        job: what is played.
        numbers: of the environments.
    """

    def __init__(self, job: Job, numbers: Sequence[int]) -> None:
        self._runner = TeamRunner(job, numbers)
        self._asked: deque[tuple[str, tuple[Any, ...]]] = deque()

    def ask(self, method: str, *args: Any) -> None:
        """See `Worker`."""
        self._asked.append((method, args))

    def answer(self) -> Any:
        """See `Worker`."""
        method, args = self._asked.popleft()
        return called(self._runner, method, args)

    def close(self) -> None:
        """See `Worker`."""
        self._runner.close()


class LocalWorkers:
    """The backend "serial".

    Args:
        job: what is played.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def open(self, numbers: Sequence[int]) -> Worker:
        """See `Workers`."""
        return LocalWorker(self._job, numbers)

    def close(self) -> None:
        """See `Workers`."""
