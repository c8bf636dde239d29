"""Which spaces hold numbers only, which values are numbers, and the numbers in infos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, OneOf, Sequence, Space, Tuple

from marlogue.wrappers.view import holds_texts


def is_numeric(space: Space[Any] | None) -> bool:
    """Whether there is a space, and no text anywhere in it."""
    if isinstance(space, Dict):
        return all(is_numeric(part) for part in space.spaces.values())
    if isinstance(space, Tuple | OneOf):
        return all(is_numeric(part) for part in space.spaces)
    if isinstance(space, Sequence):
        return is_numeric(space.feature_space)
    return space is not None and not holds_texts(space)


def is_number(value: Any) -> bool:
    """Whether it is one real number, of Python or of numpy (a scalar, or an array without axes)."""
    if isinstance(value, np.ndarray | np.generic):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, int | float)


def info_numbers(agent: str, info: Mapping[str, Any], keys: Iterable[str]) -> dict[str, float]:
    """The entries of an agent's info under these keys, as floats; 0.0 for those that are missing
    or None.

    Raises:
        TypeError: when one is no number; names agent and key.
    """
    numbers = {}
    for key in keys:
        value = info.get(key)
        if value is not None and not is_number(value):
            raise TypeError(
                f"infos[{agent!r}][{key!r}] ({value!r}) must be a number to be kept; take "
                f"{key!r} out of info_keys"
            )
        numbers[key] = 0.0 if value is None else float(value)
    return numbers
