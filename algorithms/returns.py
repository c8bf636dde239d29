"""Targets, advantages and returns, as functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: Advantages are divided by at least this, so that equal ones don't explode.
MIN_STD = 1e-6


def td_target(reward: float, next_value: float | None, discount: float) -> float:
    """``r + discount * V(h')``, or ``r`` where nothing follows (``next_value`` is None).

    The one-step target of Sutton and Barto 2018, section 6.1.
    """
    return reward if next_value is None else reward + discount * next_value


def normalized(advantages: Tensor) -> Tensor:
    """Centre a group of B advantages and divide by its population standard deviation (at least
    ``MIN_STD``). A single advantage stays as it is: a group of one has no spread."""
    if advantages.numel() < 2:
        return advantages
    return (advantages - advantages.mean()) / advantages.std(correction=0).clamp(min=MIN_STD)


def expected_returns(rewards: Sequence[float]) -> list[float]:
    """Undiscounted sum of the rewards from each turn on."""
    tail = torch.tensor(list(rewards), dtype=torch.float64).flip(0).cumsum(0).flip(0)
    return tail.tolist()
