"""Replay on disk: ``replay.safetensors`` has the arrays, only as far as they are filled, and
``replay.json`` the rest. Arrays go from memory to the file and back without copies in between."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import ReplayLayout

_ARRAYS, _REST = "replay.safetensors", "replay.json"
_RING = "ring."


def save_replay(buffer: ReplayBuffer, folder: Path) -> None:
    """Save what is held, and all that is needed to go on with the same draws."""
    state = buffer.state_dict(copy=False)
    arrays = {_RING + name: array for name, array in state.pop("rings").items()}
    arrays |= {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in state.items() if name not in arrays}
    save_file({name: _tensor(array) for name, array in arrays.items()}, folder / _ARRAYS)
    about = {"layout": asdict(buffer.layout), **rest}
    (folder / _REST).write_text(json.dumps(about), encoding="utf-8")


def saved_layout(folder: Path) -> ReplayLayout | None:
    """The layout of the replay in a folder; None when there is none."""
    if not (folder / _REST).exists():
        return None
    return ReplayLayout(**_rest(folder)["layout"])


def load_replay(buffer: ReplayBuffer, folder: Path) -> None:
    """Load what :func:`save_replay` saved into a buffer that is made alike.

    Raises:
        ValueError: when it is not; nothing is loaded then.
    """
    state = _rest(folder)
    state["rings"] = {}
    # Mapped, not read: each array is copied once, into the buffer.
    for name, tensor in load_file(folder / _ARRAYS).items():
        if name.startswith(_RING):
            state["rings"][name.removeprefix(_RING)] = tensor.numpy()
        else:
            state[name] = tensor.numpy()
    buffer.load_state_dict(state)


def _rest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / _REST).read_text(encoding="utf-8"))
    return found


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
