"""Who makes reward calls: this thread, an event loop, or workers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

from marlogue.envs.callbacks import is_async
from marlogue.envs.event_loop import NoResult, done_with_loop, shared_loop
from marlogue.envs.reward_calls import Call, Outcome, Scorer, attempt, attempt_awaited
from marlogue.envs.reward_processes import ProcessPool
from marlogue.envs.reward_settings import RewardSettings
from marlogue.envs.reward_threads import ThreadPool


class Caller(Protocol):
    """Makes reward calls."""

    def run(self, calls: Sequence[Call], *, stop: bool) -> list[Outcome]:
        """What came of each, in the order of the calls; with `stop` the first exception is raised,
        and the other calls are left."""
        ...

    def close(self) -> None:
        """Release what is kept between calls; another `run` begins it anew."""
        ...


def make_caller(scorer: Scorer, settings: RewardSettings) -> Caller:
    """The caller that the settings ask for.

    Raises:
        TypeError: when the function cannot be sent to a worker process.
    """
    if settings.backend == "process":
        return ProcessPool(scorer, settings.lanes, settings.timeout)
    if is_async(scorer.func):
        return AwaitedCalls(scorer, settings.lanes if settings.workers else 0, settings.timeout)
    if settings.lanes:
        return ThreadPool(scorer, settings.lanes, settings.timeout)
    return DirectCalls(scorer)


class DirectCalls:
    """Calls in the thread that steps, one after the other."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def run(self, calls: Sequence[Call], *, stop: bool) -> list[Outcome]:
        """See `Caller`."""
        if stop:
            return [self.scorer(call) for call in calls]
        return [attempt(self.scorer, call) for call in calls]

    def close(self) -> None:
        """See `Caller`."""


class AwaitedCalls:
    """Calls of an async function, awaited together.

    Args:
        scorer: the function.
        at_once: the most that wait at once; 0 for all.
        timeout: seconds that a call may take; None for any time.
    """

    def __init__(self, scorer: Scorer, at_once: int, timeout: float | None) -> None:
        self.scorer = scorer
        self.at_once = at_once
        self.timeout = timeout

    def run(self, calls: Sequence[Call], *, stop: bool) -> list[Outcome]:
        """See `Caller`."""
        found = shared_loop(self).run(
            [functools.partial(attempt_awaited, self.scorer.awaited, call) for call in calls],
            timeout=self.timeout,
            at_once=self.at_once,
            stop=_is_bad if stop else None,
        )
        outcomes = [
            self._cancelled(call, outcome) if isinstance(outcome, NoResult) else outcome
            for call, outcome in zip(calls, found, strict=True)
        ]
        for outcome in outcomes:
            if stop and isinstance(outcome, Exception):
                raise outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def close(self) -> None:
        """See `Caller`."""
        done_with_loop(self)

    def _cancelled(self, call: Call, result: NoResult) -> Exception:
        if result.in_time or self.timeout is None:
            return self.scorer.lost(call, "was cancelled from within")
        return self.scorer.too_late(call, self.timeout)


def _is_bad(outcome: Outcome | NoResult) -> bool:
    return isinstance(outcome, Exception | NoResult)
