"""How reward calls are made, and what becomes of one that fails."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Literal

BACKENDS = ("thread", "process")
ON_ERROR = ("raise", "drop")

RewardBackend = Literal["thread", "process"]
OnRewardError = Literal["raise", "drop"]


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """The arguments of `TextEnv` about reward calls, checked.

    Fields:
        timeout: `reward_timeout`, seconds that a call may take, from when it begins; None for any
            time.
        workers: `reward_workers`, calls made at once; their order is kept. 0 makes them one after
            the other in the thread that steps, unless a time limit or processes need a worker. Of
            an async function: the most that are awaited at once, 0 for all.
        backend: `reward_backend`, what a worker is: "thread", where a call that hangs cannot be
            stopped, only left behind; or "process", where it is ended with all that it began.
            There the function is a copy of its own: what it remembers stays in that process.
        on_error: `on_reward_error`, what becomes of a call that raises, takes too long, loses its
            worker, or returns what is no reward: "raise", or "drop": the joint actions that it was
            to score get no reward, as if the function had abstained from them.
        max_dropped_share: with "drop", raise a `TooManyDroppedError` when more than this share of
            the latest 200 calls (of at least 50) was dropped.

    Raises:
        TypeError: when a field has a wrong type.
        ValueError: when it is out of range.
    """

    timeout: float | None = None
    workers: int = 0
    backend: RewardBackend = "thread"
    on_error: OnRewardError = "raise"
    max_dropped_share: float = 0.2

    def __post_init__(self) -> None:
        if self.timeout is not None:
            seconds = _number("reward_timeout", self.timeout, " of seconds, or None")
            if not 0 < seconds < math.inf:
                raise ValueError(
                    f"reward_timeout ({self.timeout}) must be above 0 and finite; set None for no "
                    "limit"
                )
        if isinstance(self.workers, bool) or not hasattr(self.workers, "__index__"):
            raise TypeError(f"reward_workers ({self.workers!r}) must be an integer")
        if operator.index(self.workers) < 0:
            raise ValueError(
                f"reward_workers ({self.workers}) must be 0 or more; set 0 for calls in this thread"
            )
        _one_of("reward_backend", self.backend, BACKENDS)
        _one_of("on_reward_error", self.on_error, ON_ERROR)
        if not 0 <= _number("max_dropped_share", self.max_dropped_share, "") <= 1:
            raise ValueError(
                f"max_dropped_share ({self.max_dropped_share}) must be within 0 and 1; set 1 to go "
                "on whatever is dropped"
            )

    @property
    def lanes(self) -> int:
        """Workers that are needed. A time limit and processes need at least one."""
        needed = self.timeout is not None or self.backend == "process"
        return max(operator.index(self.workers), 1 if needed else 0)


def _number(name: str, value: float, more: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} ({value!r}) must be a number{more}")
    return float(value)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} ({value!r}) must be one of {', '.join(map(repr, choices))}")
