"""One update of actor-attention-critic: critic, actors, temperature, slow copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from stable_baselines3.common.utils import polyak_update
from torch import Tensor

from marlogue.agents.action_distributions import DiscreteActions
from marlogue.agents.attention import rows_of
from marlogue.agents.attention_critic import AttentionCritic
from marlogue.algorithms import aac_diagnostics as figures
from marlogue.algorithms.aac_actors import ActorLoss, team_of_values
from marlogue.algorithms.aac_config import AACConfig
from marlogue.algorithms.aac_losses import (
    attention_entropy,
    consistency_loss,
    critic_loss,
    masked_mean,
    taken,
    temperature_loss,
)
from marlogue.algorithms.aac_networks import AACNetworks
from marlogue.algorithms.aac_rows import (
    Asked,
    Preparation,
    Rows,
    rows_of_sequences,
    rows_of_transitions,
)
from marlogue.algorithms.aac_targets import expected_value, priorities, sampled_value
from marlogue.algorithms.bad_numbers import SkippedSteps
from marlogue.algorithms.not_finite import NotFinite, traced
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.replay_data import Transitions
from marlogue.algorithms.sequence_replay import Sequences
from marlogue.algorithms.streams import restore_generator

_GENERATOR, _UPDATES = "generator", "updates"
# An update tells all about itself once in so many: figures cost time.
_DIAGNOSED = 10
# Share of the mean TD error by which the level of the values moves in an update.
_LEVEL_RATE = 0.3
# Attention is looked at in so many samples, of teams of so many agents.
_ATTENTION_SAMPLES, _ATTENTION_AGENTS = 16, 128


class Updated(NamedTuple):
    """What an update gives back.

    Attributes:
        figures: by tag, for the log.
        errors: [B], mean absolute TD error of each drawn step, for its priority; None where the
            batch was skipped, which leaves priorities as they are.
    """

    figures: dict[str, float]
    errors: Tensor | None


class AACLearner:
    """Learns from batches of replay.

    Per update, for the agents i that are asked (all, or ``num_queries`` of each sample)::

        y_i    = r_i + gamma (1 - terminated) (Qbar_i(o', a') - alpha log pi_i(a'_i | o'_i))
        critic:  mean (Q_i(o, a) - y_i)^2
        actors:  see :class:`marlogue.algorithms.aac_actors.ActorLoss`

    with a' from the target policies; of discrete actions the expectation over a'_i is taken, given
    the others' a'.

    Args:
        args: the configuration.
        networks: what is learnt.
        prepare: what is done to observations and rewards before.
        seed: seed of all draws.
    """

    def __init__(
        self, args: AACConfig, networks: AACNetworks, prepare: Preparation, seed: int
    ) -> None:
        self.args = args
        self.generator = torch.Generator(networks.device).manual_seed(seed)
        clip = args.max_grad_norm
        rate = args.agent_learning_rate
        own = args.critic_learning_rate
        self.actor_steps = Optimizer(networks.actors.parameters(), rate, clip, weight_decay=0.0)
        self.critic_steps = Optimizer(
            networks.critic_parameters(), rate if own is None else own, clip, weight_decay=0.0
        )
        self.temperature_steps = Optimizer([networks.log_temperature], rate, weight_decay=0.0)
        self.skipped = SkippedSteps(args.max_bad_steps)
        self.updates = 0
        self.use(networks, prepare)

    def use(self, networks: AACNetworks, prepare: Preparation) -> None:
        """Go on with networks of the same parameters, for another team."""
        self.networks = networks
        self.prepare = prepare
        self.actor_loss = ActorLoss(self.args, networks, self.generator)
        self.target_entropies = _target_entropies(self.args, networks)

    def set_progress(self, factor: float) -> None:
        """Set the learning rates to a schedule's factor of their base."""
        for steps in self._optimizers().values():
            steps.set_progress(factor)

    def state_tensors(self) -> dict[str, Tensor]:
        """What changes beside the networks: optimisers, draws, the number of updates."""
        found = {
            f"{name}.{key}": tensor
            for name, steps in self._optimizers().items()
            for key, tensor in steps.state_tensors().items()
        }
        counted = torch.tensor(self.updates)
        return {**found, _GENERATOR: self.generator.get_state(), _UPDATES: counted}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`state_tensors` gave.

        Raises:
            ValueError: when it is that of other networks.
        """
        for name, steps in self._optimizers().items():
            prefix = f"{name}."
            own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            steps.load_state_tensors(own)
        restore_generator(self.generator, tensors[_GENERATOR])
        self.updates = int(tensors[_UPDATES])

    def _optimizers(self) -> dict[str, Optimizer]:
        return {
            "actors": self.actor_steps,
            "critic": self.critic_steps,
            "temperature": self.temperature_steps,
        }

    def update(self, batch: Transitions | Sequences, guidance_weight: float = 0.0) -> Updated:
        """Learn from a batch.

        Where the critic's step would not be finite, the batch is skipped before anything is touched
        (optimisers, slow copies, the level of values); where the actors' would not be, they and the
        temperature are left as they are.

        Args:
            batch: of replay.
            guidance_weight: w of what guidance the batch holds.

        Raises:
            FloatingPointError: after ``max_bad_steps`` skipped steps of critic or actors in a row.
        """
        networks = self.networks
        if isinstance(batch, Sequences):
            rows = rows_of_sequences(networks, batch, self.prepare, self.args.n_step)
        else:
            rows = rows_of_transitions(networks, batch, self.prepare)
        asked = self._asked(rows)
        told = self.updates % _DIAGNOSED == 0
        targets = rows.targets(self._next_values(rows, asked), asked.queries)
        number, self.updates = self.updates, self.updates + 1
        try:
            q, known = self._step_critic(rows, asked, targets, told)
        except NotFinite as error:
            self.skipped.skip("critic", "critic", error, batch)
            return Updated({}, None)
        self.skipped.made("critic")
        if number % self.args.policy_delay == 0:
            try:
                known |= self._step_actors(rows, asked, guidance_weight, told)
                self.skipped.made("actors")
            except NotFinite as error:
                self.skipped.skip("actors", "actor", error, batch)
        self._move_targets()
        errors = priorities(q, targets, asked.mask)
        if isinstance(batch, Sequences):
            errors = _mean_by_sequence(errors, batch.trained)
        return Updated(figures.floats(known), errors)

    def _asked(self, rows: Rows) -> Asked:
        count = self.args.num_queries
        if count is None or count >= self.networks.team.num_agents:
            return Asked(None, rows.present)
        queries = self.networks.critic.random_queries(
            count, len(rows.present), present=rows.present, generator=self.generator
        )
        return Asked(queries, rows_of(rows.present, queries))

    @torch.no_grad()
    def _next_values(self, rows: Rows, asked: Asked) -> Tensor:
        """V of the asked agents [R, M] at what followed, from the slow copies."""
        networks, policy = self.networks, rows.next_policy
        if self.args.deterministic:
            actions = policy.mode()
            log_probs = torch.zeros(actions.shape[:-1], device=actions.device)
        else:
            actions, log_probs = policy.sample(self.generator)
        q = networks.target_critic(rows.next_seen, actions, rows.next_attending, asked.queries)
        if isinstance(policy, DiscreteActions):
            table = DiscreteActions(asked.of(policy.logits)).log_probs
            return expected_value(q, table, networks.temperature)
        return sampled_value(q, asked.of(log_probs), networks.temperature)

    def _step_critic(
        self, rows: Rows, asked: Asked, targets: Tensor, told: bool
    ) -> tuple[Tensor, figures.Known]:
        args, critic = self.args, self.networks.critic
        q = critic(rows.seen, rows.actions, rows.attending, asked.queries)
        if self.networks.team.discrete:
            q = taken(q, asked.of(rows.actions))
        loss = critic_loss(q, targets, asked.mask, rows.weights, args.huber)
        known: figures.Known = {"critic/loss": loss}
        if self.networks.local_values is not None:
            local = self._local_loss(rows, asked, targets)
            known["critic/local_loss"] = local
            loss = loss + local
        if args.attention_entropy_coef:
            assert isinstance(critic, AttentionCritic)
            spread = attention_entropy(
                critic.attention_weights(rows.seen, rows.actions, rows.attending, asked.queries)
            ).mean(1)
            loss = loss - args.attention_entropy_coef * masked_mean(spread, asked.mask)
        loss.backward()
        try:
            known["critic/grad_norm"] = self.critic_steps.step()
        except NotFinite as error:
            raise traced(
                error, target=targets[asked.mask], value=q[asked.mask], loss=loss
            ) from None
        self._move_level(targets - q.detach(), asked.mask, rows.weights)
        if told:
            known |= figures.critic_figures(q, targets, asked.mask)
            known |= self._attention_figures(rows)
        return q.detach(), known

    def _move_level(self, errors: Tensor, mask: Tensor, weights: Tensor) -> None:
        """Move the level of all values, which the fast and the slow critic share. It gets to where
        rewards put it long before the networks would, which learn the differences then. Weights
        [R] and ``huber`` count as in the critic's loss, or the two would pull against each other.
        """
        networks, bound = self.networks, self.args.huber
        if bound is not None:
            errors = errors.clamp(-bound, bound)
        error = masked_mean(errors, mask, weights)
        share = masked_mean(torch.ones_like(errors), mask, weights).clamp(min=1e-8)
        networks.critic.level.add_(_LEVEL_RATE * error / share)
        networks.target_critic.level.copy_(networks.critic.level)

    def _local_loss(self, rows: Rows, asked: Asked, targets: Tensor) -> Tensor:
        """Losses of the agents' local values: their own TD errors, and that they add up."""
        args, critic, heads = self.args, self.networks.critic, self.networks.local_values
        assert heads is not None
        assert isinstance(critic, AttentionCritic)
        local = heads(critic.own_encoding(rows.seen), rows.actions, rows.attending)
        own = critic_loss(asked.of(local), targets, asked.mask, rows.weights, args.huber)
        team = team_of_values(targets, asked.mask, rows.present, args.reward_sharing)
        mixed = critic.team_value(local, rows.seen, rows.attending)
        together = consistency_loss(team, mixed, rows.weights)
        return args.local_value_coef * own + args.consistency_coef * together

    def _step_actors(
        self, rows: Rows, asked: Asked, guidance_weight: float, told: bool
    ) -> figures.Known:
        loss, known = self.actor_loss(rows, asked, guidance_weight, told)
        loss.backward(inputs=self.actor_steps.parameters)
        try:
            known |= {"actor/loss": loss, "actor/grad_norm": self.actor_steps.step()}
        except NotFinite as error:
            raise traced(error, loss=loss) from None
        if self.args.learn_temperature:
            entropies = self.actor_loss.entropies
            temperature_loss(
                self.networks.log_temperature,
                entropies,
                asked.of(self.target_entropies.expand_as(rows.present)),
                asked.mask,
            ).backward()
            self.temperature_steps.step()
        return known

    def _move_targets(self) -> None:
        networks, tau = self.networks, self.args.tau
        for fast, slow in (
            (networks.actors, networks.target_actors),
            (networks.critic, networks.target_critic),
        ):
            polyak_update(fast.parameters(), slow.parameters(), tau)

    @torch.no_grad()
    def _attention_figures(self, rows: Rows) -> figures.Figures:
        critic = self.networks.critic
        large = self.networks.team.num_agents > _ATTENTION_AGENTS
        if not self.networks.attends or large:
            return {}
        assert isinstance(critic, AttentionCritic)
        seen, actions, present = (
            values[:_ATTENTION_SAMPLES] for values in (rows.seen, rows.actions, rows.present)
        )
        nearby = critic.others.neighbourhood
        return figures.attention_figures(
            critic.attention_weights(seen, actions, present),
            present,
            reach=None if nearby is None else nearby.num_neighbours,
        )


def _target_entropies(args: AACConfig, networks: AACNetworks) -> Tensor:
    """[N], in nats."""
    team = networks.team
    if args.target_entropy is not None:
        wanted = [args.target_entropy] * team.num_agents
    elif team.discrete:
        wanted = [0.3 * math.log(size) for size in team.action_sizes]
    else:
        wanted = [-float(size) for size in team.action_sizes]
    return torch.tensor(wanted, device=networks.device)


def _mean_by_sequence(errors: Tensor, trained: Tensor) -> Tensor:
    """[B], means of the rows' errors [R] over the trained steps [B, T] of each sequence."""
    table = torch.zeros(trained.shape, dtype=errors.dtype, device=errors.device)
    table[trained] = errors
    return table.sum(-1) / trained.sum(-1).clamp(min=1)
