"""Random numbers that are not ours, and state that users keep in their callbacks.

Our own random numbers are named streams (:mod:`marlogue.algorithms.streams`) and need no state.
Reward functions, transitions and environments may draw from the generators of Python, numpy and
torch, and callbacks may remember things: a checkpoint holds that too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from marlogue.envs.callbacks import callback_name, noted


def random_state() -> dict[str, Any]:
    """The state of the global generators of Python, numpy and torch; fit for JSON."""
    # numpy's global generator is no good for us, but users have it.
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
        "torch": _hex(torch.get_rng_state()),
        "cuda": [_hex(state) for state in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Go on from what :func:`random_state` gave. GPUs that are not here any more are left out."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numbers = np.array(keys, dtype=np.uint32)
    np.random.set_state((kind, numbers, position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(_bytes(state["torch"]))
    if torch.cuda.is_available():
        for index, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_bytes(saved), index)


def _hex(state: torch.Tensor) -> str:
    return bytes(state.cpu().numpy()).hex()


def _bytes(saved: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(saved), dtype=torch.uint8)


@runtime_checkable
class Stateful(Protocol):
    """An object of the user's that remembers something that JSON can express."""

    def state_dict(self) -> Any:
        """What it remembers."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Remember it again."""
        ...


def stateful(objects: Iterable[Any]) -> list[Stateful]:
    """Those that have state of their own to be kept, each once, in order.

    A ``torch.nn.Module`` (a reward model) is none: its weights are not ours to save.

    Raises:
        TypeError: when JSON cannot express the state of one.
    """
    found = [
        one
        for one in objects
        if isinstance(one, Stateful) and not isinstance(one, nn.Module | type)
    ]
    unique = list({id(one): one for one in found}.values())
    for one in unique:
        with noted(f"calling state_dict of {callback_name(one)}"):
            state = one.state_dict()
        try:
            json.dumps(state)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"state_dict of {callback_name(one)} must return what JSON can express, to be kept "
                f"in checkpoints ({error}); return plain numbers, texts, lists and dicts."
            ) from error
    return unique


def users_state(objects: Iterable[Any]) -> list[Any]:
    """The states of those that have one; fit for JSON. See :func:`stateful`."""
    return [one.state_dict() for one in stateful(objects)]


def load_users_state(objects: Iterable[Any], states: Sequence[Any], folder: Path) -> None:
    """Let them go on from what :func:`users_state` gave, which was found in ``folder``.

    Raises:
        ValueError: when there were more or fewer of them.
    """
    users = stateful(objects)
    if len(users) != len(states):
        raise ValueError(
            f"{folder} holds the state of {len(states)} callbacks with a state of their own, but "
            f"here are {len(users)}; build the trainer as the one that saved it."
        )
    for one, state in zip(users, states, strict=True):
        with noted(f"calling load_state_dict of {callback_name(one)}"):
            one.load_state_dict(state)
