"""Figures about samples, for the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from stable_baselines3.common.utils import explained_variance

from marlogue.algorithms.sample import Sample
from marlogue.envs.callbacks import noted

MetricsCallback = Callable[[Sequence[Sample]], Mapping[str, float]]


def sample_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """What collection knows: means over samples of one turn (of one agent, or of the team).

    Rewards are the environment's, without a KL penalty. A number that is not finite has no part in
    a mean. Figures of which there is no sample are left out.
    """
    rewarded = [sample for sample in samples if not sample.abstained]
    dropped = sum(sample.abstained and sample.reward_error is not None for sample in samples)
    metrics = {
        "reward_mean": _mean(sample.reward for sample in rewarded),
        "expected_return": _mean(sample.return_ for sample in rewarded),
        "completion_length": _mean(float(len(sample.completion_ids)) for sample in samples),
        "truncated_share": _mean(float(sample.action.truncated) for sample in samples),
        "abstained": float(len(samples) - len(rewarded) - dropped),
        "dropped": float(dropped),
        "reference_kl": _mean(sample.reference_kl for sample in rewarded),
        "reference_kl_penalty": _mean(
            sample.penalty if _known(sample.reference_kl) else math.nan for sample in rewarded
        ),
    }
    return {name: value for name, value in metrics.items() if _known(value)}


def value_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """What an update knows of the samples that it learnt from; those that it left out, since a
    number was not finite, have no part."""
    known = [s for s in samples if math.isfinite(s.target) and math.isfinite(s.value)]
    if not known:
        return {}
    values = np.array([sample.value for sample in known])
    targets = np.array([sample.target for sample in known])
    errors = targets - values
    metrics = {
        "value": float(values.mean()),
        "td_error_mean": float(errors.mean()),
        "td_error_std": float(errors.std()),
        # NaN where the targets don't vary, and then left out.
        "explained_variance": float(explained_variance(values, targets)),
    }
    return {name: value for name, value in metrics.items() if _known(value)}


def called_back(callback: MetricsCallback, samples: Sequence[Sample]) -> dict[str, float]:
    """The figures that a ``metrics_callback`` makes of an item's samples.

    Raises:
        TypeError: when it returns something else than names and numbers.
    """
    with noted(f"calling metrics_callback with item {samples[0].item_idx}"):
        returned = callback(samples)
    if not isinstance(returned, Mapping):
        raise TypeError(
            f"metrics_callback must return a dict of names and numbers; it returned {returned!r}."
        )
    try:
        return {str(name): float(value) for name, value in returned.items()}
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"metrics_callback must return numbers; it returned {dict(returned)!r}."
        ) from error


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
    listed = [value for value in values if math.isfinite(value)]
    return math.fsum(listed) / len(listed) if listed else math.nan


def _known(value: float) -> bool:
    return not math.isnan(value)
