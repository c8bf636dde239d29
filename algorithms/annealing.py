"""Numbers that change over a training: exploration, guidance weights, importance exponents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from marlogue.agents.rules import check_fields, one_of, real


@dataclass(frozen=True)
class Anneal:
    """A number that goes from ``start`` to ``end`` over the first part of a training, then stays.

    Calling it with the progress, in [0, 1], gives the number.

    Args:
        start: the number at progress 0.
        end: the number from progress ``until`` on.
        until: share of the training after which ``end`` is reached; 0 for ``end`` from the start.
        shape: "linear"; "cosine" leaves and arrives slowly; "exponential" changes by a constant
            factor, for which both ends must be above 0.

    Raises:
        ValueError: when a field has a wrong type or range.
    """

    start: float = real(1.0)
    end: float = real(1.0)
    until: float = real(1.0, at_least=0, at_most=1)
    shape: Literal["linear", "cosine", "exponential"] = one_of(
        "linear", ("linear", "cosine", "exponential")
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.shape == "exponential" and min(self.start, self.end) <= 0:
            raise ValueError(
                f"start ({self.start}) and end ({self.end}) must be above 0 when shape is "
                "'exponential'; set shape='linear' to reach 0."
            )

    def __call__(self, progress: float) -> float:
        """The number at a progress.

        Raises:
            ValueError: when ``progress`` is no number of at least 0.
        """
        if not progress >= 0:
            raise ValueError(f"progress ({progress!r}) must be a number of at least 0.")
        if progress >= self.until:
            return self.end
        share = progress / self.until
        if self.shape == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** share
        return self.start + (self.end - self.start) * share
