"""The tasks by name. To add one, write a module with `parallel_env` and add a line here.

`TASKS` are of texts, for teams of language models; `NUMERIC_TASKS` are of vectors.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs import (
    cloud_scheduling_v0,
    code_pair_v0,
    coordination_v0,
    pursuit_v0,
    spread_v0,
    story_length_v0,
)
from marlogue.envs.text_env import TextEnv

TASKS: dict[str, Callable[..., TextEnv]] = {
    "code_pair_v0": code_pair_v0.parallel_env,
    "coordination_v0": coordination_v0.parallel_env,
    "story_length_v0": story_length_v0.parallel_env,
}

NUMERIC_TASKS: dict[str, Callable[..., ParallelEnv]] = {
    "cloud_scheduling_v0": cloud_scheduling_v0.parallel_env,
    "pursuit_v0": pursuit_v0.parallel_env,
    "spread_v0": spread_v0.parallel_env,
}

Made = TypeVar("Made")


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the parallel environment of a task of texts.

    Args:
        name: one of `TASKS`, as in "story_length_v0".
        kwargs: passed on to the task's `parallel_env`.

    Raises:
        ValueError: when there is no such task; names the nearest one.
    """
    return _find(name, TASKS)(**kwargs)


def make_numeric(name: str, **kwargs: Any) -> ParallelEnv:
    """Make the parallel environment of a task of vectors.

    Args:
        name: one of `NUMERIC_TASKS`, as in "spread_v0".
        kwargs: passed on to the task's `parallel_env`.

    Raises:
        ValueError: when there is no such task; names the nearest one.
    """
    return _find(name, NUMERIC_TASKS)(**kwargs)


def _find(name: str, tasks: dict[str, Callable[..., Made]]) -> Callable[..., Made]:
    if name not in tasks:
        nearest = difflib.get_close_matches(str(name), tasks, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "choose one of them"
        raise ValueError(f"name ({name!r}) must be one of {', '.join(tasks)}; {hint}")
    return tasks[name]
