"""An actor at work: one optimiser step of the policy gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from marlogue.agents import Answered, LLMPolicy, k3, micro_batches, sum_by_row
from marlogue.algorithms.judges import Compute, TrunkTerm
from marlogue.algorithms.losses import actor_loss
from marlogue.algorithms.not_finite import require_finite
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.sample import Sample


class Actor:
    """A policy with its optimiser.

    Args:
        policy: the agent.
        optimizer: of the policy (and of its value head, where it has one).
        temperature: of the log-probabilities.
        micro_batch_size: sequences in one forward pass; None to let their length decide.
        compute: precision of the computation, as a context.
        trunk_term: the critic's loss on the same trunk; None with a critic of its own.
        reference: frozen initial policy for the KL penalty; None without.
    """

    def __init__(
        self,
        policy: LLMPolicy,
        optimizer: Optimizer,
        *,
        temperature: float,
        micro_batch_size: int | None,
        compute: Compute,
        trunk_term: TrunkTerm | None = None,
        reference: LLMPolicy | None = None,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.temperature = temperature
        self.micro_batch_size = micro_batch_size
        self.compute = compute
        self.trunk_term = trunk_term
        self.reference = reference

    def step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One optimiser step on ``- mean(log pi(a|h) * A)``, plus the trunk's value loss.

        Raises:
            NotFinite: when a log-probability, a loss or the gradient is not finite; model and
                optimiser are as they were.
        """
        with self.optimizer.accumulating():
            return self._step(samples)

    def _step(self, samples: Sequence[Sample]) -> dict[str, float]:
        count = len(samples)
        actor_total, value_total, log_prob_total, tokens = 0.0, 0.0, 0.0, 0
        for rows in self._split(samples):
            some = [samples[row] for row in rows]
            with self.compute():
                scores = self.policy.score(_answered(some), temperature=self.temperature)
            log_probs = scores.log_probs
            found = log_probs.tolist()
            require_finite("log_prob", found, some)
            advantages = log_probs.new_tensor([sample.advantage for sample in some])
            loss = actor_loss(log_probs, advantages, count)
            actor_total += loss.item()
            require_finite("actor_loss", [actor_total])
            if self.trunk_term is not None:
                value_part = self.trunk_term.loss(scores, some, count)
                loss = loss + self.trunk_term.value_loss_coef * value_part
                value_total += value_part.item()
                require_finite("value_loss", [value_total])
            loss.backward()
            for sample, log_prob in zip(some, found, strict=True):
                log_prob_total += log_prob
                tokens += len(sample.completion_ids)
                if math.isnan(sample.log_prob):
                    sample.log_prob = log_prob
        metrics = {
            "actor_loss": actor_total,
            "entropy": -log_prob_total / max(tokens, 1),
            "grad_norm": self.optimizer.step(),
        }
        if self.trunk_term is not None:
            metrics["value_loss"] = value_total
        return metrics

    @torch.no_grad()
    def penalize(self, samples: Sequence[Sample], coefficient: float) -> None:
        """Set the penalties to ``coefficient * KL(policy || reference)``, with the k3 estimate
        summed over the generated tokens."""
        if self.reference is None:
            return
        for rows in self._split(samples):
            some = [samples[row] for row in rows]
            answered = _answered(some)
            with self.compute():
                ours = self.policy.score(answered, temperature=self.temperature)
                theirs = self.reference.score(answered, temperature=self.temperature)
            estimates = k3(ours.token_log_probs, theirs.token_log_probs.to(self.policy.device))
            divergence = sum_by_row(estimates, ours.rows, len(some))
            for sample, kl, log_prob in zip(
                some, divergence.tolist(), ours.log_probs.tolist(), strict=True
            ):
                sample.reference_kl = kl
                sample.penalty = coefficient * kl
                sample.log_prob = log_prob

    def _split(self, samples: Sequence[Sample]) -> Iterator[list[int]]:
        lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in samples]
        return micro_batches(lengths, self.micro_batch_size, self.policy.device)


def _answered(samples: Sequence[Sample]) -> list[Answered]:
    return [Answered(sample.prompt_ids, sample.completion_ids) for sample in samples]
