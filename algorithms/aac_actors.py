"""The actors' loss of actor-attention-critic, by the name of its gradient, with guidance in it."""

from __future__ import annotations

import torch
from torch import Tensor

from marlogue.agents.action_distributions import DiscreteActions
from marlogue.algorithms import aac_diagnostics as figures
from marlogue.algorithms import aac_losses as losses
from marlogue.algorithms.aac_config import AACConfig, RewardSharing, chosen_gradient
from marlogue.algorithms.aac_networks import AACNetworks
from marlogue.algorithms.aac_rows import Asked, Rows
from marlogue.algorithms.guidance import (
    linear_value,
    logit_gradients,
    mixed_values,
    unit_spread,
)


class ActorLoss:
    """The loss of all actors on a batch.

    Discrete actions, all agents' drawn anew from their policies: ``expected``, ``counterfactual``
    or ``shared_value``; continuous ones: ``pathwise``. With guidance its values G take part in
    Q's: ``(1 - w) Q_i(a) + w G_i(a)``, both of unit spread over an agent's actions (Q only with
    ``advantage_normalization``); the entropy's part stays what it is. G_i is always agent i's
    alone, also where all share one value. Guidance that is known for the taken action alone
    weights that action's score: ``- w log pi_i(a_i) G_i``, which is exact for fresh actions and
    lags behind in replay.

    Args:
        args: the configuration.
        networks: actors and critic.
        generator: of the draws.

    Attributes:
        entropies: [R, M] in nats, of the latest loss; without a graph.
    """

    def __init__(self, args: AACConfig, networks: AACNetworks, generator: torch.Generator) -> None:
        self.args = args
        self.networks = networks
        self.generator = generator
        self.name = chosen_gradient(args, networks.team.discrete)
        self.entropies = torch.zeros(0)

    def __call__(
        self, rows: Rows, asked: Asked, weight: float, told: bool
    ) -> tuple[Tensor, figures.Known]:
        """The loss, and what there is to tell.

        Args:
            rows: the batch.
            asked: the agents whose losses are taken.
            weight: w of the guidance in ``rows``; without guidance it counts for nothing.
            told: whether to tell more than is at hand.
        """
        of_kind = self._discrete if self.networks.team.discrete else self._continuous
        guidance = rows.guidance if weight else None
        loss, told_of = of_kind(rows, asked, weight if guidance is not None else 0.0, told)
        if guidance is not None and guidance.ndim == 2:
            loss = loss + weight * _taken_loss(rows, guidance, asked)
        return loss, told_of

    def _discrete(
        self, rows: Rows, asked: Asked, weight: float, told: bool
    ) -> tuple[Tensor, figures.Known]:
        alpha = self.networks.temperature
        policy = rows.policy(asked.queries)
        assert isinstance(policy, DiscreteActions)
        with torch.no_grad():
            # The others are asked too, but nothing is learnt from them.
            team = policy if asked.queries is None else rows.policy(None)
            actions, _ = team.sample(self.generator)
            q = self.networks.critic(rows.seen, actions, rows.attending, asked.queries)
        log_probs = policy.log_probs
        own = asked.of(actions)
        self.entropies = losses.entropy(log_probs.detach())
        q, lead, told_of = self._guided(q, log_probs, rows, asked, told)
        if told:
            told_of |= self._told(rows, actions, asked)
        if self.name == "shared_value":
            shared = team_of_values(
                (1 - weight) * losses.taken(q, own),
                asked.mask,
                rows.present,
                self.args.reward_sharing,
            )
            chosen = losses.taken(log_probs, own)
            loss = losses.shared_value_actor_loss(chosen, shared, alpha, asked.mask)
            if lead is not None:
                led = losses.counterfactual_actor_loss(log_probs, own, lead, 0.0, asked.mask)
                loss = loss + weight * led
            return loss, told_of
        values = (1 - weight) * q if lead is None else mixed_values(q, lead, weight)
        if self.name == "expected":
            return losses.expected_actor_loss(log_probs, values, alpha, asked.mask), told_of
        loss = losses.counterfactual_actor_loss(log_probs, own, values, alpha, asked.mask)
        return loss, told_of

    def _guided(
        self, q: Tensor, log_probs: Tensor, rows: Rows, asked: Asked, told: bool
    ) -> tuple[Tensor, Tensor | None, figures.Known]:
        """Q and the guidance's values, [R, M, A] each, as they are mixed; None for the latter
        where it has no values of all actions. Q is scaled whatever the weight is, so that nothing
        jumps when it gets to 0."""
        guidance = rows.guidance
        if guidance is None:
            return q, None, {}
        available = self._available(rows, asked)
        if self.args.advantage_normalization:
            q = unit_spread(q, asked.mask, available)
        if guidance.ndim == 2:
            return q, None, {}
        given = asked.of(guidance)
        lead = unit_spread(given, asked.mask, available)
        told_of: figures.Known = {}
        if told:
            told_of |= figures.guidance_figures(
                logit_gradients(log_probs, q),
                logit_gradients(log_probs, lead),
                asked.mask,
                values=given,
                available=available,
            )
        return q, lead, told_of

    def _continuous(
        self, rows: Rows, asked: Asked, weight: float, told: bool
    ) -> tuple[Tensor, figures.Known]:
        alpha = self.networks.temperature
        policy = rows.policy(None)
        if self.args.deterministic:
            actions = policy.mode()
            log_probs = torch.zeros(actions.shape[:-1], device=actions.device)
        else:
            actions, log_probs = policy.sample(self.generator)
        shared = self.args.reward_sharing != "own"
        own, others = losses.own_and_others(actions, shared)
        q = self.networks.critic(rows.seen, others, rows.attending, asked.queries, own_actions=own)
        self.entropies = -asked.of(log_probs).detach()
        told_of: figures.Known = self._told(rows, actions, asked) if told else {}
        values = (1 - weight) * q
        if shared:
            team = losses.masked_rows_mean(values, asked.mask)
            loss = losses.team_pathwise_actor_loss(team, log_probs, alpha, rows.present)
        else:
            loss = losses.pathwise_actor_loss(values, asked.of(log_probs), alpha, asked.mask)
        if not weight or rows.guidance is None or rows.guidance.ndim == 2:
            return loss, told_of
        slopes = asked.of(rows.guidance)
        steep = _norm(slopes, asked.mask)
        if told:
            summed = torch.where(asked.mask, q, 0.0).sum()
            (learned,) = torch.autograd.grad(summed, actions, retain_graph=True)
            told_of |= figures.guidance_figures(asked.of(learned), slopes, asked.mask)
            told_of["guidance/spread"] = steep
        lead = linear_value(slopes / steep, asked.of(actions))
        return loss - weight * losses.masked_mean(lead, asked.mask), told_of

    def _told(self, rows: Rows, actions: Tensor, asked: Asked) -> figures.Known:
        team = self.networks.team
        told: figures.Known = dict(
            figures.entropy_figures(self.entropies, team.agents, asked.mask, asked.queries)
        )
        if team.discrete:
            told |= figures.choice_figures(actions, team.action_size, team.agents, rows.present)
        else:
            exists = self.networks.actors.exists
            told |= figures.saturation_figures(actions, exists, team.agents, rows.present)
        return told

    def _available(self, rows: Rows, asked: Asked) -> Tensor:
        """[R, M, A] bool, actions that exist and may be taken."""
        exists = self.networks.actors.exists.expand(len(asked.mask), -1, -1)
        if rows.available is not None:
            exists = exists & rows.available
        return asked.of(exists)


def team_of_values(
    values: Tensor, mask: Tensor, present: Tensor, reward_sharing: RewardSharing
) -> Tensor:
    """The team's value [R] from the values [R, M] of the agents that are asked: their mean where
    each estimates the team's value (a shared reward), else their sum, of which those that are
    asked are a sample of the ``present`` [R, N]."""
    mean = losses.masked_rows_mean(values, mask)
    return mean if reward_sharing != "own" else mean * present.sum(-1)


def _taken_loss(rows: Rows, guidance: Tensor, asked: Asked) -> Tensor:
    """``- log pi_i(a_i) G_i`` of the recorded actions, G [R, N] of unit spread."""
    gains = asked.of(guidance)
    kept = gains[asked.mask]
    if not kept.numel():
        return gains.sum() * 0.0
    scale = kept.std(correction=0).clamp(min=1e-6)
    log_probs = rows.policy(asked.queries).log_prob(asked.of(rows.actions))
    return -losses.masked_mean(log_probs * (gains - kept.mean()) / scale, asked.mask)


def _norm(slopes: Tensor, mask: Tensor) -> Tensor:
    """Root mean square length of the slopes [R, M, A] of those that take part."""
    return losses.masked_mean(slopes.square().sum(-1), mask).sqrt().clamp(min=1e-6)
