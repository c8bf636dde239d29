"""A `TeamRunner` in another process, whose exceptions come back with their traceback."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from marlogue.algorithms.team_runner import TeamRunner
from marlogue.algorithms.team_workers import called


class RemoteTraceback(Exception):  # noqa: N818, it is shown as the cause of an exception
    """Where an exception was raised in another process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class Failure(NamedTuple):
    """An exception on its way from another process.

    Attributes:
        pickled: the exception; None when it cannot be pickled.
        text: its traceback.
    """

    pickled: bytes | None
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Pack an exception."""
        text = "".join(traceback.format_exception(error))
        try:
            pickled = cloudpickle.dumps(error)
            cloudpickle.loads(pickled)  # some can be pickled, but not made again
        except Exception:
            pickled = None
        return cls(pickled, text)

    def error(self) -> Exception:
        """The exception with its notes, caused by its traceback over there; or a `RuntimeError`
        with the traceback's text, where it could not be sent."""
        try:
            error = None if self.pickled is None else cloudpickle.loads(self.pickled)
        except Exception:  # what it needs is not here
            error = None
        if not isinstance(error, Exception):
            return RuntimeError(f"an exception in another process:\n{self.text}")
        error.__cause__ = RemoteTraceback(self.text)
        return error


class RemoteRunner:
    """Answers for a `TeamRunner`, with a `Failure` where that raises something.

    Args:
        job: what is played, pickled.
        numbers: of the environments.
    """

    def __init__(self, job: bytes, numbers: Sequence[int]) -> None:
        self._runner: TeamRunner | None = None
        self._failure: Failure | None = None
        try:
            self._runner = TeamRunner(cloudpickle.loads(job), numbers)
        except Exception as error:
            self._failure = Failure.of(error)

    def call(self, method: str, *args: Any) -> Any:
        """What the runner's method gives, or a `Failure`."""
        if self._runner is None:
            return self._failure
        try:
            return called(self._runner, method, args)
        except Exception as error:
            return Failure.of(error)

    def packed(self, method: str, *args: Any) -> bytes:
        """What `call` gives, pickled."""
        found: bytes = cloudpickle.dumps(self.call(method, *args))
        return found

    def close(self) -> None:
        """Close the environments."""
        if self._runner is not None:
            self._runner.close()
