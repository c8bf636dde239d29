"""The tasks by name. To add one, write a module with `parallel_env` and add a line here."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from marlogue.envs import coordination_v0, story_length_v0
from marlogue.envs.text_env import TextEnv

TASKS: dict[str, Callable[..., TextEnv]] = {
    "coordination_v0": coordination_v0.parallel_env,
    "story_length_v0": story_length_v0.parallel_env,
}


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the parallel environment of a task.

    Args:
        name: one of `TASKS`, as in "story_length_v0".
        kwargs: passed on to the task's `parallel_env`.

    Raises:
        ValueError: when there is no such task; names the nearest one.
    """
    if name not in TASKS:
        nearest = difflib.get_close_matches(str(name), TASKS, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "choose one of them"
        raise ValueError(f"name ({name!r}) must be one of {', '.join(TASKS)}; {hint}")
    return TASKS[name](**kwargs)
