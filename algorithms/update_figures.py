"""What an update was like, in the few numbers that watchers look at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from marlogue.algorithms.sample import Sample

#: A mean return within this share of the range of all returns seen counts as the best there is.
NEAR_BEST = 0.05


@dataclass(frozen=True)
class GroupFigures:
    """Of the samples of one agent and turn in an update.

    Attributes:
        place: ``AGENT/turn_T``.
        size: B samples.
        low, mean, high: of their returns (rewards from this turn on).
        target_variance: of their targets; NaN where none are known.
        error_variance: of what the critic leaves unexplained, y - V.
    """

    place: str
    size: int
    low: float
    mean: float
    high: float
    target_variance: float
    error_variance: float


@dataclass(frozen=True)
class UpdateFigures:
    """Of all samples of an update. Figures that are not known are NaN.

    Attributes:
        groups: by agent and turn, an agent's turns in order.
        entropy: mean of -log p over the generated tokens.
        cut: share of completions that ``max_new_tokens`` cut.
        size: completions.
        token_kl: KL to the reference per generated token.
        reference_kl: the largest agent's mean per completion, as it is logged.
        furthest: that agent.
    """

    groups: list[GroupFigures]
    entropy: float
    cut: float
    size: int
    token_kl: float
    reference_kl: float
    furthest: str


def figures_of(learnt: Sequence[Sample]) -> UpdateFigures:
    """Figures of the samples that an update has learnt from."""
    groups: dict[tuple[int, int], list[Sample]] = {}
    agents: dict[str, list[float]] = {}
    for sample in learnt:
        groups.setdefault((sample.agent_idx, sample.turn_idx), []).append(sample)
        if not math.isnan(sample.reference_kl):
            agents.setdefault(sample.agent, []).append(sample.reference_kl)
    scored = [sample for sample in learnt if math.isfinite(sample.log_prob)]
    kl = {agent: sum(found) / len(found) for agent, found in agents.items()}
    furthest = max(kl, key=lambda agent: kl[agent]) if kl else ""
    judged = [sample for sample in learnt if not math.isnan(sample.reference_kl)]
    return UpdateFigures(
        groups=[_group(groups[key]) for key in sorted(groups)],
        entropy=-_per_token(scored, [sample.log_prob for sample in scored]),
        cut=sum(sample.action.truncated for sample in learnt) / max(len(learnt), 1),
        size=len(learnt),
        token_kl=_per_token(judged, [sample.reference_kl for sample in judged]),
        reference_kl=kl.get(furthest, math.nan),
        furthest=furthest,
    )


class Returns:
    """The lowest and highest return seen so far at each place."""

    def __init__(self) -> None:
        self.ranges: dict[str, list[float]] = {}

    def see(self, groups: Iterable[GroupFigures]) -> None:
        """Take notice."""
        for group in groups:
            low, high = self.ranges.get(group.place, [group.low, group.high])
            self.ranges[group.place] = [min(low, group.low), max(high, group.high)]

    def near_best(self, group: GroupFigures) -> bool:
        """Whether a group's mean return is about the highest return ever seen there, though lower
        ones were: what a task that is solved looks like."""
        low, high = self.ranges.get(group.place, [math.nan, math.nan])
        return low < high and group.mean >= high - NEAR_BEST * (high - low)


def _group(samples: Sequence[Sample]) -> GroupFigures:
    returns = [s.return_ for s in samples if math.isfinite(s.return_)]
    known = [s for s in samples if math.isfinite(s.target) and math.isfinite(s.value)]
    targets = np.array([s.target for s in known])
    errors = targets - np.array([s.value for s in known])
    return GroupFigures(
        place=f"{samples[0].agent}/turn_{samples[0].turn_idx + 1}",
        size=len(samples),
        low=min(returns, default=math.nan),
        mean=sum(returns) / len(returns) if returns else math.nan,
        high=max(returns, default=math.nan),
        target_variance=float(targets.var()) if known else math.nan,
        error_variance=float(errors.var()) if known else math.nan,
    )


def _per_token(samples: Sequence[Sample], values: Sequence[float]) -> float:
    tokens = sum(len(sample.completion_ids) for sample in samples)
    return sum(values) / tokens if tokens else math.nan
