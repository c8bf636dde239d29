"""Processors: what is done to a reward before it is learned from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass


class Processor(ABC):
    """A reward processor that can be pickled and chained: `(scale | clip)(x) == clip(scale(x))`.

    Any function from float to float can serve as a processor; these are the ready-made ones.
    """

    @abstractmethod
    def __call__(self, reward: float) -> float:
        """Process one agent's reward."""

    def __or__(self, after: Callable[[float], float]) -> Processor:
        return RewardProcessors.compose(self, after)


@dataclass(frozen=True)
class Scale(Processor):
    """Multiply by `factor`."""

    factor: float

    def __call__(self, reward: float) -> float:
        """Process one agent's reward."""
        return reward * self.factor


@dataclass(frozen=True)
class Shift(Processor):
    """Add `value`."""

    value: float

    def __call__(self, reward: float) -> float:
        """Process one agent's reward."""
        return reward + self.value


@dataclass(frozen=True)
class Clip(Processor):
    """Keep within `low` and `high`; None leaves a side open."""

    low: float | None
    high: float | None

    def __call__(self, reward: float) -> float:
        """Process one agent's reward."""
        if self.low is not None and reward < self.low:
            return self.low
        if self.high is not None and reward > self.high:
            return self.high
        return reward


@dataclass(frozen=True)
class Compose(Processor):
    """Apply processors from left to right."""

    processors: tuple[Callable[[float], float], ...]

    def __call__(self, reward: float) -> float:
        """Process one agent's reward."""
        for processor in self.processors:
            reward = processor(reward)
        return reward


class RewardProcessors:
    """Makes reward processors.

    `RewardProcessors.scale(2.0) | RewardProcessors.clip(-1.0, 1.0)` doubles, then clips.
    """

    @staticmethod
    def scale(factor: float = 1.0) -> Processor:
        """Multiply rewards by a factor."""
        return Scale(_finite("factor", factor))

    @staticmethod
    def shift(value: float = 0.0) -> Processor:
        """Add a value to rewards."""
        return Shift(_finite("value", value))

    @staticmethod
    def clip(low: float | None = None, high: float | None = None) -> Processor:
        """Keep rewards within two bounds; None leaves a side open.

        Raises:
            ValueError: when neither bound is given, or `low` is above `high`.
        """
        if low is None and high is None:
            raise ValueError("low (None) and high (None) bound nothing; set at least one")
        low = None if low is None else _finite("low", low)
        high = None if high is None else _finite("high", high)
        if low is not None and high is not None and low > high:
            raise ValueError(f"low ({low}) must not be above high ({high})")
        return Clip(low, high)

    @staticmethod
    def compose(*processors: Callable[[float], float]) -> Processor:
        """Apply several processors, from left to right.

        Raises:
            TypeError: when one of them is not callable.
        """
        for processor in processors:
            if not callable(processor):
                raise TypeError(f"processor ({processor!r}) must be callable")
        return Compose(processors)


def _finite(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} ({value!r}) must be a number")
    if not math.isfinite(value):
        raise ValueError(f"{name} ({value}) must be finite")
    return float(value)
