"""Hooks into a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from marlogue.algorithms.sample import Sample

if TYPE_CHECKING:
    from marlogue.algorithms.on_policy import OnPolicyTrainer


class Callback:
    """Subclass and override what you need; every hook does nothing by default.

    An exception in a hook ends the run, with its own traceback.
    """

    def on_train_start(self, trainer: OnPolicyTrainer) -> None:
        """Before the first item."""

    def on_item(self, trainer: OnPolicyTrainer, samples: Sequence[Sample]) -> None:
        """After each training item was collected, with its samples (not yet trained on)."""

    def on_update(self, trainer: OnPolicyTrainer) -> None:
        """After each update of agents and critics."""

    def on_evaluation(self, trainer: OnPolicyTrainer, metrics: dict[str, float]) -> None:
        """After each evaluation."""

    def on_train_end(self, trainer: OnPolicyTrainer) -> None:
        """After the last update and the last evaluation."""
