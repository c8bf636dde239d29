"""What a run leaves to look at: the table, CSV, JSON, TensorBoard, and every transcript.

Writing is stable-baselines3's logger. Figures are gathered in a window between two writes: a figure
about samples is a mean over the window's samples, a figure about optimiser steps a mean over its
steps, whatever the sizes of the groups they came in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import (
    CSVOutputFormat,
    HParam,
    HumanOutputFormat,
    Image,
    JSONOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
)
from typing_extensions import override

from marlogue.algorithms.metrics import by_turn_and_agent, sample_metrics, value_metrics
from marlogue.algorithms.sample import Sample
from marlogue.algorithms.sample_table import SampleTable

_TABLE_WIDTH = 60
_IN_TABLE = ("team/", "eval/team/", "time/", "train/", "critic/", "actor/")
_TEXT_ONLY = ("stdout", "csv", "json", "log")


class RunLog:
    """The log of one run.

    Args:
        logdir: folder for ``progress.csv``, ``progress.json``, TensorBoard's events and
            ``transcripts.jsonl``; None writes no file.
        verbose: print the table.
        wandb_config: arguments of ``wandb.init`` (without "output_dir" and the like, which go to
            it as they are); None for no Weights & Biases.
        config: the configuration of the run, logged as hyperparameters.
        num_transcripts: episodes shown in TensorBoard with each write.
    """

    def __init__(
        self,
        logdir: str | Path | None,
        *,
        verbose: bool,
        wandb_config: Mapping[str, Any] | None,
        config: Mapping[str, Any],
        num_transcripts: int,
    ) -> None:
        outputs: list[KVWriter] = []
        self.folder = None if logdir is None else Path(logdir)
        if verbose:
            outputs.append(HumanOutputFormat(sys.stdout, max_length=_TABLE_WIDTH))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            outputs.append(CSVOutputFormat(str(_unused(self.folder, "progress", ".csv"))))
            outputs.append(JSONOutputFormat(str(_unused(self.folder, "progress", ".json"))))
            tensorboard = TensorBoardOutputFormat(str(self.folder))
            tensorboard.write({"hparams": _hparams(config)}, {"hparams": ()})
            outputs.append(tensorboard)
        if wandb_config is not None:
            outputs.append(WandbOutput(wandb_config, config))
        self.logger = Logger(None if logdir is None else str(logdir), outputs)
        self.num_transcripts = num_transcripts
        self._samples: list[Sample] = []
        self._learnt: list[Sample] = []
        self._steps: dict[str, list[float]] = {}
        self._latest: dict[str, float] = {}
        self._last_step = -1

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
        self._samples, self._learnt, self._steps, self._latest = [], [], {}, {}
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

    def state_dict(self, table: SampleTable) -> dict[str, Any]:
        """The window; fit for JSON, the samples go into the table."""
        return {
            "samples": table.add(self._samples),
            "learnt": table.add(self._learnt),
            "steps": self._steps,
            "latest": self._latest,
            "last_step": self._last_step,
        }

    def load_state_dict(self, state: Mapping[str, Any], table: SampleTable) -> None:
        """Go on with the window that :meth:`state_dict` gave."""
        self._samples = table.get(state["samples"])
        self._learnt = table.get(state["learnt"])
        self._steps = {tag: list(values) for tag, values in state["steps"].items()}
        self._latest = dict(state["latest"])
        self._last_step = state["last_step"]

    @property
    def has_window(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._samples or self._learnt or self._steps)

    def close(self) -> None:
        """Close the files."""
        self.logger.close()

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
        with open(self.folder / "transcripts.jsonl", "a", encoding="utf-8") as file:
            for sample in samples:
                line = {
                    "item": sample.item_idx,
                    "generation": sample.generation_idx,
                    "turn": sample.turn_idx,
                    "agent": sample.agent,
                    "prompt": sample.prompt,
                    "completion": sample.completion,
                    "reward": None if sample.abstained else sample.reward,
                    "truncated": sample.action.truncated,
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


class WandbOutput(KVWriter):
    """Writes numbers to Weights & Biases."""

    def __init__(self, wandb_config: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ImportError(
                'wandb_config needs Weights & Biases; install it with pip install "marlogue[wandb]"'
            ) from error
        self._run = wandb.init(config=dict(config), **wandb_config)

    @override
    def write(
        self,
        key_values: dict[str, Any],
        key_excluded: dict[str, tuple[str, ...]],
        step: int = 0,
    ) -> None:
        numbers = {k: v for k, v in key_values.items() if isinstance(v, int | float)}
        if numbers:
            self._run.log(numbers, step=step)

    @override
    def close(self) -> None:
        self._run.finish()


def _hparams(config: Mapping[str, Any]) -> HParam:
    shown = {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in config.items()
    }
    return HParam(shown, metric_dict={"team/turn_1/reward_mean": 0.0})


def _unused(folder: Path, stem: str, suffix: str) -> Path:
    """``progress.csv``, or with a number where an earlier run left one: it is kept."""
    names = (stem if number == 1 else f"{stem}_{number}" for number in count(1))
    return next(path for name in names if not (path := folder / f"{name}{suffix}").exists())


def _episodes(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples by episode, latest item first."""
    episodes: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        episodes.setdefault((-sample.item_idx, sample.generation_idx), []).append(sample)
    return [episodes[key] for key in sorted(episodes)]


def _markdown(episode: Sequence[Sample]) -> str:
    parts = [f"**item {episode[0].item_idx}, generation {episode[0].generation_idx}**"]
    for sample in episode:
        reward = "abstained" if sample.abstained else f"reward {sample.reward:.3f}"
        parts.append(
            f"**{sample.agent}, turn {sample.turn_idx + 1}** ({reward})\n\n"
            f"{_quoted(sample.prompt)}\n\n{_fenced(sample.completion)}"
        )
    return "\n\n".join(parts)


def _quoted(text: str) -> str:
    return "\n".join("> " + line for line in text.splitlines() or [""])


def _fenced(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines() or [""])
