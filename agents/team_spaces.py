"""Which spaces the agents of a `TeamSpec` may have."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.spaces.utils import flatten_space

_ARRAYS = "put EmbedObservations or NumericState around an environment of texts"


def check_observation_space(agent: str, space: Space[Any]) -> None:
    """Raise a TypeError or ValueError when this is not a fixed number of numbers, at least one."""
    flat: Space[Any] = space
    with suppress(NotImplementedError):  # a kind of space that gymnasium does not know
        flat = flatten_space(space)
    # Texts are flattened too, but to indices of characters, which is not what they say.
    texts = type(space).__name__ in ("Text", "UnicodeText")
    if texts or not isinstance(flat, Box) or not flat.shape:
        raise TypeError(
            f"the observation space of {agent} ({space}) must hold a fixed number of numbers; "
            f"flatten it, or {_ARRAYS}."
        )
    if flat.shape[0] < 1:
        raise ValueError(f"the observation space of {agent} ({space}) must not be empty.")


def check_action_space(agent: str, space: Space[Any]) -> None:
    """Raise a TypeError or ValueError when this is neither `Discrete` nor a bounded `Box`."""
    if isinstance(space, Discrete):
        return
    if not isinstance(space, Box):
        raise TypeError(
            f"the action space of {agent} ({space}) must be Discrete or Box; number the "
            "combinations of a composite one, or use CandidateActions for texts."
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise TypeError(
            f"the action space of {agent} ({space}) must be of floats; make it Discrete."
        )
    if int(np.prod(space.shape)) < 1 or not space.is_bounded():
        raise ValueError(
            f"the action space of {agent} ({space}) must have finite bounds and not be empty; set "
            "low and high."
        )
