"""Keeping a run: checkpoints when they are due, on signals and on failure, and going on from them.

What all trainers share. A trainer saves and loads its state, says what it trains, and calls
:meth:`Keeper.save_if_due` at points where its state is whole.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from marlogue.algorithms.checkpoints import CheckpointStore, check_folder, read_about, write_folder
from marlogue.algorithms.interruption import Interruption, RunInterrupted, StopRequested
from marlogue.algorithms.keeping_config import AUTO, KeepingConfig
from marlogue.algorithms.not_finite import BadWeightsError, bad_weights
from marlogue.algorithms.run_description import ResumeError, compare
from marlogue.algorithms.run_folder import RunFolder


class Kept(Protocol):
    """A trainer, as the keeper sees it."""

    logdir: Path | None

    @property
    def position(self) -> int:
        """Items or steps that are done: what ``save_steps`` counts."""

    @property
    def env_step(self) -> int:
        """The x-axis of the log."""

    @property
    def updates(self) -> int:
        """Updates so far."""

    def trained_modules(self) -> Mapping[str, nn.Module]:
        """What is trained, by name."""

    def describe(self) -> dict[str, Any]:
        """See :func:`marlogue.algorithms.run_description.description`."""

    def save_state(self, folder: Path) -> None:
        """Save all that the run depends on from here on."""

    def load_state(self, folder: Path) -> None:
        """Go on from a state that was saved."""

    def save_model(self, output_dir: str | Path) -> None:
        """Save what was learnt."""


class Keeper:
    """Saves a trainer's state, and finds it again.

    Args:
        trainer: whose state it is.
        args: its configuration.
        best_metric: the figure of an evaluation that says how good it was; higher is better.

    Attributes:
        interruption: asked at safe points.
        best: the best evaluation so far: ``value`` and ``step``; empty before the first.
        resumed_from: the checkpoint that the run went on from; None for none.
    """

    def __init__(self, trainer: Kept, args: KeepingConfig, best_metric: str) -> None:
        self.trainer = trainer
        self.args = args
        self.best_metric = best_metric
        self.store: CheckpointStore | None = None
        if trainer.logdir is not None:
            self.store = CheckpointStore(trainer.logdir / "checkpoints", args.save_total_limit)
        elif args.resume == AUTO:
            raise ValueError("resume ('auto') needs a logdir, in which checkpoints are looked for.")
        self.interruption = Interruption(args.save_on_signal and self.store is not None)
        self.best: dict[str, float] = {}
        self.resumed_from: Path | None = None
        self._open = False  # evaluations before and after a run are not the run's
        self._whole = True
        self._due_from = 0
        self._saved = False

    @cached_property
    def _description(self) -> dict[str, Any]:
        # Once, since it reads rows of the dataset; nothing in it changes.
        return self.trainer.describe()

    # -- around a training ------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The whole training, in its folder: resumed first, where that is asked for."""
        trainer = self.trainer
        with RunFolder(trainer.logdir, self._description, self.args.resume):
            self.resume()
            self._open = True
            try:
                yield
            finally:
                self._open = False

    def resume(self) -> None:
        """Load the checkpoint that the configuration asks for.

        Raises:
            CheckpointError: when it is damaged, or none.
            ResumeError: when it is one of another training.
        """
        place = self._asked_for()
        if place is None:
            return
        about = read_about(place)
        if "description" not in about:
            raise ResumeError(f"{place} is no checkpoint of a training; name one that is.")
        compare(about["description"], self._description, place)
        self.trainer.load_state(place)
        self.best = dict(about["best"])
        self.resumed_from = place
        self._due_from = self.trainer.position
        self._saved = True

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Within, a signal or an error loses nothing that can be saved.

        Raises:
            RunInterrupted: after a signal.
        """
        with self.interruption:
            try:
                yield
            except StopRequested as stop:
                interrupted = RunInterrupted(f"{stop}: the run stopped, {self._stopped()}")
                print(interrupted, file=sys.stderr)  # Python shows nothing of such an exit
                raise interrupted from None
            except BaseException as error:
                self._save_after(error)
                raise

    @contextmanager
    def half_done(self) -> Iterator[None]:
        """Within, the state is not whole: signals wait, and nobody can resume from it."""
        before = self._whole
        with self.interruption.deferred():
            self._whole = False
            yield
            self._whole = before

    # -- saving -----------------------------------------------------------------------------

    def save_if_due(self) -> None:
        """Save a checkpoint when ``save_steps`` are done since the last one; to be called where the
        state is whole. When it cannot be written, training goes on, and a warning says so."""
        self.interruption.check()
        steps, position = self.args.save_steps, self.trainer.position
        if self.store is None or steps is None or position // steps <= self._due_from // steps:
            return
        self._due_from = position
        try:
            self.save()
        except (OSError, BadWeightsError) as error:
            warnings.warn(
                f"no checkpoint could be saved after {position} ({_told(error)}). Training goes "
                "on; earlier checkpoints are intact.",
                stacklevel=2,
            )

    def save(self) -> Path:
        """Save a checkpoint now.

        Raises:
            OSError: when it cannot be written.
            RuntimeError: when the state is not whole, as in a hook in the middle of an update.
            BadWeightsError: when weights are not finite: it would take the place of a good one.
        """
        assert self.store is not None
        if not self._whole:
            raise RuntimeError(
                "the state of the training is not whole here; set save_steps, which saves where it "
                "is, or call this in on_train_start or on_train_end."
            )
        for name, module in self.trainer.trained_modules().items():
            if found := bad_weights(name, module):
                raise BadWeightsError(
                    f"{found[0]}: no checkpoint is made of these weights; go on from one of before "
                    f"(resume='auto', or the folder of an earlier one in {self.store.folder})"
                )
        about = {"description": self._description, "best": self.best}
        place = self.store.save(self.trainer.env_step, self.trainer.save_state, about)
        self._saved = True
        return place

    def finished(self) -> None:
        """The training is over. A run that left checkpoints leaves one of its end, too, so that it
        can be prolonged."""
        if self.store is not None and self._saved and self.args.save_steps is not None:
            self._due_from = -1
            self.save_if_due()

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Take note of an evaluation of the run's own."""
        value = metrics.get(self.best_metric, math.nan)
        if not self._open or math.isnan(value) or value <= self.best.get("value", -math.inf):
            return
        best = {"value": value, "step": float(self.trainer.env_step)}
        try:
            if self.args.save_best and self.trainer.logdir is not None:
                write_folder(self.trainer.logdir / "best", self.trainer.save_model, best)
        except OSError as error:
            warnings.warn(
                f"the best models so far could not be saved ({_told(error)}). Training goes on.",
                stacklevel=2,
            )
        else:
            self.best = best

    def _stopped(self) -> str:
        """Save; where the run goes on from.

        Raises:
            OSError, BadWeightsError: when there is nothing to go on from.
        """
        assert self.store is not None
        again = f"to go on, train again with resume='auto' and logdir='{self.trainer.logdir}'."
        try:
            return f"and its state is in {self.save()}; {again}"
        except (OSError, BadWeightsError) as error:
            earlier = self.store.newest()
            if earlier is None:
                raise
            return (
                f"but its state could not be saved ({_told(error)}). Mend that; {again} That will "
                f"be from {earlier} on."
            )

    def _save_after(self, error: BaseException) -> None:
        """Save what there is after an error, which stays the one that is raised."""
        try:
            if self.store is None:
                return
            if self._whole and (self.trainer.position or self.trainer.updates):
                error.add_note(
                    f"the state of the training before this is in {self.save()}; when the cause is "
                    "mended, go on with resume='auto' and the same logdir"
                )
            elif self.trainer.updates:
                assert self.trainer.logdir is not None
                folder = self.trainer.logdir / "interrupted"
                write_folder(folder, self.trainer.save_model, {})
                error.add_note(f"the models as of update {self.trainer.updates} are in {folder}")
        except Exception as other:
            error.add_note(f"afterwards nothing could be saved: {type(other).__name__}: {other}")

    def _asked_for(self) -> Path | None:
        """The checkpoint to go on from, which is intact."""
        asked = self.args.resume
        if asked is None:
            return None
        if asked == AUTO:
            assert self.store is not None
            return self.store.newest()
        place = Path(asked)
        if not (place / "checkpoints").is_dir():
            check_folder(place)
            return place
        # It may be the folder of a run that goes on.
        found = CheckpointStore(place / "checkpoints", None).newest(tidy=False)
        if found is None:
            raise ResumeError(f"resume ({asked}) must hold an intact checkpoint; there is none.")
        return found


def _told(error: Exception) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", [])])
