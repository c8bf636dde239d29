"""Sums of many numbers that change, so that one can be drawn in proportion to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[Any]

#: Numbers that are summed up in one: few levels, each a small vectorised step.
FAN_OUT = 64


class PriorityTree:
    """A tree of sums over ``size`` numbers of at least 0, all 0 at first.

    Both setting and finding B of them take some array operations per level, of which there are
    three for up to 262,144 numbers. Sums are recomputed from their parts, so they don't drift.

    Args:
        size: how many numbers.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._levels: list[Floats] = []  # from the numbers up, each [groups, FAN_OUT]
        while True:
            groups = -(-size // FAN_OUT)
            self._levels.append(np.zeros((groups, FAN_OUT)))
            if groups == 1:
                break
            size = groups

    @property
    def total(self) -> float:
        """The sum of all."""
        return float(self._levels[-1].sum())

    @property
    def values(self) -> Floats:
        """All numbers [size], not to be written to."""
        view = self._levels[0].reshape(-1)[: self._size]
        view.flags.writeable = False
        return view

    def get(self, indices: Indices) -> Floats:
        """The numbers [B] at ``indices`` [B]."""
        found: Floats = self._levels[0].reshape(-1)[indices]
        return found

    def set(self, indices: Indices, values: Floats | float) -> None:
        """Set the numbers at ``indices`` [B]; of an index there twice the last counts."""
        for level, upper in zip(self._levels, [*self._levels[1:], None], strict=True):
            level.reshape(-1)[indices] = values
            if upper is not None:
                indices = indices // FAN_OUT
                values = level[indices].sum(1)

    def find(self, points: Floats) -> Indices:
        """For each point [B] in [0, total) the index at which the running sum exceeds it.

        A number of 0 is never found.
        """
        points = points.copy()
        rows = np.arange(len(points))
        found = np.zeros(len(points), np.int64)
        for level in reversed(self._levels):
            parts = level[found]
            sums = parts.cumsum(1)
            child = (sums <= points[:, None]).sum(1)
            # Rounding may carry a point past the last sum: it belongs to the last positive part.
            last = FAN_OUT - 1 - (parts[:, ::-1] > 0).argmax(1)
            child = np.minimum(child, last)
            points -= np.where(child > 0, sums[rows, child - 1], 0.0)
            found = found * FAN_OUT + child
        return found
