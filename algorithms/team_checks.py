"""Checks of what a `TeamVector` is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.team_views import TeamView


def checked_episodes(first: int | Sequence[int], num_envs: int) -> list[int]:
    """[E] numbers of episodes.

    Raises:
        ValueError: when they are not one for all or one for each.
    """
    numbers = [first] * num_envs if isinstance(first, int) else [int(number) for number in first]
    if len(numbers) != num_envs or min(numbers) < 0:
        raise ValueError(
            f"first_episode ({first!r}) must be a number from 0, or {num_envs} of them, one for "
            "each environment."
        )
    return numbers


def checked_actions(actions: NDArray[Any], view: TeamView, team: TeamSpec) -> NDArray[Any]:
    """Actions as the workers take them, without those of absent agents.

    Raises:
        ValueError: when they have another shape or dtype, or are out of range.
    """
    given = np.asarray(actions)
    shape = view.present.shape if team.discrete else (*view.present.shape, team.action_size)
    if given.shape != shape or given.dtype.kind not in ("iu" if team.discrete else "f"):
        what = "integers" if team.discrete else "floats"
        raise ValueError(
            f"actions (shape {given.shape}, {given.dtype}) must be {what} of the shape {shape}."
        )
    if team.discrete:
        bad = (given < 0) | (given >= np.array(team.action_sizes))
        wanted = "an index of one of its actions"
    else:
        bad = ~np.isfinite(given).all(-1)
        wanted = "finite numbers"
    bad &= view.present
    if bad.any():
        env, i = np.argwhere(bad)[0].tolist()
        raise ValueError(
            f"actions of {team.agents[i]} in environment {env} ({given[env, i]}) must be {wanted}."
        )
    return given


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise a ValueError when a number is not whole or too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} ({value!r}) must be a whole number of at least {least}.")
