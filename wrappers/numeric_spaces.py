"""Which spaces hold numbers only."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Box, Dict, Space, Text, Tuple


def is_numeric(space: Space[Any] | None) -> bool:
    """Whether there is a space, and no text anywhere in it."""
    if isinstance(space, Dict):
        return all(is_numeric(part) for part in space.spaces.values())
    if isinstance(space, Tuple):
        return all(is_numeric(part) for part in space.spaces)
    if isinstance(space, Box):
        return True  # a Box asked about a text prints a warning
    return space is not None and not isinstance(space, Text) and not space.contains("text")
