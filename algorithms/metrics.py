"""Figures about samples, for the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from stable_baselines3.common.utils import explained_variance

from marlogue.algorithms.sample import Sample


def sample_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Means over samples of one turn (of one agent, or of the team).

    Figures that no sample knows (a value in an evaluation, a KL that is off) are left out.
    """
    trained = [sample for sample in samples if not sample.abstained]
    truncated = [float(sample.action.truncated) for sample in samples]
    metrics = {
        "reward_mean": _mean(sample.reward + sample.penalty for sample in trained),
        "expected_return": _mean(sample.return_ for sample in trained),
        "completion_length": _mean(float(len(sample.completion_ids)) for sample in samples),
        "truncated_share": _mean(truncated),
        "abstained": float(len(samples) - len(trained)),
        "value": _mean(sample.value for sample in trained),
        "reference_kl": _mean(sample.reference_kl for sample in trained),
    }
    if "reference_kl" in metrics and not math.isnan(metrics["reference_kl"]):
        metrics["reference_kl_penalty"] = _mean(sample.penalty for sample in trained)
    metrics.update(_value_metrics([sample for sample in trained if _known(sample.target)]))
    return {name: value for name, value in metrics.items() if _known(value)}


def _value_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    if not samples:
        return {}
    values = np.array([sample.value for sample in samples])
    targets = np.array([sample.target for sample in samples])
    errors = targets - values
    return {
        "td_error_mean": float(errors.mean()),
        "td_error_std": float(errors.std()),
        # NaN where the targets don't vary, and then left out.
        "explained_variance": float(explained_variance(values, targets)),
    }


def by_turn_and_agent(
    samples: Iterable[Sample], of: Callable[[Sequence[Sample]], dict[str, float]]
) -> dict[str, float]:
    """Apply ``of`` to the samples of every agent and turn, and of the whole team and turn.

    Returns:
        ``AGENT/turn_T/NAME`` and ``team/turn_T/NAME``, turns counted from 1.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(f"{sample.agent}/turn_{sample.turn_idx + 1}", []).append(sample)
        groups.setdefault(f"team/turn_{sample.turn_idx + 1}", []).append(sample)
    return {
        f"{place}/{name}": value
        for place, group in sorted(groups.items())
        for name, value in of(group).items()
    }


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else math.nan


def _known(value: float) -> bool:
    return not math.isnan(value)
