"""Soft TD targets of actor-attention-critic, as functions of tensors.

B samples, T steps, N agents, A actions. An action that is not available has a log-probability of
minus infinity (or one so low that its probability is 0); its value counts for nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def expected_value(q: Tensor, log_probs: Tensor, temperature: Tensor | float) -> Tensor:
    """``sum_a pi(a) (Q(a) - alpha log pi(a))`` [...], the soft value of a discrete policy
    (Christodoulou 2019, arXiv 1910.07207), of ``q`` and ``log_probs`` [..., A]."""
    probs, log_probs, q = possible_only(log_probs, q)
    return (probs * (q - temperature * log_probs)).sum(-1)


def sampled_value(q: Tensor, log_probs: Tensor, temperature: Tensor | float) -> Tensor:
    """``Q(a) - alpha log pi(a)`` [...] of a sampled action, the soft value of Haarnoja et al.
    2018. For discrete actions pick ``q`` and ``log_probs`` of the action first."""
    return q - temperature * log_probs


def soft_td_targets(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """``y = r + gamma (1 - terminated) V(o')`` (Iqbal and Sha 2019, section 3.2), without a graph.

    Args:
        rewards: [B, N]; for n steps their discounted sum, as the replay buffer gives it.
        discounts: [B, N], ``gamma^n (1 - terminated)``. A truncation does not zero it: the
            episode would have gone on, so the value of what follows counts.
        next_values: [B, N] of :func:`expected_value` or :func:`sampled_value`, from the target
            networks. Where the discount is 0 they count for nothing, even when not finite.

    Returns:
        [B, N].
    """
    return (rewards + _discounted(discounts, next_values)).detach()


def n_step_targets(
    rewards: Tensor, discounts: Tensor, next_values: Tensor, stops: Tensor, n: int
) -> Tensor:
    """n-step targets along sequences, without a graph (Sutton and Barto 2018, section 7.1).

    ``y_t = r_t + d_t r_{t+1} + ... + d_t ... d_{t+n-1} V(o_{t+n})``, where the sum ends early, and
    the value of what follows takes over, at a step that ``stops`` and at the end of the sequence.
    The entropy of the steps between is not added (only that in the last value).

    Args:
        rewards: [B, T, N].
        discounts: [B, T, N], ``gamma (1 - terminated)`` of each step.
        next_values: [B, T, N], V at the state after each step.
        stops: [B, T] bool, steps that no sum goes beyond: truncations, ends of what is filled.
        n: steps, at least 1.

    Returns:
        [B, T, N].

    Raises:
        ValueError: when ``n`` is below 1.
    """
    if n < 1:
        raise ValueError(f"n ({n!r}) must be at least 1; set n=1 for one-step targets.")
    last = torch.ones_like(stops[:, :1])
    stops = torch.cat([stops[:, :-1], last], dim=1)[..., None]
    targets = rewards + _discounted(discounts, next_values)
    for _ in range(n - 1):
        later = torch.cat([targets[:, 1:], targets[:, -1:]], dim=1)
        following = torch.where(stops, next_values, later)
        targets = rewards + _discounted(discounts, following)
    return targets.detach()


def priorities(q: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """[B], mean absolute TD error over the agents that take part, for prioritised replay."""
    errors = (targets - q).detach().abs()
    if mask is None:
        return errors.mean(-1)
    return torch.where(mask, errors, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)


def possible_only(log_probs: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, log-probabilities and values [..., A], the latter two 0 where the first is."""
    probs = log_probs.exp()
    possible = probs > 0
    return probs, torch.where(possible, log_probs, 0.0), torch.where(possible, values, 0.0)


def _discounted(discounts: Tensor, values: Tensor) -> Tensor:
    return torch.where(discounts == 0, 0.0, discounts * values)
