"""Rewards that were left out: counted, told, and too many of them stop the run."""

from __future__ import annotations

import math
import re
import traceback
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

WINDOW = 200
"""Reward calls whose share of drops is looked at: the latest ones."""

LEAST = 50
"""Calls that the share is of at least: those that a young run lacks count as good ones."""

LONGEST_TEXT = 4000


class TooManyDroppedError(RuntimeError):
    """More rewards were left out than a run is to go on with."""


class Drops:
    """Keeps count of what `on_reward_error="drop"` leaves out.

    Args:
        name: the reward function's name, for messages.
        max_share: the largest share of dropped rewards, over the latest `WINDOW` calls (of at
            least `LEAST`), that a run goes on with. A call of which half the joint actions were
            dropped counts half.

    Attributes:
        calls: reward calls so far.
        joint_actions: joint actions that were left out so far.
        kinds: of each kind of error how often it came: its type, and where it was raised.
        latest: the latest errors, as text with their tracebacks, oldest first.
    """

    def __init__(self, name: str, max_share: float) -> None:
        self.name = name
        self.max_share = max_share
        self.calls = 0
        self.joint_actions = 0
        self.kinds: dict[str, int] = {}
        self.latest: deque[str] = deque(maxlen=3)
        self._window: deque[float] = deque(maxlen=WINDOW)

    def describe(self, error: Exception) -> str:
        """Take note of an error.

        Returns:
            Its type and message, and after a line break the traceback.
        """
        text = "".join(traceback.format_exception(error)).strip()
        if len(text) > LONGEST_TEXT:
            text = f"...{text[-LONGEST_TEXT:]}"
        described = f"{_headline(error)}\n{text}"
        self.latest.append(described)
        kind = f"{type(error).__name__}{_place(text)}"
        count = self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if str(count).strip("0") == "1":  # the 1st, 10th, 100th, ...
            warnings.warn(
                f"reward_func ({self.name}) failed, and what it was to score is left out "
                f"(on_reward_error='drop'; error number {count} of this kind): {described}",
                stacklevel=2,
            )
        return described

    def count(self, dropped: Sequence[tuple[int, int]]) -> None:
        """Count calls.

        Args:
            dropped: for each call how many of its joint actions were dropped, and how many it had.

        Raises:
            TooManyDroppedError: when too many were dropped of late.
        """
        for bad, all_of_it in dropped:
            self.calls += 1
            self.joint_actions += bad
            self._window.append(bad / all_of_it)
        of = max(len(self._window), LEAST)
        if math.fsum(self._window) <= self.max_share * of:
            return
        kinds = "; ".join(f"{count} x {kind}" for kind, count in self.kinds.items())
        error = TooManyDroppedError(
            f"{math.fsum(self._window):g} of the latest {len(self._window)} calls of reward_func "
            f"({self.name}) were left out after errors ({kinds}), more than max_dropped_share "
            f"({self.max_share:g}) of {of}; mend the function, or raise the share. "
            f"The latest error: {_first_line(self.latest[-1])}"
        )
        for described in self.latest:
            error.add_note(f"left out after: {described.partition(chr(10))[2]}")
        raise error

    def state_dict(self) -> dict[str, Any]:
        """The counts; fit for JSON."""
        return {
            "calls": self.calls,
            "joint_actions": self.joint_actions,
            "kinds": dict(self.kinds),
            "latest": list(self.latest),
            "window": list(self._window),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the counts that :meth:`state_dict` gave."""
        self.calls = state["calls"]
        self.joint_actions = state["joint_actions"]
        self.kinds = dict(state["kinds"])
        self.latest = deque(state["latest"], maxlen=self.latest.maxlen)
        self._window = deque(state["window"], maxlen=WINDOW)


def _headline(error: Exception) -> str:
    notes = getattr(error, "__notes__", ())
    return " ".join(f"{type(error).__name__}: {' '.join([str(error), *notes])}".split())


def _first_line(described: str) -> str:
    return described.partition("\n")[0]


def _place(trace: str) -> str:
    """The innermost line of a traceback, also of one that came out of a process as text."""
    places = re.findall(r'File "(.+)", line (\d+)', trace)
    return f" at {places[-1][0]}:{places[-1][1]}" if places else ""
