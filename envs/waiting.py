"""Turns that are not everybody's: how an environment says who waits, and what that one says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Space, Text

WAITS = "waits"
"""The key in an agent's info that is True while it is not that agent's turn."""


def waits(info: Mapping[str, Any]) -> bool:
    """Whether the environment says that it is not this agent's turn."""
    return bool(info.get(WAITS, False))


def idle_text(space: Space[Any]) -> str:
    """What an agent that waits says: nothing, or the least that its action space contains."""
    if space.contains(""):
        return ""
    return min(space.characters) * space.min_length if isinstance(space, Text) else "text"
