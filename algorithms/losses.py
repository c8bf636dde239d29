"""Losses of the on-policy learners.

Each is a sum over the rows that it is given, divided by ``count``, the size of the whole
minibatch: micro-batches add up to the minibatch's mean, however it is cut.
"""

from __future__ import annotations

import torch
from torch import Tensor


def actor_loss(log_probs: Tensor, advantages: Tensor, count: int) -> Tensor:
    """``- mean(log pi(a|h) * A)``: the policy gradient with a baseline (Williams 1992; the
    actor-critic of Sutton and Barto 2018, section 13.5), without importance weights.

    Args:
        log_probs: [B] of the completions, with a graph.
        advantages: [B], fixed.
        count: size of the minibatch.
    """
    return -(log_probs * advantages).sum() / count


def value_loss(values: Tensor, targets: Tensor, count: int) -> Tensor:
    """``mean (y - V)^2`` with fixed targets [B]."""
    return (targets - values).square().sum() / count


def clipped_value_loss(
    values: Tensor, old_values: Tensor, targets: Tensor, clip_range: float, count: int
) -> Tensor:
    """``mean max((V - y)^2, (V_old + clip(V - V_old, -eps, eps) - y)^2)`` (Schulman et al., PPO's
    reference code; Engstrom et al. 2020, section 3).

    Args:
        values: [B] with a graph.
        old_values: [B] as predicted at collection.
        targets: [B], fixed.
        clip_range: eps.
        count: size of the minibatch.
    """
    clipped = old_values + (values - old_values).clamp(-clip_range, clip_range)
    errors = torch.maximum((values - targets).square(), (clipped - targets).square())
    return errors.sum() / count
