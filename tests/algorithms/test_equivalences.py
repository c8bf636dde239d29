"""Ways of doing the same thing that must come to the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from marlogue.agents import tiny_model
from marlogue.algorithms import Callback, Sample
from marlogue.algorithms.judges import CriticJudge, Values
from marlogue.algorithms.on_policy import OnPolicyTrainer
from tests.support.team import (
    KINDS,
    VOCABULARY,
    Recorder,
    make_trainer,
    model,
    reward_of,
    rows,
    weights,
)

BOTH = pytest.mark.parametrize("critic_type", ["v", "q"])


def run(kind: str, **settings):
    """Train; returns what was seen, and the weights."""
    seen = Recorder()
    trainer = make_trainer(kind, callbacks=[seen], **settings)
    trainer.train()
    return seen, weights(trainer)


def fields(sample: Sample):
    return (
        *(sample.item_idx, sample.generation_idx, sample.turn_idx, sample.agent_idx),
        *(sample.joint.prompts, sample.joint.completions),
        *(sample.prompt_ids, sample.completion_ids, sample.action.truncated),
        *(sample.reward, sample.abstained, sample.return_),
    )


def assert_same_samples(one: Recorder, other: Recorder) -> None:
    """The same samples, item by item and update by update, in the same order."""
    for ours, theirs in ((one.items, other.items), (one.updates, other.updates)):
        assert [[fields(s) for s in part] for part in ours] == [
            [fields(s) for s in part] for part in theirs
        ]


def assert_equal(one, other) -> None:
    """Weights that agree bit for bit."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert different == []


def assert_close(one, other, atol: float = 2e-5) -> None:
    """Weights that agree to float precision; the bias of the keys is left out, which attention
    ignores and which moves by rounding errors alone."""
    assert one.keys() == other.keys()
    for name in one:
        keep = slice(None)
        if name.endswith("attn.c_attn.bias"):
            width = len(one[name]) // 3
            keep = torch.cat([torch.arange(width), torch.arange(2 * width, 3 * width)])
        torch.testing.assert_close(one[name][keep], other[name][keep], atol=atol, rtol=0)


def assert_moved(before, after, *parts: str) -> None:
    for part in parts:
        assert any(
            not torch.equal(before[name], after[name]) for name in after if name.startswith(part)
        ), f"{part} has not learnt anything"


class TestCollection:
    """Everything that fills the buffers is played together; nothing may show it."""

    @staticmethod
    def one_item_at_a_time(monkeypatch):
        monkeypatch.setattr(OnPolicyTrainer, "_items_until_update", lambda self: 1)

    @pytest.mark.parametrize(
        "settings",
        [
            # 7 items of 1 sample: buffers of 3 are full after items 2 and 5, and 1 is left over
            {"rollout_buffer_size": 3, "train_dataset": rows(7)},
            # 3 samples an item, buffers of 4: overfull with 6
            {"rollout_buffer_size": 4, "num_generations": 3, "train_dataset": rows(5)},
            {"rollout_buffer_size": 5, "num_turns": 2, "train_dataset": rows(6)},
            {"rollout_buffer_size": 64, "num_turns": 2, "num_train_epochs": 2},
            {"rollout_buffer_size": 4, "max_steps": 6, "num_turns": 2, "shuffle": True},
            {
                "rollout_buffer_size": 5,
                "num_turns": 3,
                "early_termination_threshold": 0.4,
                "train_dataset": rows(8),
                "num_train_epochs": 2,
            },
        ],
        ids=["one turn", "generations", "turns", "epochs", "steps", "early end"],
    )
    @pytest.mark.parametrize("kind", ["maac", "separate"])
    def test_together_or_item_by_item(self, kind, settings, monkeypatch):
        together, learnt = run(kind, **settings)
        self.one_item_at_a_time(monkeypatch)
        alone, learnt_alone = run(kind, **settings, generation_batch_size=1)
        assert_same_samples(together, alone)
        assert_close(learnt, learnt_alone)
        assert len(together.updates) > 1

    def test_episodes_of_the_early_end_differ_in_length(self):
        """Or the case above would show little."""
        seen, _ = run(
            "maac",
            num_turns=3,
            early_termination_threshold=0.4,
            train_dataset=rows(8),
            rollout_buffer_size=5,
        )
        turns = {max(s.turn_idx for s in samples) for samples in seen.items}
        assert len(turns) > 1

    @pytest.mark.parametrize("threshold", [None, 0.4])
    def test_buffers_are_flushed_as_soon_as_they_are_full(self, threshold):
        seen, _ = run(
            "separate",
            num_turns=2,
            early_termination_threshold=threshold,
            train_dataset=rows(7),
            rollout_buffer_size=5,
            num_train_epochs=2,
        )
        wanted: list[list[int]] = []  # items of each update, by the rule of the issue
        for epoch in range(2):
            held: list[int] = []
            count = 0
            for item in range(7 * epoch, 7 * epoch + 7):
                held.append(item)
                count += sum(s.agent_idx == 0 for s in seen.items[item])
                if count >= 5:
                    wanted.append(held)
                    held, count = [], 0
            if held:
                wanted.append(held)
        got = [sorted({s.item_idx for s in samples}) for samples in seen.updates]
        assert got == wanted

    @BOTH
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("size", [1])
    def test_generation_batch_size_changes_nothing(self, kind, critic_type, size):
        settings = {"num_generations": 3, "critic_type": critic_type, "rollout_buffer_size": 6}
        one, learnt = run(kind, **settings)
        other, learnt_too = run(kind, **settings, generation_batch_size=size)
        assert_same_samples(one, other)
        assert_close(learnt, learnt_too)


class TestTurns:
    @BOTH
    @pytest.mark.parametrize("kind", KINDS)
    def test_one_turn_is_the_first_of_several(self, kind, critic_type):
        """An episode that could go on but ends after its first turn learns as a single-turn one."""
        settings = {"critic_type": critic_type, "train_dataset": rows(6)}
        single, learnt = run(kind, num_turns=1, **settings)
        several, learnt_too = run(kind, num_turns=3, early_termination_threshold=-1e9, **settings)
        assert_same_samples(single, several)
        assert_close(learnt, learnt_too)

    def test_without_a_transition_one_turn_is_enough(self):
        single, learnt = run("maac", num_turns=1)
        bare, learnt_too = run("maac", external_transition=None)
        assert_same_samples(single, bare)
        assert_equal(learnt, learnt_too)


class TestMicroBatches:
    @BOTH
    @pytest.mark.parametrize("kind", KINDS)
    def test_their_size_changes_nothing(self, kind, critic_type):
        settings = {
            "critic_type": critic_type,
            "num_generations": 4,
            "rollout_buffer_size": 8,
            "train_batch_size": 5,
            "reference_kl_enabled": True,
            "discount": 0.9,
        }
        seen, learnt = run(kind, **settings)
        for size in (1, 2):
            other, learnt_too = run(kind, **settings, micro_batch_size=size)
            assert_close(learnt, learnt_too)
            for one, two in zip(seen.updates[0], other.updates[0], strict=True):
                assert one.value == pytest.approx(two.value, abs=1e-6)
                assert one.reference_kl == pytest.approx(two.reference_kl, abs=1e-6)

    @pytest.mark.parametrize("kind", KINDS)
    def test_over_two_turns(self, kind):
        settings = {"num_turns": 2, "rollout_buffer_size": 8, "discount": 0.9}
        _, learnt = run(kind, **settings)
        _, learnt_too = run(kind, **settings, micro_batch_size=1)
        assert_close(learnt, learnt_too)

    def test_checkpointing_changes_nothing(self):
        _, learnt = run("maac", num_turns=2)
        _, learnt_too = run("maac", num_turns=2, gradient_checkpointing=True)
        assert_close(learnt, learnt_too)


class TestGenerationsShareTheCritic:
    def test_one_pass_per_prompt_with_the_gradient_of_one_pass_each(self, monkeypatch):
        """G answers to a prompt give the V critic one history: read once, counted G times."""
        trainer = make_trainer("maac", num_generations=4, rollout_buffer_size=8)
        read: list[int] = []
        forward = type(trainer.critics[0]).values

        def counted(self, histories):
            read.append(len(histories))
            return forward(self, histories)

        monkeypatch.setattr(type(trainer.critics[0]), "values", counted)
        trainer.train()
        # 4 rows, buffers of 2 rows each, 2 agents: 2 updates x 2 agents x 2 prompts
        assert sum(read) == 8

        seen: dict[str, torch.Tensor] = {}

        def gradient(judge: CriticJudge, samples, targets):
            judge.critic.model.zero_grad()
            seen.clear()
            hooks = [
                p.register_post_accumulate_grad_hook(
                    lambda p, n=name: seen.__setitem__(n, p.grad.clone())
                )
                for name, p in judge.critic.model.named_parameters()
            ]
            judge.step(samples, targets)
            for hook in hooks:
                hook.remove()
            return dict(seen)

        collected = Recorder()
        other = make_trainer("maac", num_generations=4, callbacks=[collected])
        other.train()
        samples = [s for s in collected.updates[0] if s.agent_idx == 0]
        targets = [float(k) for k in range(len(samples))]

        def fresh_judge():
            return make_trainer("maac").critic_side.judges[0]

        shared = gradient(fresh_judge(), samples, targets)
        plain = fresh_judge()
        critic = plain.critic
        for sample, target in zip(samples, targets, strict=True):
            (value,) = critic.values([plain.values.history(sample)])
            (0.6 * (target - value) ** 2 / len(samples)).backward()
        grads = {n: p.grad for n, p in critic.model.named_parameters() if p.grad is not None}
        assert grads.keys() == shared.keys()
        for name, grad in grads.items():
            torch.testing.assert_close(shared[name], grad, atol=1e-6, rtol=1e-5)

    def test_values_come_with_the_first_pass_or_before_it_alike(self, monkeypatch):
        settings = {"num_generations": 4, "rollout_buffer_size": 8}
        one, learnt = run("maac", **settings)
        monkeypatch.setattr(Values, "come_with", lambda self, minibatch: False)
        other, learnt_too = run("maac", **settings)
        assert_close(learnt, learnt_too)
        for ours, theirs in zip(one.items, other.items, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert a.value == pytest.approx(b.value, abs=1e-6)
                assert a.advantage == pytest.approx(b.advantage, abs=1e-4)


class TestSeeds:
    @pytest.mark.parametrize(
        "settings",
        [
            {"critic_type": "v", "num_generations": 3, "train_batch_size": 3},
            {"critic_type": "q", "num_turns": 2, "train_batch_size": 3},
        ],
        ids=["v", "q"],
    )
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_seed_reproduces_a_run_bit_for_bit(self, kind, settings):
        settings = {**settings, "shuffle": True, "num_train_epochs": 2, "seed": 7}
        torch.manual_seed(1)
        one, learnt = run(kind, **settings)
        torch.manual_seed(2)  # the global generator plays no part
        torch.rand(3)
        other, learnt_too = run(kind, **settings)
        assert_same_samples(one, other)
        assert_equal(learnt, learnt_too)

    def test_another_seed_is_another_run(self):
        one, learnt = run("maac", shuffle=True, train_dataset=rows(9))
        other, learnt_too = run("maac", shuffle=True, train_dataset=rows(9), seed=1)
        assert [s[0].prompt for s in one.items] != [s[0].prompt for s in other.items]
        assert not torch.equal(
            learnt["critic 0 head layers.0.weight"], learnt_too["critic 0 head layers.0.weight"]
        )

    def test_training_leaves_the_global_generators_alone(self):
        trainer = make_trainer(
            "maac", num_turns=2, shuffle=True, eval_interval=1, eval_dataset=rows(2)
        )

        def state():
            ours, legacy = torch.get_rng_state().tolist(), np.random.get_state()  # noqa: NPY002
            return ours, random.getstate(), legacy[1].tolist()

        before = state()
        trainer.train()
        assert state() == before

    def test_generations_turns_agents_and_items_draw_apart(self):
        """The same prompt, asked 6 times of each of two equal models, gets different answers."""
        seen, _ = run(
            "separate",
            agents=[model(1), model(1)],
            train_dataset=[{"prompt": "go"}] * 3,
            num_generations=2,
            rollout_buffer_size=64,
        )
        answers = [s.completion_ids for samples in seen.items for s in samples]
        assert len(set(answers)) > 9
        again = [s.completion_ids for s in seen.updates[0]]
        assert again == answers


class TestEvaluation:
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_changes_nothing(self, kind):
        """C64."""
        settings = {"num_turns": 2, "train_batch_size": 3, "train_dataset": rows(6)}
        one, never = run(kind, **settings)
        other, always = run(
            kind,
            **settings,
            eval_interval=1,
            eval_dataset=rows(3),
            eval_temperature=0,
            eval_batch_size=2,
        )
        assert other.events.count("evaluation") == 7
        assert_same_samples(one, other)
        assert_equal(never, always)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("kind", KINDS)
    def test_modes_are_given_back(self, kind, training):
        """Of every single module, after evaluation and after training."""
        trainer = make_trainer(kind, eval_dataset=rows(2), eval_interval=2, num_generations=2)
        parts = [agent.model for agent in trainer.agents] + [c.model for c in trainer.critics]
        for part in parts:
            part.train(training)
            part.transformer.h[0].mlp.train(not training)
        before = [m.training for part in parts for m in part.modules()]
        trainer.evaluate()
        assert [m.training for part in parts for m in part.modules()] == before
        trainer.train()
        assert [m.training for part in parts for m in part.modules()] == before

    def test_dropout_has_no_part_in_it(self):
        """C36: what is scored is what was sampled, and the first KL is exactly 0."""
        agents = [tiny_model(VOCABULARY, seed=k, dropout=0.5)[0] for k in (1, 2)]
        seen = Recorder()
        trainer = make_trainer("maac", agents=agents, reference_kl_enabled=True, callbacks=[seen])
        for part in agents:
            part.train()
        trainer.train()
        assert [s.reference_kl for s in seen.updates[0]] == [0.0] * 8
        assert all(module.training for part in agents for module in part.modules())


class TestRewards:
    def test_samples_hold_the_processed_reward_of_what_was_said(self):
        seen, _ = run("maac", num_turns=2, reward_processor=lambda r: 2 * r + 1)
        for samples in seen.items:
            for s in samples:
                raw = reward_of(*s.joint.completions)[s.agent_idx]
                assert s.reward == pytest.approx(2 * raw + 1)

    def test_order_within_an_item(self):
        seen, _ = run("maac", num_generations=2)
        keys = [(s.generation_idx, s.turn_idx, s.agent_idx) for s in seen.items[0]]
        assert keys == sorted(keys)
        assert len(keys) == 4

    def test_hooks_come_in_order(self):
        seen = Recorder()
        make_trainer("maac", callbacks=[Callback(), seen], rollout_buffer_size=2).train()
        assert seen.events == ["start", "item", "item", "update", "item", "item", "update", "end"]
