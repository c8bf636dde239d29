"""Configuration of what is kept of a run, for all trainers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from marlogue.agents.rules import converted, truth, whole

#: Resume from the newest intact checkpoint of the run's folder, if there is one.
AUTO = "auto"


def _resume_rule(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} ({value!r}) must be 'auto', a checkpoint's folder, or None.")


def _resume_text(name: str, value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


@dataclass(kw_only=True)
class KeepingConfig:
    """What is kept of a run, and what it goes on from.

    Args:
        save_steps: items (AAC: steps) between two checkpoints in ``logdir/checkpoints``; None for
            none, except after a signal or an error.
        save_total_limit: how many checkpoints are kept, the newest ones; None for all.
        save_best: keep the models of the best evaluation in ``logdir/best``.
        save_on_signal: after SIGTERM or SIGINT stop at the next safe point, save a checkpoint, and
            leave with exit code 75; a second signal stops at once.
        resume: go on from a checkpoint: "auto" for the newest intact one of ``logdir`` (from the
            beginning where there is none), or its folder, or that of its run. None begins a new
            run.
    """

    save_steps: int | None = whole(500, at_least=1, optional=True)
    save_total_limit: int | None = whole(2, at_least=1, optional=True)
    save_best: bool = truth(False)
    save_on_signal: bool = truth(True)
    resume: str | None = converted(None, _resume_text, _resume_rule)


def settings_of(trained: Mapping[str, Any], all_args: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that may change when a run goes on, and matter to it.

    Args:
        trained: those that may not.
        all_args: all fields.
    """
    left_out = {*trained, "verbose", *(field.name for field in fields(KeepingConfig))}
    return {name: value for name, value in all_args.items() if name not in left_out}
