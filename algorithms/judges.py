"""Critics at work: predicting values, and learning from the targets.

A judge answers for the values of some agents' samples. MAAC has one judge for the whole team, IAC
one per agent, on a critic of its own or on the agent's trunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from marlogue.agents import Critic, LLMPolicy, Scores
from marlogue.algorithms.histories import History, by_length
from marlogue.algorithms.losses import clipped_value_loss, value_loss
from marlogue.algorithms.not_finite import require_finite
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.sample import Sample

Compute = Callable[[], AbstractContextManager[object]]
#: Cuts histories into micro-batches of at most so many sequences.
Split = Callable[[Sequence[Any], int | None, torch.device], Iterator[list[int]]]


class ValueModel(Protocol):
    """What values are predicted with: a :class:`Critic`, or a policy with a value head."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""

    def values(self, histories: Sequence[Any]) -> Tensor:
        """Values [B] of B histories in one batch, differentiable."""


class Values:
    """Predicts the values of samples, each history once.

    V and the baseline of the advantage are values *as predicted at collection*: samples wait here
    from their collection on, and are valued before the model next changes.

    Args:
        model: predicts.
        history: what it reads of a sample.
        micro_batch_size: sequences in one forward pass; None to let their length decide.
        compute: precision of the computation, as a context.
        micro_batches: how histories are cut.
    """

    def __init__(
        self,
        model: ValueModel,
        history: History,
        micro_batch_size: int | None,
        compute: Compute,
        micro_batches: Split = by_length,
    ) -> None:
        self.model = model
        self.history = history
        self.micro_batch_size = micro_batch_size
        self.compute = compute
        self._micro_batches = micro_batches
        self.waiting: list[Sample] = []

    def expect(self, samples: Iterable[Sample]) -> None:
        """Take note of newly collected samples, and of the final observations behind them."""
        for sample in samples:
            if not sample.abstained or sample.turn_idx > 0:  # later ones are bootstrapped from
                self.waiting.append(sample)
            if sample.next is not None and sample.next.is_final_observation:
                self.waiting.append(sample.next)

    def come_with(self, first_minibatch: Sequence[Sample]) -> bool:
        """Whether the forward pass of an update on this minibatch predicts all that wait, early
        enough: no target needs them."""
        if not self.waiting:
            return True
        if any(sample.next is not None for sample in self.waiting):
            return False
        read = {self.history(sample) for sample in first_minibatch}
        return all(self.history(sample) in read for sample in self.waiting)

    @torch.no_grad()
    def predict_waiting(self) -> None:
        """Value every sample that waits."""
        if not self.waiting:
            return
        histories = list(dict.fromkeys(self.history(sample) for sample in self.waiting))
        predicted: dict[Any, float] = {}
        for rows in self.split(histories):
            some = [histories[row] for row in rows]
            with self.compute():
                values = self.model.values(some)
            predicted.update(zip(some, values.tolist(), strict=True))
        self.fill(predicted)

    def fill(self, predicted: dict[Any, float]) -> None:
        """Give the waiting samples their values."""
        for sample in self.waiting:
            sample.value = predicted[self.history(sample)]
        self.waiting = []

    def split(self, histories: Sequence[Any]) -> Iterable[list[int]]:
        """Rows of micro-batches."""
        return self._micro_batches(histories, self.micro_batch_size, self.model.device)


class CriticJudge:
    """A critic model with an optimiser of its own.

    Args:
        critic: the critic.
        values: predicts with it.
        optimizer: of the critic.
        value_loss_coef: weight of the loss.
    """

    def __init__(
        self, critic: Critic, values: Values, optimizer: Optimizer, value_loss_coef: float
    ) -> None:
        self.critic = critic
        self.values = values
        self.optimizer = optimizer
        self.value_loss_coef = value_loss_coef

    def step(self, samples: Sequence[Sample], targets: Sequence[float]) -> dict[str, float]:
        """One optimiser step on ``value_loss_coef * mean (y - V)^2``.

        A history that several samples share (G answers to one prompt, or a team's joint history)
        goes through the critic once; its value enters the mean once per sample, so the gradient is
        that of one pass each. Values that still wait are filled in from the same pass.

        Raises:
            NotFinite: when a value, the loss or the gradient is not finite; model and optimiser
                are as they were, and values that waited are filled in all the same.
        """
        with self.optimizer.accumulating():
            return self._step(samples, targets)

    def _step(self, samples: Sequence[Sample], targets: Sequence[float]) -> dict[str, float]:
        histories = [self.values.history(sample) for sample in samples]
        members: dict[Any, list[int]] = {}
        for row, history in enumerate(histories):
            members.setdefault(history, []).append(row)
        unique = list(members)
        wanted = torch.tensor(list(targets), dtype=torch.float32, device=self.critic.device)
        predicted: dict[Any, float] = {}
        total = 0.0
        for rows in self.values.split(unique):
            some = [unique[row] for row in rows]
            with self.values.compute():
                values = self.critic.values(some)
            value_of = torch.tensor([k for k, h in enumerate(some) for _ in members[h]])
            sample_of = torch.tensor([row for h in some for row in members[h]])
            loss = value_loss(values[value_of], wanted[sample_of], len(samples))
            (self.value_loss_coef * loss).backward()
            total += loss.item()
            predicted.update(zip(some, values.tolist(), strict=True))
        if self.values.waiting:
            self.values.fill(predicted)
        require_finite("value", [predicted[history] for history in histories], samples)
        require_finite("value_loss", [total])
        return {"value_loss": total, "critic_grad_norm": self.optimizer.step()}


class TrunkTerm:
    """The critic's part of the loss where it is a value head on the actor's own trunk.

    Args:
        policy: with a value head.
        reads_actions: Q(h, a), read at the last completion token, instead of V(h), read at the
            last prompt token.
        value_loss_coef: weight of the loss.
        value_clip_range: clip of the value's change; None for none.
    """

    def __init__(
        self,
        policy: LLMPolicy,
        *,
        reads_actions: bool,
        value_loss_coef: float,
        value_clip_range: float | None,
    ) -> None:
        self.policy = policy
        self.reads_actions = reads_actions
        self.value_loss_coef = value_loss_coef
        self.value_clip_range = value_clip_range

    def loss(self, scores: Scores, samples: Sequence[Sample], count: int) -> Tensor:
        """The mean squared error over ``count`` samples, of which ``samples`` are scored here."""
        assert self.policy.value_head is not None
        hidden = scores.last_hidden if self.reads_actions else scores.prompt_hidden
        values = self.policy.value_head(hidden)
        targets = values.new_tensor([sample.target for sample in samples])
        if self.value_clip_range is None:
            return value_loss(values, targets, count)
        old = values.new_tensor([sample.value for sample in samples])
        return clipped_value_loss(values, old, targets, self.value_clip_range, count)
