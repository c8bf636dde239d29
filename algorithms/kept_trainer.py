"""What every trainer is, whatever it learns: something with hooks, whose state can be kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from marlogue.algorithms.callbacks import Callback
from marlogue.algorithms.keeping import Keeper
from marlogue.algorithms.running import call_hooks


class KeptTrainer(ABC):
    """A trainer whose training can be stopped and go on; see :mod:`marlogue.algorithms.keeping`.

    Attributes:
        callbacks: the user's hooks.
        logdir: the run's folder; None for none.
        keeper: saves checkpoints, and finds them again.
    """

    callbacks: list[Callback[Any]]
    logdir: Path | None
    keeper: Keeper

    @property
    @abstractmethod
    def position(self) -> int:
        """Items or steps that are done: what ``save_steps`` counts."""

    @property
    @abstractmethod
    def env_step(self) -> int:
        """The x-axis of the log."""

    @property
    def best_evaluation(self) -> dict[str, float]:
        """``value`` (the team's mean return) and ``step`` (on the log's x-axis) of the run's best
        evaluation; empty before the first."""
        return dict(self.keeper.best)

    @abstractmethod
    def trained_modules(self) -> Mapping[str, nn.Module]:
        """What is trained, by name."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What is trained; see :func:`marlogue.algorithms.run_description.description`."""

    @abstractmethod
    def save_state(self, folder: Path) -> None:
        """Save all that the training depends on from here on, into an empty folder. ``save_steps``
        does it by itself; in the middle of an update nothing is whole."""

    @abstractmethod
    def load_state(self, folder: Path) -> None:
        """Load what :meth:`save_state` saved; ``train`` then goes on from it. ``resume`` does it by
        itself.

        Raises:
            ValueError: when it is the state of another training.
        """

    @abstractmethod
    def save_model(self, output_dir: str | Path) -> None:
        """Save what was learnt."""

    @abstractmethod
    def load_model(self, output_dir: str | Path) -> None:
        """Load what :meth:`save_model` saved.

        Raises:
            ValueError: when it is something else than what is trained here.
        """

    @abstractmethod
    def users_objects(self) -> Sequence[Any]:
        """What the user has given and may have a state of its own."""

    def _hook(self, name: str, *arguments: Any) -> None:
        call_hooks(self.callbacks, name, self, *arguments)
