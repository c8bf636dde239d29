"""A training of actor-attention-critic that goes on from a checkpoint ends as one that was never
broken off, bit for bit.

One run saves many checkpoints; fresh trainers go on from some of them, and the states of all at the
end are compared: networks, slow copies, optimisers, generators, replay, statistics, what is being
played, counters, and the log's window.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from marlogue.algorithms import AACConfig, AACTrainer
from tests.support.games import Cues, Leavers, Memory, Targets
from tests.support.team_envs import Masked, Shift

SMALL: dict[str, Any] = {
    "total_steps": 50,
    "learning_starts": 10,
    "train_interval": 2,
    "batch_size": 8,
    "hidden_size": 8,
    "num_heads": 2,
    "actor_hidden_sizes": (8,),
    "agent_learning_rate": 5e-3,
    "replay_size": 40,  # full before the end, so that the ring goes round
    "eval_interval": 0,
    "eval_episodes": 2,
    "logging_steps": 7,
    "attention_images": False,
    "device": "cpu",
    "verbose": False,
    "save_steps": 22,
    "save_total_limit": None,
}


def trainer(logdir: Path, env: Any, changes: dict[str, Any], **parts: Any) -> AACTrainer:
    return AACTrainer(args=AACConfig(**{**SMALL, **changes}), env=env, logdir=logdir, **parts)


def resumed(place: Path, logdir: Path, env: Any, changes: dict[str, Any], **parts: Any) -> Any:
    made = trainer(logdir, env, {**changes, "resume": str(place)}, **parts)
    made.train()
    return made


def checkpoint(logdir: Path, step: int) -> Path:
    return logdir / "checkpoints" / f"step_{step:09d}"


def untimed(value: Any) -> Any:
    """Without what says how long something took, and the sizes of files that tell it."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not k.startswith("time/") and k != "files"}
        return {k: untimed(v) for k, v in kept.items()}
    return value


def assert_same_state(one: Path, other: Path) -> None:
    """Compare the folders of two states."""
    files, others = (
        sorted(file.relative_to(place) for file in place.rglob("*.*") if file.stem != "manifest")
        for place in (one, other)
    )
    assert files
    assert files == others
    for name in files:
        if name.suffix == ".safetensors":
            left, right = load_file(one / name), load_file(other / name)
            assert left.keys() == right.keys(), name
            for key, tensor in left.items():
                assert torch.equal(tensor, right[key]), (name, key)
        else:
            left, right = (json.loads((folder / name).read_text()) for folder in (one, other))
            for about in (left, right):
                about.pop("args", None)  # where it was saved and resumed
            assert untimed(left) == untimed(right), name


def check(
    tmp_path: Path, env: Any, changes: dict[str, Any], at: list[int], **parts: Any
) -> AACTrainer:
    whole = trainer(tmp_path / "whole", env, changes, **parts)
    whole.train()
    assert whole.updates > 5
    end = checkpoint(tmp_path / "whole", whole.steps)
    for step in at:
        place = tmp_path / f"from_{step}"
        again = resumed(checkpoint(tmp_path / "whole", step), place, env, changes, **parts)
        assert again.updates == whole.updates
        assert_same_state(end, checkpoint(place, whole.steps))
    return whole


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "discrete": (lambda: Cues(length=7), {}),
    "continuous": (Targets, {"num_envs": 2, "noise": {"start": 0.5, "end": 0.1}}),
    "deterministic": (Targets, {"deterministic": True, "policy_delay": 2}),
    "leaving and coming": (Shift, {"epsilon": {"start": 0.5, "end": 0.0}, "num_envs": 2}),
    "masks": (Masked, {"sharing": "none"}),
    "remembering": (
        Memory,
        {"actor_trunk": "gru", "sequence_length": 3, "burn_in": 2, "n_step": 2, "num_envs": 2},
    ),
    "prioritised": (
        lambda: Leavers(4),
        {"replay": "prioritized", "n_step": 3, "num_envs": 2},
    ),
    "remembering, prioritised": (
        Memory,
        {"actor_trunk": "gru", "replay": "prioritized", "sequence_length": 3, "burn_in": 1},
    ),
    "statistics": (
        Shift,
        {"normalize_observations": True, "learn_temperature": True, "lr_scheduler_type": "linear"},
    ),
    "losses": (
        lambda: Cues(length=5),
        {"consistency_coef": 0.1, "local_value_coef": 0.1, "num_queries": 2, "id_embedding": 2},
    ),
    "evaluations": (lambda: Cues(length=5), {"eval_interval": 6}),
}


@pytest.mark.parametrize("case", CASES)
def test_bit_exact(tmp_path, case):
    env, changes = CASES[case]
    check(tmp_path, env, changes, [22, 44])
