"""A bounded memory of what was computed lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from marlogue.envs.task import whole_number

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The values of the keys that were used last.

    Args:
        size: how many; 0 remembers nothing.

    Raises:
        TypeError, ValueError: when `size` is no whole number of at least 0.
    """

    def __init__(self, size: int) -> None:
        self.size = whole_number("remember", size, 0)
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value of a key, None where it is not remembered."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        return None

    def put(self, key: K, value: V) -> None:
        """Remember a value, and forget the one that was not used for longest if need be."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self.size:
            self._values.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
