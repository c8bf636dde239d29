"""SIGTERM and SIGINT: stop at the next safe point, where a checkpoint can be saved."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: not an error, try again


class RunInterrupted(SystemExit):
    """A signal ended the run, which can be resumed; the exit code of the process is 75.

    Args:
        message: which checkpoint there is, and how to go on.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_RESUMABLE)
        self.message = message

    def __str__(self) -> str:
        return self.message


class StopRequested(BaseException):
    """Raised at a safe point after a signal; the trainer's loop catches it."""


class Interruption:
    """Turns the first SIGTERM or SIGINT into :class:`StopRequested` at the next safe point.

    The first signal gives both their default effect back, so that a second one stops the process
    at once, whatever it is doing. A signal that the process ignores (as ``nohup`` asks for) goes on
    being ignored. In a forked child SIGTERM ends the child, and SIGINT, which a terminal sends to
    all processes, is left to the parent.

    Use as a context manager; before it ends it restores the handlers that were there.

    Args:
        active: whether to do anything. In a thread other than the main one it does nothing
            either, since handlers cannot be set there.
    """

    def __init__(self, active: bool) -> None:
        self.signal: signal.Signals | None = None  #: the first that came
        self._active = active
        self._process = os.getpid()
        self._previous: dict[signal.Signals, _Handler] = {}
        self._deferred = 0

    def __enter__(self) -> Self:
        if self._active and threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                previous = signal.getsignal(number)
                # None was not set by Python, which could not restore it.
                if previous not in (signal.SIG_IGN, None):
                    self._previous[number] = previous
                    signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def check(self) -> None:
        """A safe point: what was done so far is whole.

        Raises:
            StopRequested: when there was a signal, unless within :meth:`deferred`.
        """
        if self.signal is not None and not self._deferred:
            raise StopRequested(self.signal.name)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, :meth:`check` does nothing: what is done here is done whole."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.signal = signal.Signals(number)
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)
        text = (
            f"\n{self.signal.name}: the run stops at the next safe point and saves a checkpoint; "
            "a second signal stops it at once, without one.\n"
        )
        with suppress(OSError):  # print may not be used here: it could be what was interrupted
            os.write(2, text.encode())
