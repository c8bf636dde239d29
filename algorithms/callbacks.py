"""Hooks into a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from marlogue.algorithms.sample import Sample
from marlogue.algorithms.team_views import EpisodeEnd

if TYPE_CHECKING:
    from marlogue.algorithms.on_policy import OnPolicyTrainer

TrainerT = TypeVar("TrainerT", default="OnPolicyTrainer")


class Callback(Generic[TrainerT]):
    """Subclass and override what you need; every hook does nothing by default.

    Hooks get the trainer. A callback of actor-attention-critic is a ``Callback[AACTrainer]``.
    An exception in a hook ends the run, with its own traceback.
    """

    def on_train_start(self, trainer: TrainerT) -> None:
        """Before the first item or step."""

    def on_item(self, trainer: TrainerT, samples: Sequence[Sample]) -> None:
        """MAAC and IAC: after each training item was collected, with its samples (not yet trained
        on)."""

    def on_episode(self, trainer: TrainerT, episode: EpisodeEnd) -> None:
        """AAC: after each training episode."""

    def on_update(self, trainer: TrainerT) -> None:
        """After each update of agents and critics."""

    def on_evaluation(self, trainer: TrainerT, metrics: dict[str, float]) -> None:
        """After each evaluation."""

    def on_train_end(self, trainer: TrainerT) -> None:
        """After the last update and the last evaluation."""
