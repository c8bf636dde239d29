"""What an update of actor-attention-critic works on, whichever kind of replay it comes from.

R rows: the B transitions of a batch, or the trained steps of all its sequences. N agents, D
numbers that the critic reads of an agent, A actions or size of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from marlogue.agents.action_distributions import ActionDistribution
from marlogue.agents.attention import rows_of
from marlogue.algorithms.aac_networks import AACNetworks
from marlogue.algorithms.aac_targets import n_step_targets, soft_td_targets
from marlogue.algorithms.replay_data import Transitions
from marlogue.algorithms.sequence_replay import Sequences


class Rows(NamedTuple):
    """R moments of the team.

    Attributes:
        policy: from the query agents ([R, M]; None for all N) to the distributions of their
            current policies, with a graph.
        next_policy: of the target policies at what followed.
        seen: [R, N, D], what the critic reads.
        next_seen: [R, N, D].
        actions: [R, N] or [R, N, A], as taken.
        present: [R, N] bool, agents that act.
        attending: the same as networks want it: None where everybody is present, which saves them
            masks.
        next_attending: [R, N] bool, agents whose future counts; or None likewise.
        weights: [R], importance weights.
        targets: from the next values [R, M] of the query agents, and who they are ([R, M]; None
            for all), to the targets [R, M].
        available: [R, N, A] bool, or None.
        guidance: [R, N] or [R, N, A], or None.
    """

    policy: Callable[[Tensor | None], ActionDistribution]
    next_policy: ActionDistribution
    seen: Tensor
    next_seen: Tensor
    actions: Tensor
    present: Tensor
    attending: Tensor | None
    next_attending: Tensor | None
    weights: Tensor
    targets: Callable[[Tensor, Tensor | None], Tensor]
    available: Tensor | None
    guidance: Tensor | None


@dataclass(frozen=True)
class Asked:
    """The agents whose losses are taken.

    Attributes:
        queries: [R, M] long; None for all N in order.
        mask: [R, M] bool, those that take part.
    """

    queries: Tensor | None
    mask: Tensor

    def of(self, values: Tensor) -> Tensor:
        """Their rows [R, M, ...] of values [R, N, ...]."""
        return rows_of(values, self.queries)


@dataclass(frozen=True)
class Preparation:
    """What is done to what replay holds before networks read it.

    Attributes:
        observations: normalises [..., N, D].
        rewards: scales.
    """

    observations: Callable[[Tensor], Tensor] = lambda seen: seen
    rewards: Callable[[Tensor], Tensor] = lambda rewards: rewards


def rows_of_transitions(networks: AACNetworks, batch: Transitions, prepare: Preparation) -> Rows:
    """The rows of a batch of transitions; R = B."""
    seen, next_seen = (
        prepare.observations(batch.observations),
        prepare.observations(batch.next_observations),
    )
    rewards = prepare.rewards(batch.rewards)

    def targets(next_values: Tensor, queries: Tensor | None) -> Tensor:
        asked = rows_of(rewards, queries), rows_of(batch.discounts, queries)
        return soft_td_targets(*asked, next_values)

    def policy(queries: Tensor | None) -> ActionDistribution:
        return networks.actors(seen, available=batch.available, queries=queries)[0]

    with torch.no_grad():
        next_policy, _ = networks.target_actors(next_seen, available=batch.next_available)
    return Rows(
        policy=policy,
        next_policy=next_policy,
        seen=seen,
        next_seen=next_seen,
        actions=batch.actions,
        present=batch.present,
        attending=_unless_all(batch.present),
        next_attending=_unless_all(batch.next_present),
        weights=batch.weights,
        targets=targets,
        available=batch.available,
        guidance=batch.guidance,
    )


def rows_of_sequences(
    networks: AACNetworks, batch: Sequences, prepare: Preparation, n_step: int
) -> Rows:
    """The rows of a batch of stretches: their trained steps.

    The actors' memory begins as it was when the first step was taken and is carried along, the
    target actors' too, so that each row has been reached as it is in play. The critic reads what
    the (target) actors remember, without a graph.
    """
    seen = prepare.observations(batch.observations)
    features, _ = networks.actors.encode(seen, batch.hidden)
    with torch.no_grad():
        slow, _ = networks.target_actors.encode(seen, batch.hidden)
    kept = batch.trained

    def now(values: Tensor) -> Tensor:
        return values[:, : kept.shape[1]][kept]

    def later(values: Tensor) -> Tensor:
        return values[:, 1:][kept]

    def targets(next_values: Tensor, queries: Tensor | None) -> Tensor:
        assert queries is None  # AACConfig refuses them: sums go along every agent's episode
        along = torch.zeros_like(batch.rewards)
        along[kept] = next_values
        rewards = prepare.rewards(batch.rewards)
        return n_step_targets(rewards, batch.discounts, along, batch.stops, n_step)[kept]

    def policy(queries: Tensor | None) -> ActionDistribution:
        assert queries is None
        return networks.actors.decide(now(features), available)

    available = None if batch.available is None else now(batch.available)
    present, next_present = batch.present[kept], batch.next_present[kept]
    with torch.no_grad():
        next_available = None if batch.available is None else later(batch.available)
        next_policy = networks.target_actors.decide(later(slow), next_available)
    return Rows(
        policy=policy,
        next_policy=next_policy,
        seen=torch.cat([now(seen), now(features).detach()], -1),
        next_seen=torch.cat([later(seen), later(slow)], -1),
        actions=batch.actions[kept],
        present=present,
        attending=_unless_all(present),
        next_attending=_unless_all(next_present),
        weights=batch.weights[:, None].expand_as(kept)[kept],
        targets=targets,
        available=available,
        guidance=None if batch.guidance is None else batch.guidance[kept],
    )


def _unless_all(present: Tensor) -> Tensor | None:
    return None if bool(present.all()) else present
