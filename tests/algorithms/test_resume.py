"""MAAC and IAC: N items are k items, a stop, and N - k items, bit for bit."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from marlogue.algorithms import Anneal, Callback
from marlogue.algorithms.checkpoints import CheckpointError
from marlogue.algorithms.run_description import ResumeError
from tests.support.envs import LeaverEnv
from tests.support.stopping import StopAt, assert_same, figures, stopped_and_resumed
from tests.support.team import make_trainer, model, reward, rows

#: What is trained, and where it is stopped: in the middle of an epoch, of a buffer (where answers
#: end episodes early), of an update; while another epoch has begun; in an evaluation.
CASES: dict[str, tuple[str, tuple[str, int], dict[str, Any]]] = {
    "maac, within a buffer": ("maac", ("item", 2), {"early_termination_threshold": 0.5}),
    "maac, within an update": ("maac", ("score", 5), {"train_batch_size": 1}),
    "maac, second epoch": ("maac", ("item", 7), {}),
    "maac, between updates": ("maac", ("update", 2), {"eval_interval": 3}),
    "maac, in the last update": ("maac", ("score", 11), {"train_batch_size": 2}),
    "maac, after an evaluation": ("maac", ("evaluation", 2), {"eval_interval": 2}),
    "maac q": ("maac", ("score", 3), {"critic_type": "q", "train_batch_size": 2}),
    "maac joint": (
        "maac",
        ("score", 3),
        {"critic_update": "joint", "train_batch_size": 2, "early_termination_threshold": 0.5},
    ),
    "maac attention": (
        "maac",
        ("score", 2),
        {"critic_architecture": "attention", "credit": "agent", "train_batch_size": 2},
    ),
    "maac reference": ("maac", ("score", 3), {"reference_kl_enabled": True}),
    "maac single turn": (
        "maac",
        ("score", 2),
        {"num_turns": 1, "num_generations": 3, "rollout_buffer_size": 6, "train_batch_size": 4},
    ),
    "maac schedules": (
        "maac",
        ("update", 1),
        {
            "lr_scheduler_type": "cosine",
            "warmup_steps": 3,
            "guidance": lambda state, actions, infos: [float(len(a)) for a in actions.values()],
            "guidance_weight": Anneal(0.8, 0.1),
        },
    ),
    "separate": ("separate", ("score", 4), {"train_batch_size": 1, "max_grad_norm": 0.5}),
    "separate q, max_steps": ("separate", ("item", 5), {"critic_type": "q", "max_steps": 8}),
    "shared": ("shared", ("score", 4), {"train_batch_size": 1}),
    "shared q": ("shared", ("item", 5), {"critic_type": "q", "reference_kl_enabled": True}),
    "shared, bfloat16": ("shared", ("item", 5), {"dtype": "bfloat16"}),
}


def make(kind: str, **changes: Any) -> Any:
    settings = {
        "train_dataset": rows(5),
        "num_train_epochs": 2,
        "shuffle": True,
        "num_turns": 2,
        "eval_dataset": rows(2),
        **changes,
    }
    return make_trainer(kind, **settings)


@pytest.mark.parametrize("case", CASES)
def test_a_stop_changes_nothing(case, tmp_path):
    kind, stop, changes = CASES[case]
    undisturbed = make(kind, logdir=tmp_path / "undisturbed", **changes)
    undisturbed.train()
    first, resumed = stopped_and_resumed(
        partial(make, kind, **changes), tmp_path / "run", StopAt(*stop)
    )
    assert first.position < undisturbed.position or first.open_update is not None
    assert_same(resumed, undisturbed)
    assert (resumed.position, resumed.updates) == (undisturbed.position, undisturbed.updates)
    assert resumed.best_evaluation == undisturbed.best_evaluation
    assert figures(tmp_path / "run") == figures(tmp_path / "undisturbed")


def test_the_cases_stop_where_they_say(tmp_path):
    """Not by accident at a place where nothing waits."""
    kind, stop, changes = CASES["maac, within a buffer"]
    first, _ = stopped_and_resumed(
        partial(make, kind, **changes), tmp_path / "buffer", StopAt(*stop)
    )
    assert any(first.buffers)
    kind, stop, changes = CASES["maac, within an update"]
    first, _ = stopped_and_resumed(
        partial(make, kind, **changes), tmp_path / "update", StopAt(*stop)
    )
    assert first.open_update.begun
    assert (first.open_update.group, first.open_update.minibatch) > (0, 0)


def test_after_the_last_item(tmp_path):
    """`max_steps` ends the run within an epoch; what is in the buffers by then is learnt from."""
    settings = {"max_steps": 8, "rollout_buffer_size": 8}
    undisturbed = make("shared", **settings)
    undisturbed.train()
    first, resumed = stopped_and_resumed(
        partial(make, "shared", **settings), tmp_path, StopAt("item", 8)
    )
    assert any(first.buffers)
    assert_same(resumed, undisturbed)
    assert resumed.counters() == undisturbed.counters()


def test_twice(tmp_path):
    undisturbed = make("maac")
    undisturbed.train()
    for place, number in (("item", 2), ("score", 2)):
        again = make("maac", logdir=tmp_path, resume="auto", callbacks=[StopAt(place, number)])
        with pytest.raises(SystemExit):
            again.train()
    last = make("maac", logdir=tmp_path, resume="auto")
    last.train()
    assert_same(last, undisturbed)


def test_a_collection_that_was_broken_off_is_played_again(tmp_path):
    """The signal comes while rewards are computed: the samples of that moment are not kept."""
    calls = []

    def scored(first, second):
        calls.append(first)
        if len(calls) == 7:
            StopAt("here", 1)._at("here")
        return reward(first, second)

    undisturbed = make("maac")
    undisturbed.train()
    _, resumed = stopped_and_resumed(
        partial(make, "maac", reward_func=scored), tmp_path, Callback()
    )
    assert_same(resumed, undisturbed)


class TestData:
    def seen(self, dataset: Any, stop: Callback, folder: Any, **changes: Any) -> list[str]:
        """The prompts of both parts of a training that is stopped."""
        got: list[str] = []

        def scored(first, second, prompts):
            got.extend(prompts[0])
            return reward(first, second)

        settings = {"num_turns": 1, "rollout_buffer_size": 2, "reward_func": scored, **changes}
        stopped_and_resumed(
            partial(make_trainer, "shared", train_dataset=dataset, **settings), folder, stop
        )
        return got

    def test_rows_are_neither_repeated_nor_skipped(self, tmp_path):
        """C66: the order of seed 0 is [2, 5, 3, 0, 1, 4], then [3, 0, 5, 4, 2, 1]."""
        dataset = [{"prompt": f"go {k}"} for k in range(6)]
        got = self.seen(
            dataset, StopAt("item", 4), tmp_path, shuffle=True, num_train_epochs=2, seed=0
        )
        assert got == [f"go {k}" for k in (2, 5, 3, 0, 1, 4, 3, 0, 5, 4, 2, 1)]

    @pytest.mark.parametrize("stop", [3, 5, 6])
    def test_streams(self, tmp_path, stop):
        """C68."""

        class Stream:
            def __iter__(self):
                return iter([{"prompt": f"go {k}"} for k in range(5)])

        got = self.seen(
            Stream(), StopAt("item", stop), tmp_path, num_train_epochs=2, rollout_buffer_size=1
        )
        assert got == [f"go {k}" for k in range(5)] * 2

    def test_an_environment_without_rows(self, tmp_path):
        settings = {"num_turns": 4, "max_steps": 6, "env": LeaverEnv()}
        undisturbed = make_trainer("maac", **settings)
        undisturbed.train()
        _, resumed = stopped_and_resumed(
            partial(make_trainer, "maac", **settings), tmp_path, StopAt("item", 3)
        )
        assert_same(resumed, undisturbed)


class TestUsersState:
    """What users' code keeps, and random numbers that it draws, are part of a checkpoint."""

    def test_global_generators(self, tmp_path):
        def drawn(first, second):
            noise = random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002
            return [[noise, noise] for _ in first]

        def seeded():
            random.seed(1)
            np.random.seed(2)  # noqa: NPY002
            torch.manual_seed(3)

        seeded()
        undisturbed = make("maac", reward_func=drawn)
        undisturbed.train()
        seeded()
        _, resumed = stopped_and_resumed(
            partial(make, "maac", reward_func=drawn), tmp_path, StopAt("item", 5)
        )
        assert_same(resumed, undisturbed)

    def test_objects_with_a_state_of_their_own(self, tmp_path):
        class Growing:
            def __init__(self):
                self.calls = 0

            def __call__(self, first, second):
                self.calls += 1
                return [[float(self.calls)] * 2 for _ in first]

            def state_dict(self):
                return {"calls": self.calls}

            def load_state_dict(self, state):
                self.calls = state["calls"]

        undisturbed = make("maac", reward_func=Growing())
        undisturbed.train()

        def fresh(**changes):
            return make("maac", reward_func=Growing(), **changes)

        _, resumed = stopped_and_resumed(fresh, tmp_path, StopAt("item", 5))
        assert_same(resumed, undisturbed)

    def test_a_state_that_json_cannot_express_is_refused_at_once(self, tmp_path):
        class Odd(Callback):
            def state_dict(self):
                return {1, 2}

            def load_state_dict(self, state):
                pass

        trainer = make("maac", callbacks=[Odd()], logdir=tmp_path)
        with pytest.raises(TypeError, match="what JSON can express"):
            trainer.train()
        assert trainer.position == 0


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of checkpoints of a run that was stopped."""
    folder = tmp_path_factory.mktemp("stopped")
    trainer = make("maac", logdir=folder, callbacks=[StopAt("item", 3)])
    with pytest.raises(SystemExit):
        trainer.train()
    return folder / "checkpoints"


class TestWhatMayDiffer:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"seed": 5}, "seed was 0 and is 5"),
            ({"critic_type": "q"}, "critic_type was 'v' and is 'q'"),
            ({"train_dataset": rows(4)}, "dataset was '5 rows"),
            ({"train_dataset": [*rows(4), {"prompt": "other"}]}, "dataset was"),
            ({"shuffle": False}, "shuffle was True and is False"),
            ({"num_turns": 3}, "num_turns was 2 and is 3"),
        ],
    )
    def test_another_training_is_refused(self, stopped, changes, said, tmp_path):
        (place,) = stopped.iterdir()
        trainer = make("maac", resume=str(place), logdir=tmp_path / "new", **changes)
        with pytest.raises(ResumeError, match=said):
            trainer.train()
        assert trainer.position == 0

    def test_another_model_is_refused(self, stopped, tmp_path):
        (place,) = stopped.iterdir()
        trainer = make_trainer(
            "separate", train_dataset=rows(5), num_turns=2, shuffle=True, resume=str(place)
        )
        with pytest.raises(ResumeError, match="algorithm was 'MAACTrainer'"):
            trainer.train()

    def test_settings_are_taken_over_and_said(self, stopped, tmp_path):
        (place,) = stopped.iterdir()
        trainer = make(
            "maac", resume=str(place), num_train_epochs=3, agent_learning_rate=1e-3, discount=0.9
        )
        with pytest.warns(UserWarning, match="num_train_epochs was 2 and is 3") as caught:
            trainer.train()
        text = str(caught[0].message)
        assert "agent_learning_rate was 0.01 and is 0.001" in text
        assert trainer.position == 15

    def test_fewer_steps_than_were_made_end_the_run(self, stopped, tmp_path):
        (place,) = stopped.iterdir()
        trainer = make("maac", resume=str(place), max_steps=2, lr_scheduler_type="cosine")
        with pytest.warns(UserWarning, match="max_steps was None and is 2"):
            trainer.train()
        assert trainer.position == 4  # two items are played together

    def test_a_trained_model_is_no_reference(self, tmp_path):
        def begun(**changes):
            return make("maac", reference_kl_enabled=True, **changes)

        trainer = begun(logdir=tmp_path, callbacks=[StopAt("update", 1)])
        before = trainer.reference_store._weights()
        with pytest.raises(SystemExit):
            trainer.train()
        # Built from other models, as by a user who starts from what was trained last: the
        # references of the run are beside its checkpoints.
        again = begun(agents=[model(8), model(9)], logdir=tmp_path, resume="auto")
        assert again.reference_store._weights() != before
        again.train()
        assert again.reference_store._weights() == before
        assert again.position == 10

    def test_references_that_are_gone_are_an_error(self, tmp_path):
        trainer = make(
            "maac", reference_kl_enabled=True, logdir=tmp_path, callbacks=[StopAt("update", 1)]
        )
        with pytest.raises(SystemExit):
            trainer.train()
        (place,) = (tmp_path / "checkpoints").iterdir()
        moved = tmp_path.parent / "elsewhere" / place.name
        moved.parent.mkdir()
        place.rename(moved)
        again = make(
            "maac", agents=[model(8), model(9)], reference_kl_enabled=True, resume=str(moved)
        )
        with pytest.raises(ResumeError, match="build the trainer from the models"):
            again.train()


class TestSaving:
    def test_checkpoints_are_made_and_the_oldest_go(self, tmp_path):
        make("maac", logdir=tmp_path, save_steps=2, save_total_limit=3).train()
        steps = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert len(steps) == 3
        assert steps[-1] == "step_000000020"

    def test_no_checkpoint_without_need(self, tmp_path):
        make("maac", logdir=tmp_path).train()
        assert not (tmp_path / "checkpoints").exists()

    def test_a_finished_run_is_prolonged(self, tmp_path):
        make("maac", logdir=tmp_path, save_steps=2, max_steps=7).train()
        longer = make("maac", logdir=tmp_path, resume="auto", max_steps=10)
        with pytest.warns(UserWarning, match="max_steps was 7 and is 10"):
            longer.train()
        undisturbed = make("maac", max_steps=10)
        undisturbed.train()
        assert_same(longer, undisturbed)

    def test_saving_changes_nothing(self, tmp_path):
        often = make("maac", logdir=tmp_path, save_steps=1)
        often.train()
        never = make("maac")
        never.train()
        assert_same(often, never)

    def test_an_error_of_the_users_leaves_a_checkpoint(self, tmp_path):
        def failing(first, second):
            if failing.on:
                failing.left -= 1
                if failing.left == 0:
                    raise KeyError("their own")
            return reward(first, second)

        failing.on, failing.left = True, 6
        trainer = make("maac", reward_func=failing, logdir=tmp_path)
        with pytest.raises(KeyError, match="their own") as caught:
            trainer.train()
        assert any("checkpoints" in note for note in caught.value.__notes__)
        failing.on = False
        mended = make("maac", reward_func=failing, logdir=tmp_path, resume="auto")
        mended.train()
        undisturbed = make("maac")
        undisturbed.train()
        assert_same(mended, undisturbed)

    def test_an_evaluation_whose_hook_fails_is_not_logged_again(self, tmp_path):
        class Late(Callback):
            def on_evaluation(self, trainer, metrics):
                if trainer.position == 4:
                    raise LookupError("no such table")

        settings = {"eval_interval": 4}
        with pytest.raises(LookupError) as caught:
            make("maac", logdir=tmp_path / "run", callbacks=[Late()], **settings).train()
        assert any("checkpoints" in note for note in caught.value.__notes__)
        mended = make("maac", logdir=tmp_path / "run", resume="auto", **settings)
        mended.train()
        undisturbed = make("maac", logdir=tmp_path / "undisturbed", **settings)
        undisturbed.train()
        assert_same(mended, undisturbed)
        assert figures(tmp_path / "run") == figures(tmp_path / "undisturbed")

    def test_weights_that_are_not_finite_are_no_checkpoint(self, tmp_path):
        class Broken(Callback):
            def on_update(self, trainer):
                if trainer.updates == 2:
                    trainer.agents[1].model.transformer.wte.weight.data.fill_(float("nan"))

        with pytest.raises(FloatingPointError, match="nothing can be sampled") as caught:
            make(
                "maac", logdir=tmp_path, save_steps=1, callbacks=[Broken()], save_total_limit=9
            ).train()
        notes = " ".join(caught.value.__notes__)
        assert "not finite" in notes
        assert f"an earlier one in {tmp_path}" in notes
        make("maac", logdir=tmp_path, resume="auto").train()

    def test_the_working_directory_may_change(self, tmp_path, monkeypatch):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()

        class Moving(Callback):
            def on_item(self, trainer, samples):
                monkeypatch.chdir(elsewhere)

        monkeypatch.chdir(tmp_path)
        make("maac", logdir="a run", save_steps=4, callbacks=[Moving()]).train()
        assert not list(elsewhere.iterdir())
        assert len((tmp_path / "a run/transcripts.jsonl").read_text().splitlines()) == 40
        assert len(list((tmp_path / "a run/checkpoints").iterdir())) == 2

    def test_the_best_evaluation_is_kept(self, tmp_path):
        values = iter([1.0, 5.0, 3.0, 4.0])

        class Remember(Callback):
            def __init__(self):
                self.weights = []

            def on_evaluation(self, trainer, metrics):
                self.weights.append(trainer.agents[0].model.transformer.wte.weight.clone())

        def scored(first, second, batch_items):
            if "graded" in batch_items[0]:
                return [next(values)] * len(first)
            return reward(first, second)

        remember = Remember()
        trainer = make(
            "maac",
            num_turns=1,
            reward_func=scored,
            eval_dataset=[{"prompt": "go", "graded": True}],
            eval_interval=4,
            save_best=True,
            callbacks=[remember],
            logdir=tmp_path,
        )
        trainer.train()
        assert trainer.best_evaluation == {"value": 5.0, "step": 4.0}
        other = make("maac")
        other.load_model(tmp_path / "best")
        assert torch.equal(other.agents[0].model.transformer.wte.weight, remember.weights[1])

    def test_weights_that_are_not_finite_take_no_good_checkpoint_s_place(self, tmp_path):
        class Spoil(Callback):
            def on_update(self, trainer):
                if trainer.updates == 2:
                    next(trainer.critics[0].value_head.parameters()).data.fill_(math.nan)

        def spoilt(**changes):
            keeping = {"save_steps": 1, "save_total_limit": 1, "max_steps": 6}
            return make("maac", logdir=tmp_path, **keeping, **changes)

        with pytest.warns(UserWarning, match="critic_0, value_head: .* not finite"):
            spoilt(callbacks=[Spoil()], max_bad_steps=100).train()
        again = spoilt(resume="auto")
        again.train()
        undisturbed = make("maac", max_steps=6)
        undisturbed.train()
        assert_same(again, undisturbed)


class TestAsked:
    def test_auto_needs_a_folder(self):
        with pytest.raises(ValueError, match=r"resume \('auto'\) needs a logdir"):
            make("maac", resume="auto")

    def test_auto_begins_where_there_is_nothing(self, tmp_path):
        trainer = make("maac", resume="auto", logdir=tmp_path)
        trainer.train()
        assert trainer.position == 10

    def test_a_folder_that_is_no_checkpoint(self, tmp_path):
        with pytest.raises(CheckpointError):
            make("maac", resume=str(tmp_path)).train()

    def test_a_folder_of_a_run(self, tmp_path):
        first = make("maac", logdir=tmp_path, callbacks=[StopAt("item", 3)])
        with pytest.raises(SystemExit):
            first.train()
        branch = make("maac", resume=str(tmp_path), logdir=tmp_path / "branch")
        branch.train()
        undisturbed = make("maac")
        undisturbed.train()
        assert_same(branch, undisturbed)
