"""Several reward calls at once, each on a lane of its own: a thread or a process."""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from marlogue.envs.reward_calls import Call, Outcome, Scorer


class Lane(Protocol):
    """Makes one call at a time."""

    deadline: float | None
    """When what it does is to be over, by `time.monotonic`; None for never."""

    def give(self, call: Call) -> None:
        """Begin a call."""
        ...

    def take(self) -> Outcome | None:
        """What came of the call, once the lane has something to say; None when it goes on."""
        ...

    def fit(self) -> bool:
        """Whether it can make another call."""
        ...

    def too_late(self, call: Call) -> Exception:
        """The error about a call that is not over at the deadline."""
        ...

    def leave(self) -> None:
        """Stop the call in progress, or turn away from it where it cannot be stopped."""
        ...

    def close(self) -> None:
        """End an idle lane."""
        ...


LaneT = TypeVar("LaneT", bound=Lane)


class RewardPool(ABC, Generic[LaneT]):
    """Makes calls on lanes, which begin when they are first needed.

    Neither a copy nor a pickle of a pool takes lanes along, and a forked process begins its own.

    Args:
        scorer: the function that is called.
        lanes: the most calls at once.
        timeout: seconds that a call may take; None for any time.
    """

    kept: ClassVar[tuple[str, ...]] = ("scorer", "lanes", "timeout")
    """Attributes that copies and pickles have."""

    def __init__(self, scorer: Scorer, lanes: int, timeout: float | None) -> None:
        self.scorer = scorer
        self.lanes = lanes
        self.timeout = timeout
        self._begin()

    def _begin(self) -> None:
        self._idle: list[LaneT] = []
        self._lock = threading.Lock()
        self._process = os.getpid()
        # Also of a pool that nobody closed, and at the end of the interpreter.
        self._finalizer = weakref.finalize(self, _close_all, self._idle, self._process)

    def run(self, calls: Sequence[Call], *, stop: bool) -> list[Outcome]:
        """Make calls.

        Args:
            calls: each with arguments of its own.
            stop: raise the first exception, and leave the other calls.

        Returns:
            What came of each, in the order of the calls.
        """
        if self._process != os.getpid():
            self._begin()
        with self._lock:  # environments that share a definition may be stepped in several threads
            return self._run(calls, stop)

    def _run(self, calls: Sequence[Call], stop: bool) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = deque(range(len(calls)))
        busy: dict[LaneT, int] = {}
        try:
            while len(outcomes) < len(calls):
                while waiting and len(busy) < self.lanes:
                    lane = self._idle.pop() if self._idle else self._open()
                    busy[lane] = waiting.popleft()
                    lane.give(calls[busy[lane]])
                for lane, outcome in self._finished(busy, calls):
                    outcomes[busy.pop(lane)] = outcome
                    if stop and isinstance(outcome, Exception):
                        raise outcome
        finally:
            for lane in busy:
                lane.leave()
        return [outcomes[index] for index in range(len(calls))]

    def _finished(
        self, busy: dict[LaneT, int], calls: Sequence[Call]
    ) -> list[tuple[LaneT, Outcome]]:
        """Wait until a call is over, or its time; lanes that can go on are idle then."""
        deadlines = [lane.deadline for lane in busy if lane.deadline is not None]
        seconds = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        found: list[tuple[LaneT, Outcome]] = []
        heard = self._wait(list(busy), seconds)
        now = time.monotonic()
        for lane in list(busy):
            outcome = lane.take() if lane in heard else None
            if outcome is not None:
                if lane.fit():
                    self._idle.append(lane)
                found.append((lane, outcome))
            elif lane not in heard and lane.deadline is not None and now >= lane.deadline:
                outcome = lane.too_late(calls[busy[lane]])
                lane.leave()
                found.append((lane, outcome))
        return found

    @abstractmethod
    def _open(self) -> LaneT:
        """Begin a lane."""

    @abstractmethod
    def _wait(self, lanes: list[LaneT], seconds: float | None) -> list[LaneT]:
        """Wait until some of these have something to say; which."""

    def close(self) -> None:
        """End all lanes; another `run` begins new ones."""
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            _close_all(self._idle, self._process)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _close_all(lanes: list[Any], process: int) -> None:
    if os.getpid() != process:
        return  # a fork; the lanes are its parent's
    while lanes:
        lanes.pop().close()
