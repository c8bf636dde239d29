"""Stretches of episodes, for actors and critics that remember."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import Array


class Sequences(NamedTuple):
    """A batch of stretches of T = burn-in + length steps, with one more observation.

    Real steps come first, from place 0 on; what is not ``filled`` is padding. Steps that are not
    ``trained`` only warm the memory up (those before the stretch) or are padding.

    Attributes:
        observations: [B, T + 1, N, D] float32; place t + 1 is what followed step t.
        actions: [B, T, N] long or [B, T, N, A] float.
        rewards: [B, T, N].
        discounts: [B, T, N], ``gamma (1 - terminated)``, 0 for absent agents and padding.
        present: [B, T, N] bool, agents that act in a step.
        next_present: [B, T, N] bool, agents whose future counts after it.
        stops: [B, T] bool, steps that no n-step sum goes beyond: ends of episodes, agents that are
            cut off, last real steps.
        filled: [B, T] bool, real steps.
        trained: [B, T] bool, steps that losses are taken of.
        starts: [B] bool, whether place 0 is the start of an episode: the memory is empty there.
        weights: [B], importance weights.
        serials: [B] int64 (numpy), the step that was drawn, for new priorities.
        available: [B, T + 1, N, A] bool, or None where the layout has none; so for all below.
        state: [B, T + 1, S].
        guidance: [B, T, N] or [B, T, N, A].
        hidden: [B, N, H], the memory as it was before place 0 when the step was taken.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    present: Tensor
    next_present: Tensor
    stops: Tensor
    filled: Tensor
    trained: Tensor
    starts: Tensor
    weights: Tensor
    serials: NDArray[np.int64]
    available: Tensor | None = None
    state: Tensor | None = None
    guidance: Tensor | None = None
    hidden: Tensor | None = None


class SequenceReplay:
    """Draws stretches of episodes out of a replay buffer, after Kapturowski et al. 2019 (R2D2).

    A step is drawn as the buffer draws (uniformly or by priority); the stretch begins up to
    ``length - 1`` steps before it, at random, so that both ends of an episode are trained on at
    least half as often as its middle. Up to ``burn_in`` steps before the stretch warm the memory
    up. A stretch never goes beyond its episode, nor back beyond what has been overwritten.

    Args:
        buffer: the buffer, which records steps as usual.
        length: steps that are trained on, at most.
        burn_in: steps before them, at most.

    Raises:
        ValueError: when a number is out of range.
    """

    def __init__(self, buffer: ReplayBuffer, length: int, burn_in: int = 0) -> None:
        if length < 1:
            raise ValueError(f"length ({length!r}) must be at least 1.")
        if burn_in < 0:
            raise ValueError(f"burn_in ({burn_in!r}) must be at least 0.")
        self.buffer = buffer
        self.length = length
        self.burn_in = burn_in

    def sample(self, batch_size: int, device: torch.device | str = "cpu") -> Sequences:
        """Draw stretches, with replacement.

        Args:
            batch_size: B.
            device: where the tensors go.

        Raises:
            ValueError: when nothing has been recorded, or ``batch_size`` is below 1.
        """
        buffer, ring = self.buffer, self.buffer.ring
        drawn, weights = buffer.draw(batch_size)
        back = buffer.rng.integers(self.length, size=batch_size)
        first, _ = self._back(drawn, back)
        start, warm = self._back(first, np.full(batch_size, self.burn_in))
        slots, filled, after = self._along(start, warm + self.length)
        places = np.arange(slots.shape[1])
        trained = filled & (places >= warm[:, None])
        seen = np.concatenate([start[:, None], after], 1)
        alive = ring.store["present"][slots] & ~ring.store["terminated"][slots]
        next_present = (ring.store["present"][after] | alive) & filled[..., None]
        last = filled & ~np.concatenate([filled[:, 1:], np.zeros((batch_size, 1), bool)], 1)
        discounts = np.where(alive & filled[..., None], buffer.discount, 0.0).astype(np.float32)

        def put(array: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(array).to(device)

        extras = {name: buffer.rows(name, seen, device) for name in buffer.layout.seen()}
        if buffer.layout.guidance != "none":
            extras["guidance"] = buffer.rows("guidance", slots, device)
        if buffer.layout.hidden_size:
            extras["hidden"] = buffer.rows("hidden", start, device)
        return Sequences(
            actions=buffer.rows("actions", slots, device),
            rewards=buffer.rows("rewards", slots, device) * put(filled)[..., None],
            discounts=put(discounts),
            present=buffer.rows("present", slots, device) & put(filled)[..., None],
            next_present=put(next_present),
            stops=put(ring.stops[slots] | last),
            filled=put(filled),
            trained=put(trained),
            starts=put(ring.previous[start] < 0),
            weights=put(weights),
            serials=ring.serials_of(drawn),
            **extras,
        )

    def _back(self, slots: Array, steps: Array) -> tuple[Array, Array]:
        """Go back from the slots [B], up to so many steps [B] each: the slots there, and how many
        steps it were."""
        ring = self.buffer.ring
        gone = np.zeros(len(slots), np.int64)
        for step in range(int(steps.max(initial=0))):
            before = ring.previous[slots]
            can = (before >= ring.oldest) & (step < steps)
            if not can.any():
                break
            slots = np.where(can, before % ring.capacity, slots)
            gone += can
        return slots, gone

    def _along(self, start: Array, steps: Array) -> tuple[Array, NDArray[np.bool_], Array]:
        """Go on from the slots [B] where stretches start, up to so many steps [B] each: the slots
        [B, T] of the steps, which of them are real, and the slots [B, T] of what followed. Padding
        repeats the last one."""
        ring = self.buffer.ring
        slots, filled, after = [], [], []
        at, real, behind = start, np.ones(len(start), bool), start
        for step in range(self.burn_in + self.length):
            real = real & (step < steps)
            behind = np.where(real, ring.next[at] % ring.capacity, behind)
            slots.append(at)
            filled.append(real)
            after.append(behind)
            real = real & ring.recorded[behind]
            at = np.where(real, behind, at)
        return np.stack(slots, 1), np.stack(filled, 1), np.stack(after, 1)
