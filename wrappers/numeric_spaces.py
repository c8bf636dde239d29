"""Which spaces hold numbers only, and which values are numbers."""

from __future__ import annotations

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
