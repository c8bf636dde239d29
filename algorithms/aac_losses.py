"""Losses of actor-attention-critic, as functions of tensors.

B samples, N agents, M agents that are looked at (N, or a random subset), A actions. All
means are over the agents that take part: ``mask`` is True for those, and what stands at the others
(even a NaN) counts for nothing. ``weights`` [B] are importance weights of prioritised replay.
An action that is not available has a log-probability of minus infinity (or one so low that its
probability is 0); its value counts for nothing either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marlogue.algorithms.aac_targets import expected_value, possible_only

#: Actor gradients by name: those for discrete actions first.
ACTOR_GRADIENTS = ("expected", "counterfactual", "shared_value", "pathwise")


def masked_mean(
    values: Tensor, mask: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Mean of ``weights * values`` over the entries where ``mask`` is True; 0 where none is.

    Args:
        values: [B, ...].
        mask: bool, the shape of ``values``; None for all.
        weights: [B], not normalised here; None for 1.
    """
    if weights is not None:
        values = values * weights.reshape(-1, *[1] * (values.ndim - 1))
    if mask is None:
        return values.mean()
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def masked_rows_mean(values: Tensor, mask: Tensor) -> Tensor:
    """[B], mean of ``values`` [B, M] over the agents of each sample that take part; 0 where none
    does."""
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)


def critic_loss(
    q: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    huber: float | None = None,
) -> Tensor:
    """Mean of ``(Q - y)^2``; with ``huber`` the error counts linearly beyond it.

    Args:
        q: [B, M] of the taken actions, with a graph.
        targets: [B, M], fixed.
        mask: [B, M].
        weights: [B].
        huber: delta; the loss is then ``2 delta (|e| - delta / 2)`` outside, so that both agree
            inside.
    """
    errors = _kept(q - _kept(targets.detach(), mask), mask).abs()
    losses = errors.square()
    if huber is not None:
        losses = torch.where(errors <= huber, losses, 2 * huber * errors - huber**2)
    return masked_mean(losses, mask, weights)


# Actors with discrete actions


def taken(values: Tensor, actions: Tensor) -> Tensor:
    """The entries [...] of ``values`` [..., A] at the ``actions`` [...] (long)."""
    return values.gather(-1, actions[..., None]).squeeze(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """``- sum_a pi(a) log pi(a)`` [...] in nats, of ``log_probs`` [..., A]."""
    probs, log_probs, _ = possible_only(log_probs, log_probs)
    return -(probs * log_probs).sum(-1)


def advantages(values: Tensor, log_probs: Tensor) -> Tensor:
    """``Q(a) - sum_b pi(b) Q(b)`` [..., A]: what an action adds, the others' actions as they are
    (Foerster et al. 2018). 0 for actions that are not available. Without a graph."""
    probs, _, values = possible_only(log_probs.detach(), values.detach())
    return torch.where(probs > 0, values - (probs * values).sum(-1, keepdim=True), 0.0)


def expected_actor_loss(
    log_probs: Tensor, q: Tensor, temperature: Tensor | float, mask: Tensor | None = None
) -> Tensor:
    """Mean of ``sum_a pi_i(a|o_i) [alpha log pi_i(a|o_i) - Q_i(o, (a, a_-i))]``.

    The sum over all own actions leaves no noise of the own draw, only that of the others' actions,
    which must come from the current policies.

    Args:
        log_probs: [B, M, A], with a graph.
        q: [B, M, A], values of all own actions; detached here.
        temperature: alpha; detached here.
        mask: [B, M].
    """
    values = expected_value(_kept(q.detach(), mask), log_probs, _fixed(temperature))
    return -masked_mean(values, mask)


def counterfactual_actor_loss(
    log_probs: Tensor,
    actions: Tensor,
    q: Tensor,
    temperature: Tensor | float,
    mask: Tensor | None = None,
) -> Tensor:
    """Mean of ``- log pi_i(a_i) A_i`` with the counterfactual advantage
    ``A_i = S_i(a_i) - sum_b pi_i(b) S_i(b)``, ``S_i(b) = Q_i(o, (b, a_-i)) - alpha log pi_i(b)``
    (Iqbal and Sha 2019, section 3.3; the entropy is in the baseline, too, which lowers the
    variance and not the mean).

    Args:
        log_probs: [B, M, A], with a graph.
        actions: [B, M] (long), drawn from the same policies as the others' actions in ``q``.
        q: [B, M, A]; detached here.
        temperature: alpha; detached here.
        mask: [B, M].
    """
    fixed = log_probs.detach()
    soft = _kept(q.detach(), mask) - _fixed(temperature) * fixed
    gains = taken(advantages(soft, fixed), actions)
    return -masked_mean(taken(log_probs, actions) * gains, mask)


def shared_value_actor_loss(
    log_probs: Tensor,
    team_values: Tensor,
    temperature: Tensor | float,
    mask: Tensor | None = None,
) -> Tensor:
    """Mean of ``- log pi_i(a_i) (Q_team(o, a) - alpha log pi_i(a_i))``: every agent's score is
    weighted by the team's whole value. Right on average when the actions are fresh, but without
    any credit; here to compare with.

    Args:
        log_probs: [B, M] of the sampled actions, with a graph.
        team_values: [B]; detached here.
        temperature: alpha; detached here.
        mask: [B, M].
    """
    gains = team_values.detach()[:, None] - _fixed(temperature) * log_probs.detach()
    return -masked_mean(log_probs * _kept(gains, mask), mask)


# Actors with continuous actions


def own_and_others(actions: Tensor, team_reward: bool) -> tuple[Tensor, Tensor]:
    """The reparameterised actions as a pathwise loss needs them, ``(own, others)``.

    A critic reads each agent's own action from ``own`` and what the others do from ``others``.
    With a team reward gradients flow through both (an agent's action matters in every agent's
    value); with individual rewards only through ``own``: an agent does not pay for what its action
    does to others.

    Args:
        actions: [B, N, A], with a graph.
        team_reward: whether the agents share one reward.
    """
    return actions, actions if team_reward else actions.detach()


def pathwise_actor_loss(
    q: Tensor, log_probs: Tensor, temperature: Tensor | float, mask: Tensor | None = None
) -> Tensor:
    """Mean of ``alpha log pi_i(a_i) - Q_i(o, a)`` for individual rewards (Haarnoja et al. 2018,
    eq. 12). The critic's parameters must not learn from it: freeze them, or take gradients for the
    actors' parameters only.

    Args:
        q: [B, M] with a graph through ``own`` of :func:`own_and_others`.
        log_probs: [B, M] of the sampled actions, with a graph; zeros for deterministic policies.
        temperature: alpha; detached here.
        mask: [B, M].
    """
    return masked_mean(_fixed(temperature) * log_probs - q, mask)


def team_pathwise_actor_loss(
    team_values: Tensor,
    log_probs: Tensor,
    temperature: Tensor | float,
    mask: Tensor | None = None,
) -> Tensor:
    """Mean of ``(sum_i alpha log pi_i(a_i) - Q_team(o, a)) / n`` for a team reward, where n agents
    take part: all cross terms, each once. The division keeps each actor's gradient (and the
    meaning of alpha) what it is in :func:`pathwise_actor_loss` when every Q_i is Q_team.

    Args:
        team_values: [B] with a graph through all actions. When each Q_i estimates the team's
            value: their mean over the agents; when they add up to it: their sum.
        log_probs: [B, N] of the sampled actions, with a graph.
        temperature: alpha; detached here.
        mask: [B, N].
    """
    entropies = masked_mean(_fixed(temperature) * log_probs, mask)
    count = log_probs.numel() if mask is None else mask.sum().clamp(min=1)
    counted = team_values if mask is None else torch.where(mask.any(-1), team_values, 0.0)
    return entropies - counted.sum() / count


# Temperature and auxiliary losses


def temperature_loss(
    log_temperature: Tensor,
    entropies: Tensor,
    target_entropy: Tensor | float,
    mask: Tensor | None = None,
) -> Tensor:
    """``log alpha * mean(H - H_target)``: alpha falls while the entropy is above its target
    (Haarnoja et al. 2018b, arXiv 1812.05905, eq. 18, with log alpha as the variable).

    Args:
        log_temperature: scalar or [M], with a graph.
        entropies: [B, M], or ``- log pi`` of sampled actions; detached here.
        target_entropy: in nats, scalar or [M].
        mask: [B, M].
    """
    return masked_mean(log_temperature * (entropies - target_entropy).detach(), mask)


def consistency_loss(
    team_values: Tensor, mixed_values: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Mean of ``(Q_team - mix(Q_1 ... Q_N))^2`` [B]: local values that add up (VDN, Sunehag et al.
    2018) or mix (QMIX, Rashid et al. 2018) to the team's, which is fixed here."""
    return masked_mean((mixed_values - team_values.detach()).square(), None, weights)


def attention_entropy(attention: Tensor) -> Tensor:
    """``- sum_j w_ij log w_ij`` [..., M] in nats, of attention weights [..., M, N] that add up
    to 1; 0 where an agent attends to one other or to none."""
    logs = torch.where(attention > 0, attention, 1.0).log()  # a finite gradient at weights of 0
    return -(attention * logs).sum(-1)


def _fixed(temperature: Tensor | float) -> Tensor | float:
    return temperature.detach() if isinstance(temperature, Tensor) else temperature


def _kept(values: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros at the agents that don't take part, before arithmetic: 0 times NaN is NaN."""
    if mask is None:
        return values
    return torch.where(mask.reshape(*mask.shape, *[1] * (values.ndim - mask.ndim)), values, 0.0)
