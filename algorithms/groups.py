"""The samples of an update, by agent and turn, with their minibatches, targets and advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from marlogue.algorithms.guidance import gradient_cosine
from marlogue.algorithms.returns import normalized, td_target
from marlogue.algorithms.sample import Sample

ItemT = TypeVar("ItemT")


@dataclass
class Group:
    """Samples of one agent and turn.

    Attributes:
        agent_idx: the agent.
        turn_idx: the turn.
        samples: B samples, in the order of collection.
        minibatches: the same, shuffled and cut.
    """

    agent_idx: int
    turn_idx: int
    samples: list[Sample]
    minibatches: list[list[Sample]]

    def set_targets(self, discount: float) -> None:
        """Fix the TD targets. Values of following steps must be known."""
        for sample in self.samples:
            following = None if sample.next is None else sample.next.value
            reward = sample.reward - sample.penalty
            sample.target = td_target(reward, following, discount)

    def set_advantages(self, normalize: bool) -> None:
        """Fix the advantages ``y - V``. Values must be known.

        A sample whose target or value is not finite gets none, and has no part in the others'.
        """
        for sample in self.samples:
            sample.advantage = sample.target - sample.value
        usable = self._usable()
        errors = torch.tensor([sample.advantage for sample in usable], dtype=torch.float64)
        if normalize:
            errors = normalized(errors)
        for sample, advantage in zip(usable, errors.tolist(), strict=True):
            sample.advantage = advantage

    def _usable(self) -> list[Sample]:
        return [sample for sample in self.samples if math.isfinite(sample.advantage)]

    def mix_guidance(self, weight: float) -> dict[str, float]:
        """Make ``(1 - w) A + w G`` of the advantages A; G is what the guidance gave, centred and
        scaled to unit spread within the group, as normalised advantages are.

        Returns:
            The cosine of the angle between A and G over the group, 0 where one of them is 0: the
            correlation, for normalised advantages.
        """
        usable = self._usable()
        learned = torch.tensor([s.advantage for s in usable], dtype=torch.float64)
        guidance = normalized(torch.tensor([s.guidance for s in usable], dtype=torch.float64))
        mixed = (1 - weight) * learned + weight * guidance
        for sample, advantage in zip(usable, mixed.tolist(), strict=True):
            sample.advantage = advantage
        return {"guidance_cosine": gradient_cosine(learned, guidance).item()}


def make_groups(
    agent_idx: int, samples: Sequence[Sample], batch_size: int, stream: Sequence[int]
) -> list[Group]:
    """Split an agent's samples by turn, in the turns' order, and draw their minibatches."""
    turns: dict[int, list[Sample]] = {}
    for sample in samples:
        turns.setdefault(sample.turn_idx, []).append(sample)
    return [
        Group(
            agent_idx,
            turn,
            turns[turn],
            minibatches(turns[turn], batch_size, (*stream, agent_idx, turn)),
        )
        for turn in sorted(turns)
    ]


def minibatches(
    samples: Sequence[ItemT], batch_size: int, stream: Sequence[int]
) -> list[list[ItemT]]:
    """Shuffle by a named stream of random numbers and cut; the last may be smaller."""
    order = np.random.default_rng(tuple(stream)).permutation(len(samples))
    return [
        [samples[row] for row in order[first : first + batch_size]]
        for first in range(0, len(samples), batch_size)
    ]
