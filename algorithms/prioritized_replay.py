"""Prioritised replay: what surprises is seen more often, and weighed so that means stay right."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from marlogue.algorithms.annealing import Anneal
from marlogue.algorithms.priority_tree import PriorityTree
from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import Array, ReplayLayout, TeamStep

#: Importance exponent over the training, as in the paper's proportional variant.
BETA = Anneal(0.4, 1.0)


class PrioritizedReplayBuffer(ReplayBuffer):
    """Proportional prioritised replay (Schaul et al. 2016, arXiv 1511.05952, section 3.3).

    A step with TD error e is drawn in proportion to ``(|e| + epsilon)^alpha``; a new step as often
    as the one that was ever the most surprising. Its weight is ``(M P)^-beta`` for M steps and
    probability P, divided by the largest of the batch. Draws are stratified: one from each of B
    equal parts of the sum.

    Args:
        capacity: as in :class:`ReplayBuffer`, and so are the layout and the keywords after it.
        layout: sizes of what is held.
        num_envs: environments that are recorded.
        n_step: the most steps of a transition.
        discount: gamma per step.
        seed: seed of the draws.
        alpha: exponent of the priorities; 0 for uniform draws.
        beta: exponent of the weights, by the training's progress; see :attr:`progress`.
        epsilon: added to the errors, so that each step can be drawn.

    Attributes:
        progress: share of the training that is done; the trainer keeps it up to date.

    Raises:
        ValueError: when a number is out of range.
    """

    def __init__(
        self,
        capacity: int,
        layout: ReplayLayout,
        *,
        num_envs: int = 1,
        n_step: int = 1,
        discount: float = 0.99,
        seed: int = 0,
        alpha: float = 0.6,
        beta: Anneal = BETA,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(
            capacity, layout, num_envs=num_envs, n_step=n_step, discount=discount, seed=seed
        )
        if not alpha >= 0:
            raise ValueError(
                f"alpha ({alpha!r}) must be at least 0; set alpha=0 for uniform draws."
            )
        if not epsilon > 0:
            raise ValueError(f"epsilon ({epsilon!r}) must be above 0, or steps are never drawn.")
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon
        self.progress = 0.0
        self._tree = PriorityTree(capacity)
        self._largest = 1.0

    @override
    def add(self, step: TeamStep, envs: Array | None = None) -> None:
        slots, lost = self.ring.add(step, envs)
        self._tree.set(lost, 0.0)
        self._tree.set(slots, self._largest)

    @override
    def draw(self, batch_size: int) -> tuple[Array, NDArray[np.float32]]:
        self.check_draw(batch_size)
        total = self._tree.total
        points = (np.arange(batch_size) + self.rng.random(batch_size)) * (total / batch_size)
        slots = self._tree.find(points)
        weights = (len(self) * self._tree.get(slots) / total) ** -self.beta(self.progress)
        return slots, (weights / weights.max()).astype(np.float32)

    def update_priorities(self, serials: NDArray[np.int64], errors: Array) -> None:
        """Set the priorities of steps that were drawn.

        Args:
            serials: [B], as the batch has them. Steps that were overwritten since are left out; of
                one that is there twice the last error counts.
            errors: [B], TD errors of any sign; see :func:`aac_targets.priorities`.

        Raises:
            ValueError: when the numbers of both differ, or an error is not finite.
        """
        errors = np.abs(np.asarray(errors, np.float64))
        if errors.shape != serials.shape:
            raise ValueError(
                f"errors have the shape {errors.shape}, which must be {serials.shape}: one for "
                "each serial."
            )
        if not np.isfinite(errors).all():
            raise ValueError(
                f"errors of {(~np.isfinite(errors)).sum()} of {len(errors)} steps are not finite; "
                "the critic has diverged: lower its learning rate, or clip gradients."
            )
        held = serials >= self.ring.oldest
        values = (errors[held] + self.epsilon) ** self.alpha
        self._tree.set(serials[held] % self.ring.capacity, values)
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    def held_priorities(self) -> NDArray[np.float64]:
        """[n], priorities of the steps that are held, in no order."""
        return self._tree.values[self.ring.recorded]

    @override
    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        held = self._tree.values[: self.ring.filled]
        return {
            **super().state_dict(copy=copy),
            "priorities": held.copy() if copy else held,
            "largest": self._largest,
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._tree = PriorityTree(self.ring.capacity)
        self._tree.set(np.arange(self.ring.filled), state["priorities"])
        self._largest = state["largest"]
