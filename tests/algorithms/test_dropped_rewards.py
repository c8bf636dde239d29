"""Learners whose reward function misbehaves: what is dropped, and what an error leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from marlogue.algorithms import MAACConfig
from marlogue.envs import TextEnv, TooManyDroppedError
from tests.algorithms.test_waiting import TakesTurnsEnv
from tests.support.team import KINDS, again, make_trainer, reward, rows, weights

PARTLY = pytest.mark.filterwarnings("ignore:reward_func .* failed, and what it was to score")


def is_bad(prompts):
    """One row of four, in its first turn."""
    return prompts[0][0] == "go y a"


def abstains(first, second, prompts):
    return [None] * len(first) if is_bad(prompts) else reward(first, second)


def fails(first, second, prompts):
    if is_bad(prompts):
        raise LookupError("no judge")
    return reward(first, second)


def is_not_a_number(first, second, prompts):
    return [[0.0, float("nan")]] * len(first) if is_bad(prompts) else reward(first, second)


async def fails_later(first, second, prompts):
    await asyncio.sleep(0)
    return fails(first, second, prompts)


def transcripts(logdir: Path, name: str = "transcripts.jsonl"):
    return [json.loads(line) for line in (logdir / name).read_text().splitlines()]


def figures(logdir: Path):
    return [json.loads(line) for line in (logdir / "progress.json").read_text().splitlines()]


def total(logdir: Path, name: str) -> float:
    return sum(row.get(name, 0.0) for row in figures(logdir))


def trained(kind, func, logdir, **settings):
    trainer = make_trainer(kind, reward_func=func, logdir=logdir, **settings)
    trainer.train()
    return trainer


@PARTLY
@pytest.mark.parametrize("num_turns", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_sample_goes_the_way_of_one_that_was_abstained_from(kind, num_turns, tmp_path):
    settings = {"num_turns": num_turns, "num_generations": 3 - num_turns, "num_train_epochs": 2}
    expected = weights(trained(kind, abstains, tmp_path / "abstained", **settings))
    begun = weights(make_trainer(kind))
    assert any(not torch.equal(expected[name], begun[name]) for name in expected)
    dropping = {"on_reward_error": "drop", "max_dropped_share": 1.0, **settings}
    for func in (fails, is_not_a_number, fails_later):
        logdir = tmp_path / func.__name__
        found = weights(trained(kind, func, logdir, **dropping))
        assert all(torch.equal(found[name], expected[name]) for name in expected), func
        for team in ("team/turn_1", "agent_1/turn_1"):
            share = 2 if team.startswith("team") else 1
            assert total(logdir, f"{team}/dropped") == 2 * (3 - num_turns) * share
            assert total(logdir, f"{team}/abstained") == 0
        assert total(tmp_path / "abstained", "team/turn_1/dropped") == 0
        assert total(tmp_path / "abstained", "team/turn_1/abstained") == 4 * (3 - num_turns)
        bad = [line for line in transcripts(logdir) if "reward_error" in line]
        assert len(bad) == 4 * (3 - num_turns)
        assert all(line["reward"] is None and line["turn"] == 0 for line in bad)
        assert all("Traceback" in line["reward_error"] for line in bad)
        assert len(transcripts(logdir)) == 32


@PARTLY
def test_workers_that_die_cost_their_samples_and_are_gone_after_the_run(tmp_path):

    def abstains(first, second, prompts):
        return [
            None if prompts[0][0] == "go y a" else len(a + b)
            for a, b in zip(first, second, strict=True)
        ]

    def dies(first, second, prompts):  # in here, or its process would import this module's torch
        if prompts[0][0] == "go y a":
            os._exit(3)
        return [len(a + b) for a, b in zip(first, second, strict=True)]

    settings = {"num_generations": 2}
    expected = weights(trained("maac", abstains, tmp_path / "abstained", **settings))
    found = weights(
        trained(
            "maac", dies, tmp_path / "dies", reward_backend="process", reward_workers=2,
            on_reward_error="drop", **settings,
        )
    )  # fmt: skip
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    said = [line.get("reward_error", "") for line in transcripts(tmp_path / "dies")]
    assert sum("ended with exit code 3" in text for text in said) == 4
    children = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "-f", "reward_worker"], capture_output=True, text=True
    )
    assert not children.stdout
    assert not [t for t in threading.enumerate() if t.name.startswith("marlogue")]


def test_async_rewards_and_transitions_train_as_plain_ones_do():
    async def later(first, second):
        await asyncio.sleep(0.001 * len(first[0]))
        return reward(first, second)

    async def next_prompts(prompt_history_per_agent, agent_completions):
        await asyncio.sleep(0.001 * len(agent_completions[0]))
        return again(prompt_history_per_agent, agent_completions)

    plain = make_trainer("maac", num_turns=2)
    awaited = make_trainer("maac", num_turns=2, reward_func=later, external_transition=next_prompts)
    plain.train()
    awaited.train()
    expected = weights(plain)
    assert all(torch.equal(found, expected[name]) for name, found in weights(awaited).items())
    assert not [t for t in threading.enumerate() if t.name.startswith("marlogue")]


@PARTLY
def test_too_many_drops_stop_the_run_and_say_why(tmp_path):
    trainer = make_trainer(
        "maac", reward_func=fails, logdir=tmp_path, on_reward_error="drop", max_dropped_share=0.01,
    )  # fmt: skip
    with pytest.raises(TooManyDroppedError) as caught:
        trainer.train()
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "LookupError: no judge" in text
    assert "in fails" in text
    assert "max_dropped_share (0.01)" in text


@PARTLY
def test_counts_of_drops_are_part_of_a_checkpoint(tmp_path):
    first = trained("maac", fails, tmp_path / "run", on_reward_error="drop")
    first.save_state(tmp_path / "state")
    second = make_trainer("maac", reward_func=fails, on_reward_error="drop")
    second.load_state(tmp_path / "state")
    counts = [t.environments.train.task.reward.drops.state_dict() for t in (first, second)]
    assert counts[0] == counts[1]
    assert counts[0]["calls"] == 4
    assert counts[0]["joint_actions"] == 1


def test_what_was_said_before_an_error_is_on_disk(tmp_path):
    """Also the turns of episodes that the error cut off, those that were scored and those not."""

    def func(first, second, prompts):
        if "again" in prompts[0][0] and prompts[0][0].startswith("go z b"):
            raise LookupError("no judge")
        return reward(first, second)

    trainer = make_trainer(
        "maac", reward_func=func, num_turns=2, logdir=tmp_path, train_dataset=rows(7)
    )  # two items fill the buffers; the fifth and sixth are played together
    with pytest.raises(LookupError) as caught:
        trainer.train()
    notes = "\n".join(caught.value.__notes__)
    assert "row 5, turn 1" in notes
    assert f"what was said in this training is in {tmp_path / 'unfinished.jsonl'}" in notes
    assert {line["item"] for line in transcripts(tmp_path)} == {0, 1, 2, 3}
    said = transcripts(tmp_path, "unfinished.jsonl")
    assert [(line["item"], line["turn"], line["agent"]) for line in said] == [
        (item, turn, f"agent_{agent}") for item in (4, 5) for turn in (0, 1) for agent in (0, 1)
    ]
    assert [line["reward"] is None for line in said] == 2 * [False, False, True, True]
    assert all(line["completion"] for line in said)


def test_an_error_in_an_evaluation_leaves_its_transcript(tmp_path):
    trainer = make_trainer(
        "maac", reward_func=fails, train_dataset=rows(1), eval_dataset=rows(4), eval_interval=1,
        eval_num_samples=4, eval_batch_size=4, logdir=tmp_path,
    )  # fmt: skip
    with pytest.raises(LookupError) as caught:
        trainer.train()
    assert any("what was said in this evaluation" in note for note in caught.value.__notes__)
    assert len(transcripts(tmp_path, "unfinished.jsonl")) == 8


def test_the_fields_reach_the_environments():
    settings = {
        "reward_timeout": 5.0, "reward_workers": 2, "reward_backend": "process",
        "on_reward_error": "drop", "max_dropped_share": 0.5,
    }  # fmt: skip
    trainer = make_trainer("maac", eval_dataset=rows(2), **settings)
    for env in (trainer.environments.train, trainer.environments.eval):
        made = env.task.reward.settings
        assert (made.timeout, made.workers, made.backend) == (5.0, 2, "process")
        assert (made.on_error, made.max_dropped_share) == ("drop", 0.5)


def test_with_an_environment_the_fields_are_those_of_the_environment():
    env = TextEnv(rows(2), reward, on_reward_error="drop", reward_timeout=3.0)
    trainer = make_trainer("maac", env=env)
    assert trainer.args.on_reward_error == "drop"
    assert trainer.args.reward_timeout == 3.0
    with pytest.raises(ValueError, match=r"reward_timeout \(2.0\) must be the environment's"):
        make_trainer("maac", env=env, reward_timeout=2.0)
    with pytest.raises(ValueError, match=r"on_reward_error \('drop'\) has no effect on this env"):
        make_trainer("maac", env=TakesTurnsEnv(), max_steps=1, num_turns=4, on_reward_error="drop")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward_timeout", 0.0), ("reward_workers", -1), ("reward_backend", "fork"),
        ("on_reward_error", "skip"), ("max_dropped_share", 2.0),
    ],
)  # fmt: skip
def test_bad_fields_are_refused(name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name} ({value!r}) must")):
        MAACConfig(**{name: value})


def test_a_reward_that_exits_does_not_end_the_training_in_silence():
    def func(first, second):
        sys.exit(0)

    with pytest.raises(RuntimeError, match="tried to end the process"):
        make_trainer("maac", reward_func=func).train()
