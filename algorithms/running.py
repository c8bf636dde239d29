"""What every trainer does around its loop: check where it writes, and call hooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marlogue.algorithms.callbacks import Callback
from marlogue.envs.callbacks import noted


def checked_callbacks(callbacks: Sequence[Callback[Any]]) -> list[Callback[Any]]:
    """The callbacks as a list; a TypeError when they are none."""
    if isinstance(callbacks, list | tuple) and all(isinstance(c, Callback) for c in callbacks):
        return list(callbacks)
    raise TypeError(
        f"callbacks ({callbacks!r}) must be a list of marlogue.algorithms.Callback objects."
    )


def checked_logdir(logdir: str | Path | None) -> Path | None:
    """The folder as an absolute path, so that it stays the same one when a user's code changes the
    working directory; a ValueError when it is a file."""
    if logdir is None:
        return None
    if Path(logdir).is_file():
        raise ValueError(f"logdir ({logdir}) is a file; name a folder.")
    return Path(logdir).absolute()


def call_hooks(
    callbacks: Sequence[Callback[Any]], name: str, trainer: Any, *arguments: Any
) -> None:
    """Call the hook ``name`` of each callback; what it raises says whose it was."""
    for callback in callbacks:
        with noted(f"calling {type(callback).__name__}.{name}"):
            getattr(callback, name)(trainer, *arguments)
