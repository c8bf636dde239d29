"""Evaluation: the same rows each time, one answer per prompt, nothing of the training touched."""

from __future__ import annotations

from dataclasses import dataclass

from marlogue.algorithms.collect import Collector
from marlogue.algorithms.items import EnvOrFactory, first_items
from marlogue.algorithms.metrics import (
    MetricsCallback,
    by_turn_and_agent,
    called_back,
    sample_metrics,
)
from marlogue.algorithms.sample import Sample


@dataclass
class Evaluator:
    """Plays the first rows of an environment.

    Random numbers are named by row and turn, so every evaluation draws the same ones: two
    evaluations differ by what was learnt between them.

    Args:
        env: the evaluation environment.
        collector: plays it.
        num_samples: rows that are played.
        batch_size: episodes played together.
        seed: of the resets, where the environment has no rows.
    """

    env: EnvOrFactory
    collector: Collector
    num_samples: int
    batch_size: int
    seed: int

    def episodes(self) -> list[list[Sample]]:
        """The samples of each row."""
        items = first_items(self.env, self.num_samples, self.seed)
        played: list[list[Sample]] = []
        for first in range(0, len(items), self.batch_size):
            played += self.collector.collect(items[first : first + self.batch_size])
        return played

    def run(self, metrics_callback: MetricsCallback | None = None) -> dict[str, float]:
        """Play, and average per agent and turn and over the team.

        Args:
            metrics_callback: called once per row; its figures are averaged.

        Returns:
            ``eval/AGENT/turn_T/NAME``, ``eval/team/turn_T/NAME``, and ``eval/NAME`` of the
            callback.
        """
        played = self.episodes()
        metrics = by_turn_and_agent([s for samples in played for s in samples], sample_metrics)
        if metrics_callback is not None:
            extra: dict[str, list[float]] = {}
            for samples in played:
                for name, value in called_back(metrics_callback, samples).items():
                    extra.setdefault(name, []).append(value)
            metrics |= {name: sum(values) / len(values) for name, values in extra.items()}
        return {f"eval/{name}": value for name, value in metrics.items()}
