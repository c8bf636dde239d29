"""Reward calls in threads of this process."""

from __future__ import annotations

import queue
import threading
import time

from marlogue.envs.reward_calls import Call, Outcome, RewardWorkerError, Scorer, attempt
from marlogue.envs.reward_pool import RewardPool

MOST_ABANDONED = 16
"""Calls that are still running after their time is up; one more of them is an error."""

Done = queue.SimpleQueue["ThreadLane"]


class ThreadLane:
    """A thread that makes calls.

    Nothing can stop a thread from outside. One whose time is up is left to itself, as a daemon
    that does not keep the interpreter from ending, and ends after its call.

    Args:
        scorer: the function that is called.
        timeout: seconds that a call may take.
        done: where the lane puts itself when a call is over.
        abandoned: where it puts itself when its call is left.
    """

    def __init__(
        self, scorer: Scorer, timeout: float | None, done: Done, abandoned: list[ThreadLane]
    ) -> None:
        self.scorer = scorer
        self._abandoned = abandoned
        self.timeout = timeout
        self.deadline: float | None = None
        self._done = done
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._outcome: Outcome | None = None
        self.thread = threading.Thread(target=self._serve, name="marlogue-reward", daemon=True)
        self.thread.start()

    def give(self, call: Call) -> None:
        """See `Lane`."""
        self.deadline = None if self.timeout is None else time.monotonic() + self.timeout
        self._calls.put(call)

    def take(self) -> Outcome | None:
        """See `Lane`."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def fit(self) -> bool:
        """See `Lane`."""
        return True

    def too_late(self, call: Call) -> Exception:
        """See `Lane`."""
        assert self.timeout is not None
        more = "; it goes on in a thread, which nothing can stop"
        return self.scorer.too_late(call, self.timeout, more)

    def leave(self) -> None:
        """See `Lane`."""
        self._calls.put(None)
        self._abandoned.append(self)

    def close(self) -> None:
        """See `Lane`."""
        self._calls.put(None)
        self.thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._outcome = attempt(self.scorer, call)
            except BaseException as error:
                unusual = RuntimeError(f"reward_func raised {type(error).__name__}: {error}")
                unusual.__cause__ = error
                self._outcome = unusual
            del call
            self._done.put(self)


class ThreadPool(RewardPool[ThreadLane]):
    """Calls in threads.

    Raises:
        RewardWorkerError: in `run`, when too many calls of the past cannot be stopped.
    """

    def _begin(self) -> None:
        super()._begin()
        self._done: Done = queue.SimpleQueue()
        self._abandoned: list[ThreadLane] = []

    def _open(self) -> ThreadLane:
        self._abandoned[:] = [lane for lane in self._abandoned if lane.thread.is_alive()]
        if len(self._abandoned) >= MOST_ABANDONED:
            raise RewardWorkerError(
                f"{len(self._abandoned)} calls of reward_func ({self.scorer.name}) are still "
                "running after reward_timeout, in threads, which nothing can stop; set "
                "reward_backend='process', whose workers are ended, or mend the function"
            )
        return ThreadLane(self.scorer, self.timeout, self._done, self._abandoned)

    def _wait(self, lanes: list[ThreadLane], seconds: float | None) -> list[ThreadLane]:
        try:
            return [self._done.get(timeout=seconds)]  # may be one that was left, and is through
        except queue.Empty:
            return []
