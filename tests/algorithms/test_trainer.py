"""The order of updates, abstention, references, critics, failures, schedules and evaluation."""

from __future__ import annotations

import traceback
from copy import deepcopy

import pytest
import torch

from marlogue.agents import Critic, LLMPolicy, tiny_model
from marlogue.algorithms import Callback
from marlogue.algorithms.actor import Actor
from marlogue.algorithms.judges import CriticJudge
from marlogue.algorithms.optimizer import Optimizer
from tests.support.cf import cf_model
from tests.support.team import (
    KINDS,
    VOCABULARY,
    Recorder,
    make_trainer,
    model,
    rows,
    tokenizer,
    weights,
)


def steps_taken(trainer, monkeypatch) -> list[tuple[str, int]]:
    """Train; every optimiser step as (whose, how many samples)."""
    taken: list[tuple[str, int]] = []
    names = {id(actor): f"actor {k}" for k, actor in enumerate(trainer.actors)}
    act, judge = Actor.step, CriticJudge.step

    def acting(self, samples):
        taken.append((names[id(self)], len(samples)))
        return act(self, samples)

    def judging(self, samples, targets):
        taken.append((f"critic {trainer.critics.index(self.critic)}", len(samples)))
        return judge(self, samples, targets)

    monkeypatch.setattr(Actor, "step", acting)
    monkeypatch.setattr(CriticJudge, "step", judging)
    trainer.train()
    return taken


def abstain_from_a(first, second):
    """The second agent's reward is withheld where it wrote an a."""
    return [[1.0, None if "a" in text else float(len(text))] for text in second]


class TestOrder:
    def test_agents_in_order_and_turns_in_order(self, monkeypatch):
        trainer = make_trainer("shared", num_turns=2, rollout_buffer_size=4, train_batch_size=1)
        taken = steps_taken(trainer, monkeypatch)
        one_update = [("actor 0", 1)] * 4 + [("actor 1", 1)] * 4
        assert taken == one_update * 2

    def test_each_minibatch_steps_actor_and_critic(self, monkeypatch):
        trainer = make_trainer(
            "separate", train_dataset=rows(5), rollout_buffer_size=5, train_batch_size=2
        )
        taken = steps_taken(trainer, monkeypatch)
        sizes = (2, 2, 1)
        wanted = [{(f"actor {k}", n), (f"critic {k}", n)} for k in (0, 1) for n in sizes]
        assert [set(taken[i : i + 2]) for i in range(0, len(taken), 2)] == wanted

    @pytest.mark.parametrize(
        ("critic_update", "wanted"),
        [("per_agent", [("critic 0", 2)] * 4), ("joint", [("critic 0", 2)] * 2)],
    )
    def test_steps_of_the_central_critic(self, critic_update, wanted, monkeypatch):
        """C31: 4 items and buffers of 2 are 2 joint minibatches."""
        trainer = make_trainer("maac", rollout_buffer_size=2, critic_update=critic_update)
        taken = steps_taken(trainer, monkeypatch)
        assert [step for step in taken if step[0] == "critic 0"] == wanted
        assert [step for step in taken if step[0] != "critic 0"] == [
            ("actor 0", 2),
            ("actor 1", 2),
        ] * 2

    @pytest.mark.parametrize(("critic_update", "wanted"), [("per_agent", 0.36), ("joint", 0.2)])
    def test_one_joint_sample_and_a_scalar_critic(self, critic_update, wanted, monkeypatch):
        """C31: w = 0, target 1, plain gradient descent with step 0.1 on (1 - w)^2."""
        made = Optimizer.__init__

        def plain(self, parameters, learning_rate, max_grad_norm=None):
            made(self, parameters, learning_rate, max_grad_norm)
            self.adamw = torch.optim.SGD(self.parameters, lr=learning_rate)

        monkeypatch.setattr(Optimizer, "__init__", plain)
        critic = Critic(model(3).requires_grad_(False), tokenizer())
        torch.nn.init.zeros_(critic.value_head.layers[0].weight).requires_grad_(False)
        trainer = make_trainer(
            "maac",
            critic_model=critic,
            critic_update=critic_update,
            value_loss_coef=1.0,
            critic_learning_rate=0.1,
            train_dataset=rows(1),
            reward_func=lambda first, second: [1.0] * len(first),
        )
        trainer.train()
        assert critic.value_head.layers[0].bias.item() == pytest.approx(wanted)

    def test_buffers_of_unequal_length(self, monkeypatch):
        """C42: an agent with withheld rewards has fewer samples, and is updated later."""
        seen = Recorder()
        trainer = make_trainer(
            "maac",
            train_dataset=rows(24),
            reward_func=abstain_from_a,
            rollout_buffer_size=4,
            callbacks=[seen],
            agents=[model(1), model(6)],
        )
        taken = steps_taken(trainer, monkeypatch)
        kept = [
            sum(not s.abstained for it in seen.items for s in it if s.agent_idx == k)
            for k in (0, 1)
        ]
        assert kept[0] == 24
        assert 8 < kept[1] < 20  # or the test would show nothing
        sizes = [[n for who, n in taken if who == f"actor {k}"] for k in (0, 1)]
        assert sizes[0] == [4] * 6
        assert sizes[1] == [4] * (kept[1] // 4) + [kept[1] % 4] * (kept[1] % 4 > 0)
        assert [n for who, n in taken if who == "critic 0"] == [
            n for who, n in taken if who != "critic 0"
        ]

    def test_values_of_a_waiting_buffer_are_those_at_collection(self):
        """What the other agent's updates did to the shared critic since then plays no part."""
        known: dict = {}
        agents, critic = [model(1), model(6)], model(3)

        class Predict(Callback):
            def on_item(self, trainer, samples):
                judge = trainer.critics[0]
                for s in samples:
                    text = "[Agent 0] {}\n\n[Agent 1] {}".format(*s.joint.prompts)
                    ids = judge.tokenizer(text)["input_ids"]
                    with torch.no_grad():
                        known[s] = judge.values([ids]).item()

        values: dict = {}
        trainer = make_trainer(
            "maac",
            agents=agents,
            critic_model=critic,
            train_dataset=rows(24),
            reward_func=abstain_from_a,
            callbacks=[Predict()],
            metrics_callback=lambda samples: values.update({s: s for s in samples}) or {},
        )
        trainer.train()
        trained = [s for s in values if not s.abstained]
        assert len(trained) > 30
        for s in trained:
            assert s.value == pytest.approx(known[s], abs=1e-5)

    def test_one_preloaded_critic_of_independent_agents_judges_at_collection(self):
        values: dict = {}
        with pytest.warns(UserWarning, match="share"):
            trainer = make_trainer(
                "separate",
                critics=[model(3)],
                train_batch_size=2,
                metrics_callback=lambda samples: values.update({s: s.value for s in samples}) or {},
            )
        before = deepcopy(trainer.critics[0].model), deepcopy(trainer.critics[0].value_head)
        trainer.train()
        assert trainer.updates == 1
        critic = Critic(before[0], tokenizer(), value_head=before[1])
        for s, value in values.items():
            with torch.no_grad():
                assert value == pytest.approx(critic.values([s.prompt_ids]).item(), abs=1e-5)


class TestAbstention:
    def test_by_the_whole_team(self):
        seen = Recorder()
        called: list[int] = []
        trainer = make_trainer(
            "maac",
            reward_func=lambda first, second: [None] * len(first),
            callbacks=[seen],
            metrics_callback=lambda samples: called.append(samples[0].item_idx) or {},
        )
        before = weights(trainer)
        trainer.train()
        after = weights(trainer)
        assert all(torch.equal(after[name], before[name]) for name in after)
        assert trainer.updates == 0
        assert called == [0, 1, 2, 3]
        assert all(s.abstained for samples in seen.items for s in samples)

    @pytest.mark.parametrize("kind", KINDS)
    def test_by_one_agent(self, kind):
        trainer = make_trainer(kind, reward_func=lambda first, second: [[1.0, None]] * len(first))
        before = weights(trainer)
        trainer.train()
        after = weights(trainer)
        moved = {
            " ".join(name.split()[:2])
            for name in after
            if not torch.equal(after[name], before[name])
        }
        own = {"maac": {"critic 0"}, "separate": {"critic 0"}, "shared": set()}[kind]
        assert moved == {"agent 0"} | own

    def test_a_group_is_normalised_over_the_others(self):
        """C42: rewards 1, none, 3 give advantages -1 and 1."""
        rewards = iter([1.0, None, 3.0])
        values: list = []
        trainer = make_trainer(
            "maac",
            train_dataset=[{"prompt": "go"}] * 3,
            reward_func=lambda first, second: [next(rewards)],
            metrics_callback=lambda samples: values.extend(samples) or {},
        )
        trainer.train()
        advantages = [s.advantage for s in values if s.agent_idx == 0 and not s.abstained]
        assert advantages == pytest.approx([-1.0, 1.0], abs=1e-5)

    def test_a_turn_without_a_reward_still_stands_between_its_neighbours(self):
        """The first turn bootstraps from a second one that is not trained on."""

        def only_the_first(first, second, prompts):
            return [1.0 if "again" not in prompt else None for prompt in prompts[0]]

        values: list = []
        trainer = make_trainer(
            "maac",
            num_turns=2,
            discount=0.5,
            reward_func=only_the_first,
            metrics_callback=lambda samples: values.extend(samples) or {},
        )
        trainer.train()
        first = [s for s in values if s.turn_idx == 0]
        assert len(first) == 8
        for s in first:
            assert s.next.abstained
            assert s.target == pytest.approx(1.0 + 0.5 * s.next.value)
            assert s.return_ == 1.0


class TestReference:
    @pytest.mark.parametrize("kind", KINDS)
    def test_kl_grows_from_exactly_zero(self, kind):
        """C34, C36."""
        seen = Recorder()
        trainer = make_trainer(
            kind, reference_kl_enabled=True, train_dataset=rows(8), callbacks=[seen]
        )
        frozen = [deepcopy(r.model.state_dict()) for r in trainer.references]
        trainer.train()
        assert [s.reference_kl for s in seen.updates[0]] == [0.0] * 8
        assert all(s.reference_kl > 0 for s in seen.updates[1])
        assert all(s.penalty == pytest.approx(0.1 * s.reference_kl) for s in seen.updates[1])
        for reference, before in zip(trainer.references, frozen, strict=True):
            after = reference.model.state_dict()
            assert all(torch.equal(after[name], before[name]) for name in before)

    def test_it_is_on_its_own(self):
        trainer = make_trainer("maac", reference_kl_enabled=True)
        optimizers = [actor.optimizer for actor in trainer.actors]
        optimizers += trainer.critic_side.optimizers
        trained = {id(p) for o in optimizers for p in o.parameters}
        storages = {p.data_ptr() for agent in trainer.agents for p in agent.model.parameters()}
        for reference in trainer.references:
            for p in reference.model.parameters():
                assert not p.requires_grad
                assert id(p) not in trained
                assert p.data_ptr() not in storages

    def test_none_is_kept_when_it_is_off(self):
        assert make_trainer("maac").references == []

    def test_the_penalty_is_no_part_of_the_return(self):
        seen = Recorder()
        make_trainer(
            "maac",
            reference_kl_enabled=True,
            train_dataset=rows(8),
            callbacks=[seen],
            reward_func=lambda first, second: [1.0] * len(first),
        ).train()
        assert all(s.return_ == 1.0 for s in seen.updates[1])
        assert all(s.reward == 1.0 for s in seen.updates[1])
        assert all(s.target < 1.0 for s in seen.updates[1])


class TestCritics:
    def test_another_vocabulary_of_the_same_size(self):
        """C86: the critic reads text in its own tokens; V is that of the same text alone."""
        words = [*VOCABULARY[3:], *VOCABULARY[:3]]
        for critic_type in ("v", "q"):
            values: list = []
            critics = [Critic(*tiny_model(words, seed=k)) for k in (3, 4)]
            before = deepcopy(critics[0].model), deepcopy(critics[0].value_head)
            trainer = make_trainer(
                "separate",
                critics=critics,
                critic_type=critic_type,
                metrics_callback=lambda samples, to=values: to.extend(samples) or {},
            )
            trainer.train()
            alone = Critic(before[0], critics[0].tokenizer, value_head=before[1])
            for s in (s for s in values if s.agent_idx == 0):
                text = s.prompt + (f" {s.completion}" if critic_type == "q" else "")
                ids = alone.tokenizer(text)["input_ids"]
                with torch.no_grad():
                    assert s.value == pytest.approx(alone.values([ids]).item(), abs=1e-5)

    def test_a_smaller_vocabulary(self):
        critics = [Critic(*tiny_model(["go", "x", "y"], seed=k)) for k in (3, 4)]
        make_trainer("separate", critics=critics).train()
        make_trainer("maac", critic_model=critics[0]).train()

    def test_agents_with_tokenizers_of_their_own(self):
        """Heterogeneous: 6 words and 17, each with its own ids."""
        small, small_words = cf_model({"A": 0.4, "B": 0.3, "</s>": 0.3})
        seen = Recorder()
        for kind in KINDS:
            own = {"critics": [deepcopy(small), model(3)]} if kind == "separate" else {}
            trainer = make_trainer(
                kind,
                agents=[small if kind == "maac" else deepcopy(small), model(2)],
                tokenizer=[small_words, tokenizer()],
                train_dataset=[{"prompt": "q r"}] * 4,
                callbacks=[seen],
                **own,
            )
            trainer.train()
        for samples in seen.items:
            assert set(samples[0].completion.split()) <= {"A", "B"}
            assert set(samples[1].completion.split()) <= {*VOCABULARY, "<unk>"}
            assert samples[0].prompt_ids == (3, 4)

    def test_another_joint_text(self):
        told: list = []

        def shout(prompts, completions):
            told.append((tuple(prompts), completions))
            return "go " + " ".join(prompts)

        values: list = []
        trainer = make_trainer(
            "maac",
            joint_formatter=shout,
            metrics_callback=lambda samples: values.extend(samples) or {},
        )
        critic = trainer.critics[0]
        before = deepcopy(critic.model), deepcopy(critic.value_head)
        trainer.train()
        assert told
        assert all(completions is None for _, completions in told)
        alone = Critic(before[0], critic.tokenizer, value_head=before[1])
        for s in values:
            ids = alone.tokenizer("go " + " ".join(s.joint.prompts))["input_ids"]
            with torch.no_grad():
                assert s.value == pytest.approx(alone.values([ids]).item(), abs=1e-5)


class TestNumbers:
    def test_half_precision_checkpoints_are_trained_in_float32(self, tmp_path):
        """C74: one step of 5e-6 moves a weight of .02."""
        for k in (1, 2, 3):
            folder = tmp_path / str(k)
            model(k).to(torch.bfloat16).save_pretrained(folder)
            tokenizer().save_pretrained(folder)
        trainer = make_trainer(
            "maac",
            agents=[str(tmp_path / "1"), str(tmp_path / "2")],
            critic_model=str(tmp_path / "3"),
            tokenizer=None,
            agent_learning_rate=5e-6,
            critic_learning_rate=5e-6,
        )
        before = weights(trainer)
        assert {tensor.dtype for tensor in before.values()} == {torch.float32}
        trainer.train()
        after = weights(trainer)
        moved = [(after[n] - before[n]).abs().max() for n in after if n.startswith("agent")]
        assert max(moved).item() == pytest.approx(5e-6, rel=0.3)  # one step of AdamW

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_half_precision_objects_too(self, wrapped):
        half = [model(k).to(torch.bfloat16) for k in (1, 2, 3)]
        parts: list = list(half)
        if wrapped:
            parts = [LLMPolicy(m, tokenizer()) for m in half[:2]]
            parts.append(Critic(half[2], tokenizer()))
        with pytest.warns(UserWarning, match="float32"):
            trainer = make_trainer(
                "maac",
                agents=parts[:2],
                critic_model=parts[2],
                tokenizer=None if wrapped else tokenizer(),
            )
        trainer.train()
        assert {tensor.dtype for tensor in weights(trainer).values()} == {torch.float32}

    @pytest.mark.parametrize("kind", KINDS)
    def test_computing_in_bfloat16_keeps_float32_weights(self, kind):
        trainer = make_trainer(kind, dtype="bfloat16", num_turns=2, reference_kl_enabled=True)
        before = weights(trainer)
        trainer.train()
        after = weights(trainer)
        assert {tensor.dtype for tensor in after.values()} == {torch.float32}
        assert all(torch.isfinite(tensor).all() for tensor in after.values())
        assert any(not torch.equal(after[name], before[name]) for name in after)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_policy_of_nan_stops_the_run_before_its_step(self, kind):
        class Poison(Callback):
            def on_item(self, trainer, samples):
                if samples[0].item_idx == 3:
                    trainer.agents[1].model.transformer.h[0].mlp.c_fc.bias.data.fill_(torch.nan)

        trainer = make_trainer(kind, callbacks=[Poison()], max_bad_steps=1)
        before = weights(trainer)
        bad = r"agent_1: the (log_prob|value) is nan"
        with pytest.raises(FloatingPointError, match=bad) as caught:
            trainer.train()
        assert any("agent_1" in note and "turn_1" in note for note in caught.value.__notes__)
        after = weights(trainer)
        for name in after:
            if name.startswith("agent 1") and not name.endswith("mlp.c_fc.bias"):
                assert torch.equal(after[name], before[name]), name
            assert torch.isfinite(after[name]).all() or name.endswith("mlp.c_fc.bias")
        for optimizer in [actor.optimizer for actor in trainer.actors]:
            assert all(p.grad is None for p in optimizer.parameters)

    def test_logits_of_nan_are_never_sampled_from(self):
        agents = [model(1), model(2)]
        trainer = make_trainer("maac", agents=agents)
        agents[0].transformer.wte.weight.data.fill_(torch.nan)
        with pytest.raises(FloatingPointError, match="logits") as caught:
            trainer.train()
        assert "agent_0: transformer.wte.weight: 272 of 272 are not finite" in "".join(
            caught.value.__notes__
        )

    def test_a_reward_that_is_no_number(self):
        trainer = make_trainer("maac", reward_func=lambda a, b: [float("nan")] * len(a))
        before = weights(trainer)
        with pytest.raises(ValueError, match=r"nan.*row 0"):
            trainer.train()
        after = weights(trainer)
        assert all(torch.equal(after[name], before[name]) for name in after)

    def test_gradients_are_clipped_as_a_whole(self):
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = Optimizer([weight, weight], 0.1, max_grad_norm=1.0)
        assert len(optimizer.parameters) == 1
        optimizer.adamw = torch.optim.SGD([weight], lr=1.0)
        (weight * torch.tensor([3.0, 4.0])).sum().backward()
        assert optimizer.step() == pytest.approx(5.0)
        assert weight.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)

    def test_an_infinite_gradient_changes_nothing(self):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = Optimizer([weight], 0.1)
        for bad in (torch.inf, torch.nan):
            weight.grad = torch.tensor([1.0, bad])
            with pytest.raises(FloatingPointError, match="was not stepped"):
                optimizer.step()
            assert weight.tolist() == [1.0, 1.0]
            assert weight.grad is None
            assert optimizer.adamw.state == {}


class TestFailures:
    """A user's exception keeps its type and its traceback, and says where it happened."""

    class MineError(Exception):
        pass

    def failing(self, *_, **__):
        raise self.MineError("of the user")

    @pytest.mark.parametrize(
        "where",
        [
            "reward_func",
            "formatters",
            "external_transition",
            "reward_processor",
            "metrics_callback",
            "joint_formatter",
        ],
    )
    def test_of_a_function(self, where):
        def failing(*args, **kwargs):
            raise self.MineError("of the user")

        def failing_reward(first, second):
            raise self.MineError("of the user")

        function = failing_reward if where == "reward_func" else failing
        with pytest.raises(self.MineError, match="of the user") as caught:
            make_trainer("maac", num_turns=2, **{where: function}).train()
        assert caught.value.__notes__
        assert any(where.split("_")[0][:6] in n for n in caught.value.__notes__)
        assert any("failing" in f.name for f in traceback.extract_tb(caught.value.__traceback__))

    @pytest.mark.parametrize(
        "hook", ["on_train_start", "on_item", "on_update", "on_evaluation", "on_train_end"]
    )
    def test_of_a_hook(self, hook):
        mine = self.MineError

        def failing(*args):
            raise mine("of the user")

        callback = type("Failing", (Callback,), {hook: failing})()
        with pytest.raises(self.MineError) as caught:
            make_trainer(
                "maac", callbacks=[callback], eval_dataset=rows(2), eval_interval=1
            ).train()
        assert any(hook in note for note in caught.value.__notes__)

    def test_the_call_is_not_tried_again(self):
        """C40."""
        calls = []

        def wrong(first, second):
            calls.append(first)
            return [None + 1 for _ in first]

        with pytest.raises(TypeError, match="NoneType"):
            make_trainer("maac", reward_func=wrong).train()
        assert len(calls) == 1

    @pytest.mark.parametrize("returned", [None, 3, {"x": "high"}, {"x": None}, [("x", 1)]])
    def test_a_metrics_callback_that_returns_no_metrics(self, returned):
        with pytest.raises((TypeError, ValueError), match="metrics_callback"):
            make_trainer("maac", metrics_callback=lambda samples: returned).train()

    @pytest.mark.parametrize("returned", [None, 3, "", b"go"])
    def test_a_joint_formatter_that_returns_no_text(self, returned):
        with pytest.raises((TypeError, ValueError), match="joint_formatter"):
            make_trainer("maac", joint_formatter=lambda p, c: returned).train()

    def test_models_are_left_behind(self, tmp_path):
        class Late(Callback):
            def on_item(self, trainer, samples):
                if samples[0].item_idx == 5:
                    raise KeyError("late")

        trainer = make_trainer("maac", train_dataset=rows(8), callbacks=[Late()], logdir=tmp_path)
        with pytest.raises(KeyError) as caught:
            trainer.train()
        assert any("interrupted" in note for note in caught.value.__notes__)
        again = make_trainer("maac")
        again.load_model(tmp_path / "interrupted")
        ours, theirs = weights(again), weights(trainer)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class TestRates:
    def rates(self, **settings):
        seen: list[float] = []

        class Look(Callback):
            def on_update(self, trainer):
                seen.append(trainer.actors[1].optimizer.learning_rate)
                critic = trainer.critic_side.optimizers[0].learning_rate
                assert critic == pytest.approx(2 * seen[-1])

        make_trainer(
            "maac",
            train_dataset=rows(8),
            rollout_buffer_size=2,
            callbacks=[Look()],
            agent_learning_rate=0.1,
            critic_learning_rate=0.2,
            **settings,
        ).train()
        return seen

    def test_constant(self):
        assert self.rates() == [0.1] * 4

    def test_linear(self):
        """8 items, updates before which 0, 2, 4 and 6 had been learnt from."""
        assert self.rates(lr_scheduler_type="linear") == pytest.approx([0.1, 0.075, 0.05, 0.025])

    def test_warm_up(self):
        got = self.rates(lr_scheduler_type="constant_with_warmup", warmup_steps=4)
        assert got == pytest.approx([0.0, 0.05, 0.1, 0.1])

    def test_cosine(self):
        got = self.rates(lr_scheduler_type="cosine")
        assert got == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447], abs=1e-6)

    def test_critics_follow_the_agents_where_nothing_is_said(self):
        trainer = make_trainer("maac", agent_learning_rate=0.3, critic_learning_rate=None)
        assert trainer.critic_side.optimizers[0].learning_rate == 0.3


class TestEvaluation:
    @pytest.mark.parametrize(
        ("interval", "before"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (4, [0, 4]), (16, [0])]
    )
    def test_before_which_items(self, interval, before):
        events: list = []

        class Look(Recorder):
            def on_item(self, trainer, samples):
                events.append(samples[0].item_idx)

            def on_evaluation(self, trainer, metrics):
                events.append("evaluation")

        make_trainer(
            "maac",
            train_dataset=rows(6),
            eval_dataset=rows(2),
            eval_interval=interval,
            callbacks=[Look()],
        ).train()
        wanted: list = []
        for item in range(6):
            wanted += ["evaluation", item] if item in before else [item]
        assert events == wanted + ["evaluation"] * (interval > 0)

    def test_what_is_played(self):
        played: list = []
        trainer = make_trainer(
            "maac",
            num_generations=3,
            eval_dataset=rows(6),
            eval_num_samples=4,
            eval_batch_size=3,
            metrics_callback=lambda samples: played.append(samples) or {"mine": len(played)},
        )
        metrics = trainer.evaluate()
        assert [s.prompt for samples in played for s in samples if s.agent_idx == 0] == [
            row["prompt"] for row in rows(4)
        ]
        assert metrics["eval/mine"] == 2.5
        rewards = [s.reward for samples in played for s in samples if s.agent_idx == 1]
        assert metrics["eval/agent_1/turn_1/reward_mean"] == pytest.approx(sum(rewards) / 4)
        team = [s.reward for samples in played for s in samples]
        assert metrics["eval/team/turn_1/reward_mean"] == pytest.approx(sum(team) / 8)

    def test_greedy(self):
        played: list = []
        trainer = make_trainer(
            "maac",
            eval_dataset=rows(3),
            eval_temperature=0,
            metrics_callback=lambda samples: played.extend(samples) or {},
        )
        trainer.evaluate()
        for s in played:
            ids = list(s.prompt_ids)
            for token in s.completion_ids:
                with torch.no_grad():
                    logits = trainer.agents[s.agent_idx].model(torch.tensor([ids])).logits
                assert token == logits[0, -1].argmax().item()
                ids.append(token)

    def test_again_gives_the_same(self):
        trainer = make_trainer("maac", eval_dataset=rows(4))
        assert trainer.evaluate() == trainer.evaluate()

    def test_nothing_to_evaluate(self):
        assert make_trainer("maac").evaluate() == {}
        assert make_trainer("maac", eval_dataset=rows(2), eval_num_samples=0).evaluate() == {}


class TestDatasets:
    @staticmethod
    def stream(count):
        class Stream:
            def __iter__(self):
                k = 0
                while count is None or k < count:
                    yield rows(k + 1)[k]
                    k += 1

        return Stream()

    def test_a_stream_of_three_rows(self):
        """C68."""
        seen = Recorder()
        make_trainer(
            "maac", train_dataset=self.stream(3), num_train_epochs=2, callbacks=[seen]
        ).train()
        assert [s[0].prompt for s in seen.items] == [row["prompt"] for row in rows(3)] * 2
        assert [len(update) for update in seen.updates] == [6, 6]  # flushed with each epoch

    def test_an_endless_stream_with_max_steps(self):
        """C68."""
        seen = Recorder()
        make_trainer("maac", train_dataset=self.stream(None), max_steps=5, callbacks=[seen]).train()
        assert [s[0].prompt for s in seen.items] == [row["prompt"] for row in rows(5)]

    def test_of_the_datasets_library(self):
        import datasets

        def generate():
            yield from rows(3)

        for dataset in (
            datasets.Dataset.from_list(rows(3)),
            datasets.IterableDataset.from_generator(generate),
        ):
            seen = Recorder()
            make_trainer("maac", train_dataset=dataset, max_steps=5, callbacks=[seen]).train()
            wanted = [row["prompt"] for row in rows(3)]
            assert [s[0].prompt for s in seen.items] == [*wanted, *wanted[:2]]

    def test_max_steps_stops_within_an_epoch_and_goes_on_over_several(self):
        for steps, epochs in ((2, 3), (6, 1)):
            seen = Recorder()
            make_trainer("maac", max_steps=steps, num_train_epochs=epochs, callbacks=[seen]).train()
            assert len(seen.items) == steps

    def test_seeded_order(self):
        """C66: rows 2 5 3 0 1 4, then 3 0 5 4 2 1."""
        seen = Recorder()
        make_trainer(
            "maac", train_dataset=rows(6), num_train_epochs=2, shuffle=True, callbacks=[seen]
        ).train()
        prompts = [row["prompt"] for row in rows(6)]
        order = [2, 5, 3, 0, 1, 4, 3, 0, 5, 4, 2, 1]
        assert [s[0].prompt for s in seen.items] == [prompts[k] for k in order]

    def test_nothing_ends_early_by_default(self):
        """C83: rewards 0, 0, 1 over three turns."""
        turns: list[int] = []

        def sparse(first, second, prompts):
            turns.append(prompts[0][0].count("again"))
            return [float(prompts[0][0].count("again") >= 2)]

        seen = Recorder()
        make_trainer(
            "maac", num_turns=3, reward_func=sparse, callbacks=[seen], max_new_tokens=1
        ).train()
        assert [[s.turn_idx for s in samples if s.agent_idx == 0] for samples in seen.items] == [
            [0, 1, 2]
        ] * 4
