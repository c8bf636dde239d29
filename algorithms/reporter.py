"""What a trainer tells while it runs: figures to the log, items to the metrics callback, hooks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import Image
from tqdm.auto import tqdm

from marlogue.algorithms.interruption import RunInterrupted, StopRequested
from marlogue.algorithms.metrics import MetricsCallback, called_back
from marlogue.algorithms.run_log import RunLog
from marlogue.algorithms.sample import Sample
from marlogue.algorithms.sample_table import SampleTable


class Reporter:
    """Keeps a run's log while there is a run, and is silent otherwise.

    Args:
        logdir: folder of the log's files; None for none.
        wandb_config: arguments of ``wandb.init``; None for no Weights & Biases.
        metrics_callback: makes figures of an item's samples once they have been learnt from.
        logging_steps: least number of joint actions between two writes.
    """

    def __init__(
        self,
        *,
        logdir: Path | None,
        wandb_config: Mapping[str, Any] | None,
        metrics_callback: MetricsCallback | None,
        logging_steps: int,
    ) -> None:
        self.logdir = logdir
        self.wandb_config = wandb_config
        self.metrics_callback = metrics_callback
        self.logging_steps = logging_steps
        self.env_step = 0  # joint actions scored; the x-axis
        self._log: RunLog | None = None
        self._items: list[list[Sample]] = []  # not yet shown to the callback
        self._resumed: tuple[Mapping[str, Any], SampleTable] | None = None

    @contextmanager
    def run(
        self, config: Mapping[str, Any], total: int | None, unit: str = "item"
    ) -> Iterator[tqdm[Any]]:
        """A run of ``total`` items (or of another ``unit``).

        What was gathered is written when it ends, with an error, too; after a signal it is in the
        checkpoint, and written when the run goes on.
        """
        verbose = bool(config["verbose"])
        state, table = self._resumed or (None, None)
        self._resumed = None
        self._log = RunLog(
            self.logdir,
            verbose=verbose,
            wandb_config=self.wandb_config,
            config=config,
            num_transcripts=int(config["num_transcripts"]),
            step=-1 if state is None else self.env_step,
            state=state,
            table=table,
        )
        progress = tqdm(total=total, unit=unit, disable=None if verbose else True)
        try:
            yield progress
        except (StopRequested, RunInterrupted):
            self._log.drop_window()
            raise
        finally:
            progress.close()
            if self._log.has_window:
                self._log.write(self.env_step)
            self._log.close()
            self._log = None

    @property
    def listens(self) -> bool:
        """Whether there is a run that writes what is told."""
        return self._log is not None

    def state_dict(self, table: SampleTable) -> dict[str, Any]:
        """Where the log is, and what waits to be written; fit for JSON.

        Args:
            table: takes the samples that wait.
        """
        return {
            "env_step": self.env_step,
            "items": [table.add(samples) for samples in self._items],
            "log": None if self._log is None else self._log.state_dict(table),
        }

    def load_state_dict(self, state: Mapping[str, Any], table: SampleTable) -> None:
        """Go on from there; before :meth:`run`."""
        self.env_step = state["env_step"]
        self._items = [table.get(numbers) for numbers in state["items"]]
        self._resumed = None if state["log"] is None else (state["log"], table)

    def collected(self, samples: list[Sample]) -> None:
        """An item's samples."""
        self.env_step += len({sample.joint for sample in samples})
        self._items.append(samples)
        if self._log is not None:
            self._log.add_samples(samples)

    def learnt(self, samples: Sequence[Sample]) -> None:
        """Samples that an update has used."""
        if self._log is not None:
            self._log.add_learnt(samples)

    def step(self, metrics: Mapping[str, float], prefix: str = "") -> None:
        """Figures of an optimiser step, or of anything else whose mean counts."""
        if self._log is not None:
            self._log.add_step(prefix, metrics)

    def latest(self, metrics: Mapping[str, float]) -> None:
        """Figures of which the latest counts."""
        if self._log is not None:
            self._log.set(metrics)

    def rate(self, what: str, samples: Sequence[Sample], started: float) -> None:
        """Generated tokens per second of ``what``, begun at ``time.perf_counter() == started``."""
        tokens = sum(len(sample.completion_ids) for sample in samples)
        seconds = max(time.perf_counter() - started, 1e-9)
        self.step({f"time/{what}_tokens_per_second": tokens / seconds})

    def evaluated(
        self, metrics: Mapping[str, float], images: Mapping[str, Image] | None = None
    ) -> None:
        """The figures of an evaluation, and pictures."""
        if self._log is not None:
            self._log.write_evaluation(metrics, self.env_step, images)

    def report(self, buffers: Sequence[Sequence[Sample]]) -> None:
        """Show the callback every item of which no sample waits in a buffer, and write if due."""
        waiting = {id(sample) for buffer in buffers for sample in buffer}
        items, self._items = self._items, []
        for samples in items:
            if any(id(sample) in waiting for sample in samples):
                self._items.append(samples)
            elif self.metrics_callback is not None:
                self.step(called_back(self.metrics_callback, samples))
        if self._log is not None and self._log.is_due(self.env_step, self.logging_steps):
            self._log.write(self.env_step)
