"""A training of actor-attention-critic that goes on from a checkpoint ends as one that was never
broken off, bit for bit.

One run saves many checkpoints; fresh trainers go on from some of them, and the states of all at the
end are compared: networks, slow copies, optimisers, generators, replay, statistics, what is being
played, counters, and the log's window.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from marlogue.algorithms import AACConfig, AACTrainer, Callback
from marlogue.algorithms.run_description import ResumeError
from marlogue.algorithms.streams import TRAIN, derived_seed, restore_generator
from marlogue.algorithms.team_views import EpisodeEnd
from tests.support.command_line import ROOT
from tests.support.games import Cues, Leavers, Memory, Targets
from tests.support.stopping import StopAt, figures, stopped_and_resumed
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


@pytest.mark.parametrize(
    ("env", "stages", "changes"),
    [
        (
            Cues,
            [
                {"num_agents": 2, "length": 6, "until": 0.32},
                {"num_agents": 3, "length": 6, "until": 0.64},
                {"num_agents": 4, "length": 9},
            ],
            {"id_embedding": 2, "normalize_observations": True},
        ),
        (Cues, [{"length": 6, "until": 0.32}, {"length": 4, "until": 0.64}, {"length": 9}], {}),
    ],
)
def test_in_every_stage_of_a_curriculum_and_at_their_borders(tmp_path, env, stages, changes):
    """They end at 16, 32 and 50 steps."""
    check(tmp_path, env, {"save_steps": 8, **changes}, [8, 16, 24, 32, 40], curriculum=stages)


@pytest.mark.parametrize(("env", "guidance"), [(Shift, True), (lambda: Cues(length=4), True)])
def test_with_guidance_that_fades(tmp_path, env, guidance):
    changes = {
        "guidance_weight": {"start": 0.9, "end": 0.0, "until": 0.8},
        "replay": "prioritized",
        "epsilon": {"start": 0.4, "end": 0.1},
    }
    check(tmp_path, env, changes, [22], guidance=guidance)


def test_in_processes_of_which_one_dies(tmp_path):
    """Environment 1 kills its process in its third episode, before the second checkpoint."""
    deadly = (derived_seed(0, TRAIN, 1, 2),)
    changes = {"num_envs": 2, "env_backend": "subprocess", "num_workers": 2, "max_restarts": 1}
    env = partial(Shift, deadly=deadly)
    with pytest.warns(RuntimeWarning, match=r"worker of environments \[1\] died"):
        whole = check(
            tmp_path, env, {"save_steps": 10, **changes}, [10, 41]
        )  # a step of one environment was lost
    assert whole.restarts == 1
    assert whole.statistics.rewards is not None


def test_a_run_that_is_prolonged(tmp_path):
    """Where nothing follows the share of the training that is done, as if it had been planned."""
    changes = {"eval_interval": 15, "save_steps": 30}
    env = partial(Cues, length=7)
    short = trainer(tmp_path / "short", env, {**changes, "total_steps": 30})
    short.train()
    with pytest.warns(UserWarning, match="total_steps was 30 and is 50"):
        longer = resumed(tmp_path / "short", tmp_path / "short", env, changes)
    planned = trainer(tmp_path / "planned", env, changes)
    planned.train()
    assert longer.updates == planned.updates
    assert_same_state(checkpoint(tmp_path / "planned", 50), checkpoint(tmp_path / "short", 50))
    assert figures(tmp_path / "planned") == figures(tmp_path / "short")
    again = resumed(tmp_path / "short", tmp_path / "short", env, changes)
    assert (again.steps, again.updates) == (50, longer.updates)  # it is over


class DrawsWhenMade(Cues):
    def __init__(self) -> None:
        super().__init__()
        random.random()


def test_environments_that_draw_while_they_are_made_change_no_random_numbers(tmp_path):
    """Users' callbacks draw from the same generators."""
    check(tmp_path, DrawsWhenMade, {}, at=[22])


class Unseeded(Cues):
    """Cues do not follow from the seed."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()


def test_an_environment_that_does_not_follow_its_seed(tmp_path):
    class Note(Callback[AACTrainer]):
        ended: list[int]

        def on_train_start(self, trainer: AACTrainer) -> None:
            self.ended = []

        def on_episode(self, trainer: AACTrainer, episode: EpisodeEnd) -> None:
            self.ended.append(episode.episode)

    env = partial(Unseeded, length=7)
    whole = trainer(tmp_path, env, {}, callbacks=[note := Note()])
    whole.train()
    assert note.ended == [0, 1, 2, 3, 4, 5, 6]
    with pytest.warns(RuntimeWarning, match=r"episode 3 of environment 0.*did not get to where"):
        again = resumed(checkpoint(tmp_path, 22), tmp_path / "b", env, {}, callbacks=[note])
    # One step into episode 3, which is given up; the next one begins.
    assert note.ended == [4, 5, 6, 7]
    assert again.steps == 50
    ring = again.memory._buffer.ring
    begins = ring.serials_of(np.flatnonzero(ring.previous[: ring.filled] < 0))
    # Episode 3 has two of the slots up to 24: the next one starts behind them.
    first = int(begins[begins >= 25].min())
    assert (first + 1, ring.next[first % ring.capacity]) == (27, 27)


@pytest.mark.parametrize(
    ("changes", "env", "difference"),
    [
        ({"seed": 3}, Cues, "seed was 0 and is 3"),
        ({"num_envs": 2}, Cues, "num_envs was 1 and is 2"),
        ({"hidden_size": 16}, Cues, "networks was"),
        ({"actor_trunk": "gru"}, Cues, "actor_trunk was 'mlp' and is 'gru'"),
        ({"replay": "prioritized"}, Cues, "replay was 'uniform' and is 'prioritized'"),
        ({}, partial(Cues, num_agents=4), "agents was .*agent_3"),
        ({"noise": 0.1}, Targets, "discrete was True and is False"),
    ],
)
def test_another_training_is_refused(saved_run, tmp_path, changes, env, difference):
    other = trainer(tmp_path, env, {**changes, "resume": str(saved_run)})
    before = [p.clone() for p in other.networks.critic.parameters()]
    with pytest.raises(ResumeError, match=f"another training.*{difference}"):
        other.train()
    assert other.steps == 0
    pairs = zip(before, other.networks.critic.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_other_settings_are_taken_over_and_said(saved_run, tmp_path):
    changes = {
        "temperature": 0.5,
        "agent_learning_rate": 0.0,
        "env_backend": "serial",
        "num_workers": 1,
    }
    said = r"agent_learning_rate was 0.005 and is 0.0.*"
    with pytest.warns(UserWarning, match=said):
        again = resumed(saved_run, tmp_path, Cues, changes)
    assert float(again.networks.temperature) == pytest.approx(0.5)
    saved = load_file(checkpoint(saved_run, 44) / "model" / "actors.safetensors")
    actors = again.networks.actors.state_dict()
    assert all(torch.equal(value, actors[name]) for name, value in saved.items())


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    """The folder of a run of 50 steps, with checkpoints at 22 and 44."""
    folder = tmp_path_factory.mktemp("saved")
    trainer(folder, Cues, {}).train()
    shutil.rmtree(checkpoint(folder, 50))
    return folder


class TestStops:
    """Signals and kills: real ones, in the middle of an update."""

    def test_a_signal_waits_for_the_step(self, tmp_path):
        undisturbed = trainer(tmp_path / "undisturbed", Cues, {})
        undisturbed.train()

        def make(**parts: Any) -> AACTrainer:
            return trainer(
                parts.pop("logdir"), Cues, {"resume": parts.pop("resume", None)}, **parts
            )

        first, _ = stopped_and_resumed(make, tmp_path / "run", StopAt("update", 9))
        assert first.steps == 26  # the ninth update is that after 26 steps
        assert first.updates == 9
        assert_same_state(
            checkpoint(tmp_path / "undisturbed", 50), checkpoint(tmp_path / "run", 50)
        )
        assert figures(tmp_path / "undisturbed") == figures(tmp_path / "run")

    def test_killed_in_a_process_of_its_own(self, tmp_path):
        """kill -9 in the update after 40 steps; what was saved after 22 is gone on from, in the
        process of the tests, whose hashes are seeded otherwise."""
        script = (
            "from tests.algorithms.test_aac_resume import *\n"
            f"folder = Path({str(tmp_path / 'run')!r})\n"
            "kill = StopAt('update', 16, signal.SIGKILL)\n"
            "trainer(folder, partial(Leavers, 4), {}, callbacks=[kill]).train()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7"}
        )
        assert done.returncode == -signal.SIGKILL
        env = partial(Leavers, 4)
        resumed(Path("auto"), tmp_path / "run", env, {})
        trainer(tmp_path / "undisturbed", env, {}).train()
        assert_same_state(
            checkpoint(tmp_path / "undisturbed", 50), checkpoint(tmp_path / "run", 50)
        )
        assert figures(tmp_path / "undisturbed") == figures(tmp_path / "run")

    def test_an_error_between_two_steps_leaves_a_checkpoint(self, tmp_path):
        class Late(Callback[AACTrainer]):
            def on_evaluation(self, trainer: AACTrainer, metrics: dict[str, float]) -> None:
                if trainer.steps == 26:
                    raise LookupError("no such table")

        changes = {"eval_interval": 13}
        with pytest.raises(LookupError) as caught:
            trainer(tmp_path / "run", Cues, changes, callbacks=[Late()]).train()
        place = checkpoint(tmp_path / "run", 26)
        assert str(place) in " ".join(caught.value.__notes__)
        resumed(Path("auto"), tmp_path / "run", Cues, changes)
        trainer(tmp_path / "undisturbed", Cues, changes).train()
        assert_same_state(
            checkpoint(tmp_path / "undisturbed", 50), checkpoint(tmp_path / "run", 50)
        )
        assert figures(tmp_path / "undisturbed") == figures(tmp_path / "run")


def test_generators_of_another_device_are_left_as_they_are():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    with pytest.warns(UserWarning, match="another kind of device"):
        restore_generator(generator, torch.zeros(16, dtype=torch.uint8))
    assert torch.equal(generator.get_state(), before)
    restore_generator(generator, torch.Generator().manual_seed(4).get_state())
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(4).get_state())
