"""Guidance for the learners of language models: what it is shown, and what becomes of it."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
import torch

from marlogue.agents import tiny_model
from marlogue.algorithms import Anneal, MAACConfig, MAACTrainer
from marlogue.envs import TextEnv, coordination_v0
from tests.algorithms.test_waiting import TakesTurnsEnv
from tests.support.team import KINDS, Recorder, again, make_trainer, reward, rows

AGENTS = ["agent_0", "agent_1"]


def by_length(state, actions, infos):
    return {agent: len(text) + 0.1 * infos[agent]["turn"] for agent, text in actions.items()}


def scaled(numbers):
    numbers = np.array(numbers)
    return (numbers - numbers.mean()) / numbers.std()


@pytest.mark.parametrize("kind", KINDS)
def test_advantages_are_mixed_by_the_weight_of_the_progress(kind, tmp_path):
    recorder = Recorder()
    trainer = make_trainer(
        kind, guidance=by_length, callbacks=[recorder], num_turns=2, rollout_buffer_size=8,
        train_dataset=rows(16), guidance_weight=Anneal(0.8, 0.2), logdir=tmp_path,
    )  # fmt: skip
    trainer.train()
    assert len(recorder.updates) == 4
    for number, samples in enumerate(recorder.updates):
        weight = 0.8 - 0.6 * number * 4 / 16
        for agent in range(2):
            for turn in range(2):
                group = [s for s in samples if (s.agent_idx, s.turn_idx) == (agent, turn)]
                assert [s.guidance for s in group] == [
                    len(s.completion) + 0.1 * turn for s in group
                ]
                learned = scaled([s.target - s.value for s in group])
                told = scaled([s.guidance for s in group])
                mixed = (1 - weight) * learned + weight * told
                assert [s.advantage for s in group] == pytest.approx(mixed, abs=1e-5)
    with (tmp_path / "progress.csv").open() as file:
        table = list(csv.DictReader(file))
    shown = [float(row["train/guidance_weight"]) for row in table if row["train/guidance_weight"]]
    assert shown == pytest.approx([0.8, 0.65, 0.5, 0.35])
    group = [s for s in recorder.updates[0] if (s.agent_idx, s.turn_idx) == (1, 0)]
    cosine = np.mean(
        scaled([s.target - s.value for s in group]) * scaled([s.guidance for s in group])
    )
    assert float(table[0]["agent_1/turn_1/guidance_cosine"]) == pytest.approx(cosine, abs=1e-4)


def test_what_it_is_shown():
    calls = []

    def guidance(state, actions, infos):
        calls.append((state, actions, infos))
        return [0.0, 1.0]

    recorder = Recorder()
    make_trainer(
        "maac", guidance=guidance, callbacks=[recorder], num_turns=2, train_dataset=rows(2),
        num_train_epochs=1,
    ).train()  # fmt: skip
    samples = [s for item in recorder.items for s in item]
    joints = {(s.item_idx, s.turn_idx): s.joint for s in samples}
    assert len(calls) == 4
    for state, actions, infos in calls:
        joint = joints[infos["agent_0"]["row"], infos["agent_0"]["turn"]]
        assert state == dict(zip(AGENTS, joint.prompts, strict=True))
        assert actions == dict(zip(AGENTS, joint.completions, strict=True))
    assert {s.guidance for s in samples if s.agent_idx == 1} == {1.0}


def test_without_it_nothing_changes():
    def trained(**changes):
        trainer = make_trainer("maac", **changes)
        trainer.train()
        return trainer.agents[0].model.transformer.wte.weight

    plain = trained()
    assert torch.equal(plain, trained(guidance=by_length, guidance_weight=0))
    assert not torch.equal(plain, trained(guidance=by_length, guidance_weight=0.5))


class TestTheEnvironmentsOwn:
    def test_of_a_text_environment(self):
        class Guided(TextEnv):
            def guidance(self, state, actions, infos):
                return {agent: float(len(state[agent])) for agent in actions}

        recorder = Recorder()
        env = Guided(rows(4), reward_func=reward, external_transition=again, num_agents=2)
        make_trainer("maac", env=env, guidance=True, callbacks=[recorder]).train()
        samples = [s for item in recorder.items for s in item]
        assert all(s.guidance == len(s.prompt) for s in samples)

    def test_of_a_copy_with_a_state(self):
        """Every episode is guided by the copy that plays it; who waits needs no advantage."""

        class Guided(TakesTurnsEnv):
            def state(self):
                return self.turn

            def guidance(self, state, actions, infos):
                assert state == self.turn
                return {f"agent_{self.turn % 2}": 10.0 + self.turn}

        recorder = Recorder()
        make_trainer(
            "maac", env=Guided(), guidance=True, callbacks=[recorder], max_steps=3, num_turns=4
        ).train()
        samples = [s for item in recorder.items for s in item]
        assert len(samples) == 12
        assert all(s.guidance == 10.0 + s.turn_idx for s in samples)

    def test_where_there_is_none(self):
        with pytest.raises(ValueError, match=r"guidance \(True\) must be found"):
            make_trainer("maac", guidance=True)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ([1.0, math.nan], r"gave nan \(agent_1, row 0, turn 0\); advantages must be finite"),
            ({"agent_0": "good", "agent_1": 1}, r"gave 'good' \(agent_0, row 0, turn 0\)"),
            ([1.0], r"gave 1 advantage\(s\) \(row 0, turn 0\), which must be one for each of"),
            (3.0, r"gave 1 advantage\(s\)"),
            ({"agent_0": 1.0}, r"gave nothing for agent_1 \(row 0, turn 0\)"),
            ({"agent_0": 1.0, "bob": 1.0}, r"gave an advantage for 'bob' \(row 0, turn 0\)"),
        ],
    )
    def test_what_it_gives(self, given, message):
        trainer = make_trainer("maac", guidance=lambda state, actions, infos: given)
        with pytest.raises(ValueError, match=message):
            trainer.train()

    def test_an_exception_keeps_its_traceback_and_says_where(self):
        def guidance(state, actions, infos):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine") as caught:
            make_trainer("separate", guidance=guidance).train()
        assert "guidance" in [entry.name for entry in caught.traceback]
        assert any("row 0, turn 0" in note for note in caught.value.__notes__)

    def test_what_cannot_be_called(self):
        with pytest.raises(TypeError, match=r"guidance \(3\) must be callable"):
            make_trainer("maac", guidance=3)

    def test_a_run_of_unknown_length(self):
        def stream():
            yield from rows(4)

        class Rows:
            def __iter__(self):
                return stream()

        with pytest.raises(ValueError, match=r"guidance_weight .* set max_steps, or a number"):
            make_trainer("maac", train_dataset=Rows(), guidance=by_length)
        make_trainer("maac", train_dataset=Rows(), guidance=by_length, guidance_weight=0.5).train()


def test_it_teaches_what_the_reward_does_not():
    """Without a reward, guidance alone leads to the right answers."""

    def right(state, actions, infos):
        answer = infos["agent_0"]["item"]["answer"]
        return [float(coordination_v0.first_word(text) == answer) for text in actions.values()]

    models = [tiny_model(coordination_v0.VOCABULARY, seed=k) for k in range(3)]
    env = coordination_v0.parallel_env(
        dataset=coordination_v0.dataset() * 16, reward_func=lambda *texts: [0.0] * len(texts[0])
    )
    trainer = MAACTrainer(
        agents=[models[0][0], models[1][0]], tokenizer=models[0][1], critic_model=models[2][0],
        env=env, eval_env=coordination_v0.parallel_env(), guidance=right,
        args=MAACConfig(
            guidance_weight=0.9, num_train_epochs=30, rollout_buffer_size=64, max_new_tokens=1,
            agent_learning_rate=4e-3, critic_learning_rate=4e-3, eval_interval=0,
            eval_temperature=0, eval_batch_size=4, verbose=False,
        ),
    )  # fmt: skip
    trainer.train()
    assert trainer.evaluate()["eval/team/turn_1/reward_mean"] >= 0.9
