"""Async callbacks: awaited together, on an event loop in a thread of its own.

The loop is not the caller's, so that it works inside a notebook, whose thread runs one already. It
lives on between calls, and all environments share it, so that a client whose connections belong to
a loop (an HTTP session, say) can be kept by the user; it ends when the last environment that used
it is closed.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Coroutine = Callable[[], Awaitable[T]]

GRACE = 1.0
"""Seconds that a cancelled call has to clean up."""

SLACK = 1.0
"""Seconds more than all calls may take together, after which the loop itself counts as blocked."""


MOST_BLOCKED = 16
"""Loops that are still blocked after the time of their calls; one more of them is an error."""


@dataclass(frozen=True, slots=True)
class NoResult:
    """In the place of a result: the call was cancelled.

    Fields:
        in_time: it did so by itself, rather than because its time was up.
    """

    in_time: bool = False


class EventLoop:
    """A loop that runs in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.process = os.getpid()
        self.closed = self.blocked = False
        self._thread = threading.Thread(target=self._serve, name="marlogue-async", daemon=True)
        self._thread.start()

    def run(
        self,
        calls: Sequence[Coroutine[T]],
        *,
        timeout: float | None = None,
        at_once: int = 0,
        stop: Callable[[T | NoResult], bool] | None = None,
    ) -> list[T | NoResult | None]:
        """Await calls together.

        Args:
            calls: functions that give an awaitable; they must not raise.
            timeout: seconds that each may take, after which it is cancelled; None for any time.
            at_once: the most that wait at once; 0 for all.
            stop: of a result whether the others are not wanted any more.

        Returns:
            The results in the order of the calls; None of those that were not wanted any more.
        """
        results: list[T | NoResult | None] = [None] * len(calls)
        limit = asyncio.Semaphore(at_once or max(len(calls), 1))
        all_of_them = _all(calls, results, timeout, limit, stop)
        future = asyncio.run_coroutine_threadsafe(all_of_them, self.loop)
        seconds = None
        if timeout is not None:
            rounds = math.ceil(len(calls) / at_once) if at_once else 1
            seconds = rounds * (timeout + GRACE) + SLACK
        try:
            future.result(seconds)
        except NotYet:  # a call blocks the loop, instead of awaiting something
            self.closed = self.blocked = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            return [NoResult() if result is None else result for result in results]
        except BaseException:
            future.cancel()
            raise
        return results

    def close(self) -> None:
        """Cancel what is left, and end the thread."""
        if self.closed or self.process != os.getpid():
            return
        self.closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(GRACE)

    @property
    def alive(self) -> bool:
        """Whether its thread has not ended."""
        return self.process == os.getpid() and self._thread.is_alive()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self.closed:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # raised in a task that the user's code began; nobody awaits it here
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=GRACE))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


async def _all(
    calls: Sequence[Coroutine[T]],
    results: list[T | NoResult | None],
    timeout: float | None,
    limit: asyncio.Semaphore,
    stop: Callable[[T | NoResult], bool] | None,
) -> None:
    tasks = [
        asyncio.ensure_future(_one(index, call, timeout, limit)) for index, call in enumerate(calls)
    ]
    try:
        for finished in asyncio.as_completed(tasks):
            index, result = await finished
            results[index] = result
            if stop is not None and stop(result):
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(
    index: int, call: Coroutine[T], timeout: float | None, limit: asyncio.Semaphore
) -> tuple[int, T | NoResult]:
    async with limit:
        task = asyncio.ensure_future(call())
        try:
            await asyncio.wait({task}, timeout=timeout)
            if task.done():
                return index, NoResult(in_time=True) if task.cancelled() else task.result()
        finally:
            task.cancel()
        await asyncio.wait({task}, timeout=GRACE)
        return index, NoResult()


_lock = threading.RLock()
_loops: list[EventLoop] = []
_users: set[int] = set()


def shared_loop(user: Any) -> EventLoop:
    """The loop of this process; it lives until none of its users is left.

    Raises:
        RuntimeError: when too many loops of the past are blocked.
    """
    with _lock:
        if id(user) not in _users:
            _users.add(id(user))
            weakref.finalize(user, _forget, id(user))
        _loops[:] = [loop for loop in _loops if loop.alive]
        blocked = sum(loop.blocked for loop in _loops)
        if blocked >= MOST_BLOCKED:
            raise RuntimeError(
                f"{blocked} calls of async functions block their event loop, instead of awaiting "
                "something, and go on after their time; make them plain functions, with "
                "reward_backend='process', or mend them"
            )
        usable = [loop for loop in _loops if not loop.closed]
        if not usable:
            usable = [EventLoop()]
            _loops.extend(usable)
        return usable[0]


def done_with_loop(user: Any) -> None:
    """The user needs no loop for now."""
    _forget(id(user))


def _forget(user: int) -> None:
    with _lock:
        _users.discard(user)
        if not _users:
            for loop in _loops:
                loop.close()
