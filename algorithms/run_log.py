"""What a run leaves to look at: the table, CSV, JSON, TensorBoard, and every transcript.

The table, and what goes where, are stable-baselines3's logger. Figures are gathered in a window
between two writes: a figure about samples is a mean over the window's samples, a figure about
optimiser steps a mean over its steps, whatever the sizes of the groups they came in.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import Image, KVWriter, Logger

from marlogue.algorithms.append_file import AppendFile, Trouble
from marlogue.algorithms.log_files import (
    EVENTS,
    ROWS,
    TABLE,
    CsvTable,
    JsonRows,
    PrintedTable,
    TensorBoardEvents,
    new_events_name,
)
from marlogue.algorithms.log_position import TRANSCRIPTS, go_back
from marlogue.algorithms.metrics import by_turn_and_agent, sample_metrics, value_metrics
from marlogue.algorithms.sample import Sample
from marlogue.algorithms.sample_table import SampleTable
from marlogue.algorithms.transcript_lines import encoded_lines
from marlogue.algorithms.wandb_output import WandbOutput

_IN_TABLE = ("team/", "eval/team/", "time/", "train/", "critic/", "actor/")
_TEXT_ONLY = ("stdout", "csv", "json", "log")


class RunLog:
    """The log of one run.

    Files that cannot be written (a full disk, say) don't stop the training: it is said, and what is
    missing is written as soon as that works again.

    Args:
        logdir: folder for ``progress.csv``, ``progress.json``, TensorBoard's events and
            ``transcripts.jsonl``; None writes no file.
        verbose: print the table.
        wandb_config: arguments of ``wandb.init`` (without "output_dir" and the like, which go to
            it as they are); None for no Weights & Biases.
        config: the configuration of the run, logged as hyperparameters.
        num_transcripts: episodes shown in TensorBoard with each write.
        step: where it goes on, on the x-axis; -1 for the beginning.
        state: what :meth:`state_dict` gave there; None at the beginning.
        table: of the samples in it.

    Raises:
        OSError: when the folder cannot be made, or holds files that cannot be cut back.
    """

    def __init__(
        self,
        logdir: str | Path | None,
        *,
        verbose: bool,
        wandb_config: Mapping[str, Any] | None,
        config: Mapping[str, Any],
        num_transcripts: int,
        step: int = -1,
        state: Mapping[str, Any] | None = None,
        table: SampleTable | None = None,
    ) -> None:
        self.folder = None if logdir is None else Path(logdir)
        self.num_transcripts = num_transcripts
        self._files: dict[str, AppendFile] = {}
        self._samples: list[Sample] = []
        self._learnt: list[Sample] = []
        self._steps: dict[str, list[float]] = {}
        self._latest: dict[str, float] = {}
        self._last_step = -1
        if state is not None:
            self._load(state, table or SampleTable())
        outputs: list[KVWriter] = []
        if verbose:
            outputs.append(PrintedTable(sys.stdout))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            outputs += self._open(self.folder, config, step, state)
        self._wandb: WandbOutput | None = None
        if wandb_config is not None:
            self._wandb = WandbOutput(
                wandb_config, config, None if state is None else state["wandb"]
            )
            outputs.append(self._wandb)
        self.logger = Logger(None if logdir is None else str(logdir), outputs)

    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Samples that were collected; those of whole episodes also become transcripts."""
        self._samples += samples
        self._append_transcripts(samples)

    def add_learnt(self, samples: Sequence[Sample]) -> None:
        """Samples that an update learnt from."""
        self._learnt += samples

    def add_step(self, prefix: str, metrics: Mapping[str, float]) -> None:
        """Figures of one optimiser step (or of anything whose mean over the window counts)."""
        for name, value in metrics.items():
            tag = f"{prefix}/{name}" if prefix else name
            self._steps.setdefault(tag, []).append(float(value))

    def set(self, metrics: Mapping[str, float]) -> None:
        """Figures of which the latest counts."""
        self._latest.update(metrics)

    def write(self, step: int) -> dict[str, float]:
        """Write the window at ``step`` (joint-action reward evaluations) and begin a new one."""
        metrics = by_turn_and_agent(self._samples, sample_metrics)
        metrics |= by_turn_and_agent(self._learnt, value_metrics)
        metrics |= {name: sum(v) / len(v) for name, v in self._steps.items()}
        metrics |= self._latest
        self._record(metrics)
        shown = _episodes(self._samples)[: self.num_transcripts]
        for number, episode in enumerate(shown):
            self.logger.record(f"transcripts/{number}", _markdown(episode), exclude=_TEXT_ONLY)
        self.drop_window()
        self._dump(step)
        self._last_step = step
        return metrics

    def write_evaluation(
        self, metrics: Mapping[str, float], step: int, images: Mapping[str, Image] | None = None
    ) -> None:
        """Write the figures of an evaluation (and pictures, for TensorBoard), apart from the
        window of the training."""
        self._record(metrics)
        for name, image in (images or {}).items():
            self.logger.record(name, image, exclude=_TEXT_ONLY)
        self._dump(step)

    def is_due(self, step: int, interval: int) -> bool:
        """Whether at least ``interval`` steps lie between the last write and ``step``."""
        return self._last_step < 0 or step - self._last_step >= interval

    @property
    def has_window(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._samples or self._learnt or self._steps)

    def drop_window(self) -> None:
        """Forget what waits to be written: a checkpoint has it."""
        self._samples, self._learnt, self._steps, self._latest = [], [], {}, {}

    def close(self) -> None:
        """Write what could not be written before, and say what is missing in the end."""
        for file in self._files.values():
            file.catch_up()
        self.logger.close()
        missing = [
            f"{file.waiting + file.lost} of {name}"
            for name, file in self._files.items()
            if file.waiting + file.lost
        ]
        if missing:
            warnings.warn(
                f"the log in {self.folder} is incomplete: pieces that could never be written are "
                f"missing ({', '.join(missing)}). Everything else in it is as it should be.",
                stacklevel=3,
            )

    # -- checkpoints ------------------------------------------------------------------------

    def state_dict(self, table: SampleTable) -> dict[str, Any]:
        """Where the log is, and the window so far; fit for JSON.

        Args:
            table: takes the window's samples.
        """
        return {
            "files": {name: file.state_dict() for name, file in self._files.items()},
            "samples": table.add(self._samples),
            "learnt": table.add(self._learnt),
            "steps": self._steps,
            "latest": self._latest,
            "last_step": self._last_step,
            "wandb": None if self._wandb is None else self._wandb.run_id,
        }

    def _load(self, state: Mapping[str, Any], table: SampleTable) -> None:
        self._samples = table.get(state["samples"])
        self._learnt = table.get(state["learnt"])
        self._steps = {name: list(values) for name, values in state["steps"].items()}
        self._latest = dict(state["latest"])
        self._last_step = state["last_step"]

    def _open(
        self, folder: Path, config: Mapping[str, Any], step: int, state: Mapping[str, Any] | None
    ) -> list[KVWriter]:
        """The log's files, which go on where they were."""
        files: Mapping[str, Any] = {} if state is None else state["files"]
        go_back(folder, {name: file["size"] for name, file in files.items()}, step)
        events = next((name for name in files if name.startswith(EVENTS)), "")
        goes_on = (folder / events).is_file()
        trouble = Trouble(folder)
        for name in (ROWS, TRANSCRIPTS, events if goes_on else new_events_name()):
            self._files[name] = AppendFile(folder / name, trouble)
            if name in files:
                self._files[name].load_state_dict(files[name])
        rows, _, written = self._files.values()
        tensorboard = TensorBoardEvents(written)
        if not goes_on:
            tensorboard.begin(config)
        return [JsonRows(rows), CsvTable(folder / TABLE, rows, trouble), tensorboard]

    # -- writing ----------------------------------------------------------------------------

    def _dump(self, step: int) -> None:
        # TensorBoard has it as the x-axis.
        self.logger.record("time/joint_actions", step, exclude="tensorboard")
        self.logger.dump(step)

    def _record(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            team = name.startswith(_IN_TABLE)
            self.logger.record(name, value, exclude=None if team else "stdout")

    def _append_transcripts(self, samples: Sequence[Sample]) -> None:
        if self.folder is None or not samples:
            return
        self._files[TRANSCRIPTS].append(encoded_lines(samples))


def _episodes(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples by episode, latest item first."""
    episodes: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        episodes.setdefault((-sample.item_idx, sample.generation_idx), []).append(sample)
    return [episodes[key] for key in sorted(episodes)]


def _markdown(episode: Sequence[Sample]) -> str:
    parts = [f"**item {episode[0].item_idx}, generation {episode[0].generation_idx}**"]
    for sample in episode:
        without = "abstained" if sample.reward_error is None else "dropped"
        reward = without if sample.abstained else f"reward {sample.reward:.3f}"
        parts.append(
            f"**{sample.agent}, turn {sample.turn_idx + 1}** ({reward})\n\n"
            f"{_quoted(sample.prompt)}\n\n{_fenced(sample.completion)}"
        )
    return "\n\n".join(parts)


def _quoted(text: str) -> str:
    return "\n".join("> " + line for line in text.splitlines() or [""])


def _fenced(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines() or [""])
