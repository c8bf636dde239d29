"""The reference policies of a run: the same ones after a resume, whatever was trained since."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marlogue.agents import LLMPolicy
from marlogue.algorithms.checkpoints import CheckpointError, check_folder, write_folder
from marlogue.algorithms.run_description import ResumeError, of_weights
from marlogue.algorithms.saving import load_weights, save_team

_FOLDER = "reference"


class ReferenceStore:
    """Knows the references by their weights, and keeps them where nothing else would.

    A model that came from an identifier is there again when the run is resumed. One that came as
    an object may not be: it is saved once, in ``reference`` beside the checkpoints.

    Args:
        references: frozen policies; none without a KL penalty.
        sources: what they were loaded from.
        logdir: the run's folder; None for none.
    """

    def __init__(
        self, references: Sequence[LLMPolicy], *, sources: Sequence[object], logdir: Path | None
    ) -> None:
        reloadable = all(isinstance(source, str | Path) for source in sources)
        self.references = list(references)
        self._logdir = None if reloadable else logdir
        self._known: str | None = None

    def keep(self) -> str | None:
        """Save the references where they have to be, once.

        Returns:
            What tells their weights from others; None without references.
        """
        if not self.references:
            return None
        if self._known is None:
            self._known = self._weights()
            if self._logdir is not None:
                about = {"weights": self._known}
                write_folder(self._logdir / _FOLDER, self._save, about)
        return self._known

    def restore(self, known: str | None, checkpoint: Path) -> None:
        """See that the references are those of a checkpoint; load the ones beside it otherwise.

        Args:
            known: what :meth:`keep` returned for it.
            checkpoint: its folder, in that of its run.

        Raises:
            ResumeError: when they are others, and those are not to be had.
        """
        if not self.references or known == self._weights():
            return
        folder = checkpoint.parent.parent / _FOLDER
        try:
            saved = check_folder(folder)["weights"]
        except (CheckpointError, OSError) as error:
            saved = str(error)
        if saved != known:
            raise ResumeError(
                f"the models that the agents start from are not those that {checkpoint} was "
                "trained with as its reference; build the trainer from the models that the run "
                "began with, not from trained ones."
            )
        load_weights(self.references, [], folder)

    def _weights(self) -> str:
        return of_weights(reference.model for reference in self.references)

    def _save(self, folder: Path) -> None:
        save_team(self.references, [], folder)
