"""What a run trains, in words: written into its folder, and compared when it is resumed."""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from marlogue import __version__
from marlogue.envs.episodes import is_json
from marlogue.envs.rows import Rows

_ROWS_READ = 64


class ResumeError(ValueError):
    """A checkpoint of another training than this one."""


def description(trained: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A description; plain, fit for JSON.

    Args:
        trained: what a checkpoint makes no sense without: agents, models, data.
        settings: what may be another when a run goes on.
    """
    versions = {
        "marlogue": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    made = {"trained": trained, "settings": settings, "versions": versions}
    plain: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return plain


def compare(saved: Mapping[str, Any], here: Mapping[str, Any], where: Path) -> None:
    """See that a checkpoint fits; what may differ is taken over, and said in a warning.

    Raises:
        ResumeError: with the difference, when something else was trained.
    """
    other = _differences(saved.get("trained", {}), here["trained"])
    if other:
        raise ResumeError(
            f"{where} is a checkpoint of another training ({'; '.join(other)}); resume with what "
            "it was started with, or start anew in another logdir."
        )
    changed = [
        change
        for part in ("settings", "versions")
        for change in _differences(saved.get(part, {}), here[part])
    ]
    if changed:
        warnings.warn(
            f"resuming from {where} with other settings than before: {'; '.join(changed)}.",
            stacklevel=2,
        )


def _differences(saved: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    # A name that only one side knows is of another version of the library.
    return [
        f"{name} was {saved[name]!r} and is {value!r}"
        for name, value in here.items()
        if name in saved and saved[name] != value
    ]


def of_model(model: nn.Module) -> str:
    """A model's kind and size, and what tells its parameters from those of others."""
    shapes = [(name, list(value.shape)) for name, value in model.state_dict().items()]
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{type(model).__name__} of {count:,} weights ({_short(json.dumps(shapes))})"


def of_rows(rows: Rows) -> str:
    """A dataset's length, and what tells its rows (some, over all of it) from those of others."""
    if rows.length is None:
        return "a stream"
    step = max(1, rows.length // _ROWS_READ)
    chosen = [*range(0, rows.length, step), rows.length - 1]
    texts = [
        json.dumps({k: v for k, v in rows.read(index).items() if is_json(k, v)}, sort_keys=True)
        for index in chosen
    ]
    return f"{rows.length:,} rows ({_short(''.join(texts))})"


def of_weights(models: Iterable[nn.Module]) -> str:
    """What tells these weights from others, exactly."""
    digest = hashlib.sha256()
    for model in models:
        for name, value in model.state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
