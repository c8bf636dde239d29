"""Stages of a training whose environments get other arguments: more agents, a harder task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Stage:
    """A part of a training.

    Attributes:
        until: share of the training at which it ends.
        env_kwargs: arguments of the function that makes the environment.
    """

    until: float
    env_kwargs: Mapping[str, Any]


def make_stages(curriculum: Sequence[Mapping[str, Any]] | None) -> list[Stage]:
    """The stages of a curriculum.

    Args:
        curriculum: in order, mappings of ``until`` (left out of the last one) and arguments of
            the environment: ``[{"until": 0.5, "num_agents": 3}, {"num_agents": 10}]``. None for
            one stage without arguments.

    Raises:
        ValueError: when the stages do not cover the training in order.
    """
    if curriculum is None or len(curriculum) == 0:
        return [Stage(1.0, {})]
    stages = []
    begin = 0.0
    for number, entry in enumerate(curriculum):
        if not isinstance(entry, Mapping):
            raise ValueError(
                f"curriculum[{number}] ({entry!r}) must be a mapping of until and arguments of "
                "the environment."
            )
        last = number == len(curriculum) - 1
        until = entry.get("until", 1.0 if last else None)
        numeric = isinstance(until, Real) and not isinstance(until, bool)
        if not numeric or not begin < until <= 1 or (last and until != 1):
            wanted = "1, or left out" if last else f"above {begin:g} and at most 1"
            raise ValueError(
                f"curriculum[{number}]['until'] ({until!r}) must be {wanted}: the share of the "
                "training at which the stage ends."
            )
        begin = float(until)
        stages.append(Stage(begin, {k: v for k, v in entry.items() if k != "until"}))
    return stages
