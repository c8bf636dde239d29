"""Trainings that are stopped by a real signal at a place that is named, and go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from marlogue.algorithms import Callback
from marlogue.algorithms.on_policy_state import optimizers_of
from tests.support.team import weights


class StopAt(Callback):
    """Sends this process a signal: at item k, at update k, when evaluated for the k-th time, or in
    the middle of an update, when agent 1 is scored for the k-th time.

    Args:
        place: "item", "update", "evaluation" or "score".
        number: k, from 1.
        number_of_signal: which signal.
    """

    def __init__(self, place: str, number: int, which: int = signal.SIGTERM) -> None:
        self.place, self.left, self.which = place, number, which

    def on_train_start(self, trainer: Any) -> None:
        def scored(*_: Any) -> None:
            if torch.is_grad_enabled():
                self._at("score")

        if self.place == "score":
            trainer.agents[1].model.base_model.register_forward_pre_hook(scored)

    def on_item(self, trainer: Any, samples: Any) -> None:
        self._at("item")

    def on_update(self, trainer: Any) -> None:
        self._at("update")

    def on_evaluation(self, trainer: Any, metrics: Any) -> None:
        self._at("evaluation")

    def _at(self, place: str) -> None:
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.which)


def stopped_and_resumed(make: Callable[..., Any], folder: Path, stop: Callback) -> tuple[Any, Any]:
    """Train until the stop; go on with a new trainer.

    Args:
        make: makes the trainer, with what is given here beside.
        folder: of the run.
        stop: sends the signal.

    Returns:
        The trainer that was stopped, and the one that went on to the end.
    """
    first = make(logdir=folder, callbacks=[stop])
    with pytest.raises(SystemExit) as stopped:
        first.train()
    assert stopped.value.code == 75
    second = make(logdir=folder, resume="auto")
    second.train()
    assert second.keeper.resumed_from is not None
    return first, second


def state(trainer: Any) -> dict[str, torch.Tensor]:
    """Weights and optimisers of a trainer."""
    found = weights(trainer)
    for name, optimizer in optimizers_of(trainer).items():
        found |= {f"{name} {k}": v.clone() for k, v in optimizer.state_tensors().items()}
    return found


def figures(folder: Path) -> list[dict[str, Any]]:
    """What a run logged, without what a clock has measured."""
    lines = (folder / "progress.json").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if "per_second" not in k} for line in lines]


def assert_same(one: Any, other: Any) -> None:
    """See that two trainers have the same weights and optimisers, bit for bit."""
    ours, theirs = state(one), state(other)
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different
