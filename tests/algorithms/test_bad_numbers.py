"""Numbers that are not finite: what is left out, what stays as it was, and when a run stops."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.agents import Completion, Critic, LLMPolicy, ValueHead
from marlogue.algorithms import Callback
from marlogue.algorithms.actor import Actor
from marlogue.algorithms.bad_batches import MOST_KEPT, BadBatch
from marlogue.algorithms.bad_numbers import MOST_WARNINGS, BadNumbers, first_bad
from marlogue.algorithms.folders import check_folder
from marlogue.algorithms.groups import Group
from marlogue.algorithms.histories import by_length
from marlogue.algorithms.judges import CriticJudge, TrunkTerm, Values
from marlogue.algorithms.not_finite import NotFinite
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.sample import Joint, Sample
from marlogue.envs import UnicodeText
from tests.support.cf import cf_model, random_gpt2
from tests.support.team import KINDS, make_trainer, rows, weights

pytestmark = pytest.mark.filterwarnings("ignore:a step was skipped", "ignore:.*are left out")


def sample(ids=(0, 1, 2), prompt_ids=(3,), agent=0, item=0, **numbers: Any) -> Sample:
    joint = Joint(("q", "q"), ("", ""))
    action = Completion(tuple(prompt_ids), tuple(ids), "", truncated=False)
    known = {"reward": 1.0, "value": 0.0, "target": 1.0, "advantage": 1.0, **numbers}
    return Sample(
        f"agent_{agent}", agent, 0, 0, item, {}, joint, action, **known
    )  # fmt: skip


def actor(*, head: bool = False, micro_batch_size: int | None = None) -> Actor:
    policy = LLMPolicy(*cf_model((0.5, 0.25, 0.25)))
    parameters = list(policy.model.parameters())
    term = None
    if head:
        policy.value_head = ValueHead(
            policy.trunk.width, generator=torch.Generator().manual_seed(0)
        )
        parameters += list(policy.value_head.parameters())
        term = TrunkTerm(policy, reads_actions=False, value_loss_coef=0.5, value_clip_range=0.2)
    return Actor(
        policy,
        Optimizer(parameters, 1e-3),
        temperature=1.0,
        micro_batch_size=micro_batch_size,
        compute=nullcontext,
        trunk_term=term,
    )


def judge() -> CriticJudge:
    net = random_gpt2(vocab_size=6, n_layer=1, scale=1.0)
    critic = Critic(net, cf_model((1.0,))[1], generator=torch.Generator().manual_seed(0))
    values = Values(critic, lambda s: s.prompt_ids, 1, nullcontext, by_length)
    return CriticJudge(critic, values, Optimizer(critic.parameters(), 1e-3), 0.5)


def state(optimizer: Optimizer) -> list[torch.Tensor]:
    """Every weight, moment and count, copied."""
    kept = [parameter.detach().clone() for parameter in optimizer.parameters]
    for parameter in optimizer.parameters:
        kept += [tensor.clone() for tensor in optimizer.adamw.state.get(parameter, {}).values()]
    return kept


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def nan_weight(learner: Any) -> Callable[[], None]:
    """Put a NaN into a bias; returns what puts the number back."""
    part = learner.policy if isinstance(learner, Actor) else learner.critic
    bias = part.model.transformer.h[0].mlp.c_fc.bias
    before = bias.detach().clone()
    bias.data[0] = torch.nan
    return lambda: bias.data.copy_(before)


class TestActorStep:
    """A bad step changes nothing; the next one is that of a run without it."""

    BAD = (
        ("log_prob", None, {}),
        ("actor_loss", None, {"advantage": 1e39}),  # infinite in float32
        ("gradient norm", None, {"advantage": 1e38}),  # its square is
        ("log_prob", 1, {}),
        ("actor_loss", 1, {"advantage": 1e39}),
    )

    @pytest.mark.parametrize(("number", "micro", "numbers"), BAD)
    @pytest.mark.parametrize("before", [0, 2])
    def test_as_if_it_had_not_been(self, number, micro, numbers, before):
        """Also when a first micro-batch has left a gradient already, and when there are no
        moments yet."""
        good = [sample(), sample(ids=(0,), advantage=-2.0)]
        here, twin = (actor(micro_batch_size=micro) for _ in range(2))
        for _ in range(before):
            assert here.step(good) == twin.step(good)
        kept = state(here.optimizer)
        # Longest first: the good one goes through before.
        bad = [sample(ids=(0, 1, 0, 2)), sample(ids=(1,), item=7, **numbers)]
        undo = nan_weight(here) if number == "log_prob" and not numbers else lambda: None
        with pytest.raises(NotFinite) as caught:
            here.step(bad)
        undo()
        assert caught.value.number == number
        assert all(parameter.grad is None for parameter in here.optimizer.parameters)
        assert_same(state(here.optimizer), kept)
        assert here.step(good) == twin.step(good)
        assert_same(state(here.optimizer), state(twin.optimizer))

    def test_a_word_that_cannot_be_said_is_named(self):
        """C20: an infinite embedding spoils the sample with that word alone, also with an advantage
        of 0."""
        here = actor()
        here.policy.model.transformer.wte.weight.data[4, 0] = -torch.inf
        with pytest.raises(NotFinite) as caught:
            here.step([sample(), sample(ids=(4,), item=5, advantage=0.0)])
        assert caught.value.number == "log_prob"
        assert [s.item_idx for s in caught.value.samples] == [5]

    @pytest.mark.parametrize("part", ["target", "advantage"])
    def test_both_losses_on_one_trunk_are_one_step(self, part):
        here = actor(head=True)
        kept = state(here.optimizer)
        with pytest.raises(NotFinite) as caught:
            here.step([sample(**{part: 1e30 if part == "target" else 1e39})])
        assert caught.value.number == ("value_loss" if part == "target" else "actor_loss")
        assert_same(state(here.optimizer), kept)


class TestCriticStep:
    @pytest.mark.parametrize(
        ("number", "target"), [("value", 1.0), ("value_loss", 1e30), ("gradient norm", 1e19)]
    )
    def test_as_if_it_had_not_been(self, number, target):
        good = [sample(prompt_ids=(3,)), sample(prompt_ids=(4, 3))]
        here, twin = judge(), judge()
        assert here.step(good, [1.0, -1.0]) == twin.step(good, [1.0, -1.0])
        kept = state(here.optimizer)
        undo = nan_weight(here) if number == "value" else lambda: None
        with pytest.raises(NotFinite) as caught:
            here.step(good, [0.5, target])
        undo()
        assert caught.value.number == number
        assert_same(state(here.optimizer), kept)
        assert here.step(good, [1.0, -1.0]) == twin.step(good, [1.0, -1.0])
        assert_same(state(here.optimizer), state(twin.optimizer))

    def test_values_that_wait_are_filled_in_all_the_same(self):
        here = judge()
        waiting = [sample(prompt_ids=(3,), value=math.nan), sample(prompt_ids=(4,), value=math.nan)]
        here.values.expect(waiting)
        with pytest.raises(NotFinite, match="value_loss"):
            here.step(waiting, [1e30, 1.0])
        with torch.no_grad():
            wanted = here.critic.values([(3,), (4,)]).tolist()
        assert [s.value for s in waiting] == pytest.approx(wanted, abs=1e-6)
        assert here.values.waiting == []


class TestGroups:
    def test_one_bad_value_does_not_poison_the_others(self):
        """Errors 1, 2, 4 (values 0) beside inf and NaN: mean 7/3, population variance 14/9."""
        targets = [1.0, math.inf, 2.0, math.nan, 4.0]
        samples = [sample(target=t, value=0.0) for t in targets]
        samples.append(sample(target=3.0, value=math.nan))
        Group(0, 0, samples, [samples]).set_advantages(True)
        std = math.sqrt(14 / 9)
        wanted = [(x - 7 / 3) / std for x in (1.0, 2.0, 4.0)]
        assert [samples[k].advantage for k in (0, 2, 4)] == pytest.approx(wanted, abs=1e-12)
        assert [math.isfinite(s.advantage) for s in samples] == [True, False] * 3
        assert [first_bad(s) for s in samples[:3]] == [None, ("target", math.inf), None]

    def test_one_that_is_left_is_a_group_of_one(self):
        """C23: it stays as it is."""
        samples = [sample(target=3.0), sample(target=math.nan)]
        Group(0, 0, samples, [samples]).set_advantages(True)
        assert samples[0].advantage == 3.0

    def test_guidance_is_normalised_over_what_is_learnt_from(self):
        """G = 1, 3 beside a bad sample's 100: centred and scaled -1, 1; half of each."""
        samples = [
            sample(target=t, guidance=g) for t, g in ((1.0, 1.0), (5.0, 3.0), (math.inf, 100.0))
        ]
        group = Group(0, 0, samples, [samples])
        group.set_advantages(True)
        assert group.mix_guidance(0.5)["guidance_cosine"] == pytest.approx(1.0)
        assert [s.advantage for s in samples[:2]] == pytest.approx([-1.0, 1.0])
        assert not math.isfinite(samples[2].advantage)

    def test_the_first_bad_number_is_the_one_that_came_first(self):
        later = sample(value=math.nan)
        for wanted, numbers in (
            ("reward", {"reward": math.inf, "target": math.inf, "advantage": math.inf}),
            ("reference_kl", {"penalty": math.inf, "target": -math.inf}),
            ("value of what followed", {"next": later, "target": math.nan}),
            ("value", {"value": math.nan, "advantage": math.nan}),
        ):
            found = first_bad(sample(**numbers))
            assert found is not None
            assert found[0] == wanted

    def test_a_divergence_without_bound_is_left_out(self):
        """The reference says A always, the policy never: exp(1e4) overflows."""
        policy, reference = (LLMPolicy(*cf_model(p)) for p in ((0.0, 1.0), (1.0,)))
        here = Actor(
            policy,
            Optimizer(policy.model.parameters(), 1e-3),
            temperature=1.0,
            micro_batch_size=None,
            compute=nullcontext,
            reference=reference,
        )
        both = [sample(ids=(0,)), sample(ids=(1,))]
        here.penalize(both, 0.1)
        group = Group(0, 0, both, [both])
        group.set_targets(1.0)
        group.set_advantages(True)
        assert first_bad(both[0]) == ("reference_kl", math.inf)
        assert not math.isfinite(both[0].advantage)
        assert math.isfinite(both[1].advantage)


class TestCounting:
    def bad(self, samples: list[Sample]) -> dict[str, float]:
        raise NotFinite("actor_loss", math.nan)

    def good(self, samples: list[Sample]) -> dict[str, float]:
        return {"count": float(len(samples))}

    def test_in_a_row_of_one_model(self):
        """Good steps of others say nothing about it."""
        numbers = BadNumbers(3)
        two = [sample(), sample(agent=1)]
        assert numbers.attempt("agent_0", two[:1], "target", self.bad) == {}
        assert numbers.attempt("agent_0", two[:1], "target", self.good) == {"count": 1.0}
        for _ in range(2):
            assert numbers.attempt("agent_0", two[:1], "target", self.bad) == {}
            numbers.attempt("agent_1", two[1:], "target", self.good)
        assert numbers.in_a_row == {"agent_0": 2}
        with pytest.raises(FloatingPointError, match=r"3 times in a row.*agent_0.*item 0"):
            numbers.attempt("agent_0", two[:1], "target", self.bad)
        assert numbers.figures() == {
            "train/bad_steps": 4.0,
            "train/bad_samples": 0.0,
            "agent_0/turn_1/bad_steps": 4.0,
        }

    def test_a_saved_count_goes_on(self):
        first, second = BadNumbers(3), BadNumbers(3)
        for _ in range(2):
            first.attempt("critic_0", [sample(), sample(agent=1)], "target", self.bad)
        first.leave_out([sample(reward=math.nan), sample()])
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert second.figures() == first.figures()
        assert second.figures()["team/turn_1/bad_steps"] == 2.0
        assert second.figures()["agent_0/turn_1/bad_samples"] == 1.0
        with pytest.raises(FloatingPointError, match="critic_0"):
            second.attempt("critic_0", [sample()], "target", self.bad)

    def test_samples_without_what_is_needed_stay_out(self):
        numbers = BadNumbers()
        three = [sample(target=math.inf), sample(), sample(target=math.nan)]
        assert numbers.attempt("critic_0", three, "target", self.good) == {"count": 1.0}
        assert numbers.attempt("critic_0", three[:1], "target", self.good) == {}
        assert numbers.in_a_row == {"critic_0": 1}

    def test_warnings_name_it_all_and_end(self):
        numbers = BadNumbers(1000)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for item in range(3 * MOST_WARNINGS):
                numbers.attempt("agent_0", [sample(item=item)], "target", self.bad)
        assert len(told) == MOST_WARNINGS
        assert "agent_0: the actor_loss is nan (agent_0, turn 1, item 0)" in str(told[0].message)
        assert "train/bad_steps" in str(told[-1].message)
        assert numbers.figures()["train/bad_steps"] == 3 * MOST_WARNINGS


class Endless(ParallelEnv):
    """A foreign environment of one turn that pays agent_1 an infinite reward."""

    metadata = {"name": "endless_v0"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents: list[str] = []
        self.space = UnicodeText(50)

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return self.space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, "go"), {a: {} for a in self.agents}

    def step(self, actions):
        agents, self.agents = self.agents, []
        done, over = dict.fromkeys(agents, True), dict.fromkeys(agents, False)
        rewards = {"agent_0": 1.0, "agent_1": math.inf}
        return dict.fromkeys(agents, "go"), rewards, done, over, {a: {} for a in agents}


class Spoil(Callback):
    """A callback that shapes rewards, and gets agent_1's wrong in some items of four."""

    def __init__(self, rewards: dict[int, float]) -> None:
        self.rewards = rewards

    def on_item(self, trainer: Any, samples: Any) -> None:
        for one in samples:
            if one.agent_idx == 1:
                one.reward = self.rewards.get(one.item_idx % 4, one.reward)


EVERY = dict.fromkeys(range(4), math.nan)


def lines(logdir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (logdir / "progress.json").read_text().splitlines()]


class TestRuns:
    def test_a_foreign_reward_that_is_not_finite_is_refused(self):
        """Where it comes in, with the name of who got it."""
        trainer = make_trainer("maac", env=Endless(), max_steps=4)
        before = weights(trainer)
        with pytest.raises(ValueError, match=r"reward inf \(agent_1, .*endless_v0.*finite"):
            trainer.train()
        after = weights(trainer)
        assert all(torch.equal(after[name], before[name]) for name in after)

    @pytest.mark.parametrize(
        ("kind", "bad"),
        [
            *((kind, math.nan) for kind in (*KINDS, "joint")),
            ("maac", math.inf),
            ("maac", -math.inf),
        ],
    )
    def test_a_reward_that_is_not_finite_is_left_out(self, kind, bad, tmp_path):
        """One sample of agent_1 in four; agent_0 learns from all of its own."""
        seen: list[Sample] = []
        settings = {"critic_update": "joint"} if kind == "joint" else {}
        trainer = make_trainer(
            "maac" if kind == "joint" else kind,
            callbacks=[Spoil({0: bad})],
            train_dataset=rows(8),
            rollout_buffer_size=8,
            logdir=tmp_path,
            metrics_callback=lambda samples: seen.extend(samples) or {},
            **settings,
        )
        before = weights(trainer)
        with pytest.warns(
            UserWarning, match=r"2 of 8 samples of agent_1, turn 1 are left out.*rewa"
        ):
            trainer.train()
        after = weights(trainer)
        assert all(torch.isfinite(tensor).all() for tensor in after.values())
        assert any(not torch.equal(after[n], before[n]) for n in after if n.startswith("agent 1"))
        left_out = [s for s in seen if not math.isfinite(s.advantage)]
        assert len(left_out) == 2
        assert {s.agent for s in left_out} == {"agent_1"}
        others = [s.advantage for s in seen if s.agent_idx == 1 and s not in left_out]
        assert np.mean(others) == pytest.approx(0, abs=1e-9)
        assert np.std(others) == pytest.approx(1, abs=1e-6)
        last = lines(tmp_path)[-1]
        assert last["agent_1/turn_1/bad_samples"] == last["train/bad_samples"] == len(left_out)
        assert last["train/bad_steps"] == 0
        text = (tmp_path / "progress.json").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text

    def test_when_no_sample_is_left_nothing_is_learnt(self, tmp_path):
        trainer = make_trainer(
            "separate",
            callbacks=[Spoil(EVERY)],
            max_steps=8,
            logdir=tmp_path,
        )
        before = weights(trainer)
        trainer.train()
        after = weights(trainer)
        for name in after:
            own = name.startswith(("agent 1", "critic 1"))
            assert torch.equal(after[name], before[name]) or not own, name
        assert any(not torch.equal(after[n], before[n]) for n in after if n.startswith("agent 0"))
        assert trainer.bad_numbers.in_a_row == {"agent_1": 2, "critic_1": 2}

    @pytest.mark.parametrize("kind", ["maac", "separate", "attention", "joint"])
    def test_a_bad_critic_stops_the_run_with_its_batch(self, kind, tmp_path):
        class Poison(Callback):
            def on_train_start(self, trainer: Any) -> None:
                trainer.critics[0].model.transformer.h[0].mlp.c_fc.bias.data[3] = torch.nan

        settings: dict[str, Any] = {
            "attention": {"critic_architecture": "attention", "attention_heads": 2},
            "joint": {"critic_update": "joint"},
        }.get(kind, {})
        trainer = make_trainer(
            "separate" if kind == "separate" else "maac",
            train_batch_size=1,
            logdir=tmp_path,
            callbacks=[Poison()],
            **settings,
        )
        before = weights(trainer)
        with pytest.raises(FloatingPointError, match="critic_0: the value is nan") as caught:
            trainer.train()
        after = weights(trainer)
        for name in before:
            assert torch.equal(after[name].nan_to_num(0), before[name].nan_to_num(0)), name
        folder = tmp_path / "bad_batches" / "000003_critic_0"
        if kind != "joint":  # there the critic is stepped three times before the first actor
            folder = tmp_path / "bad_batches" / "000005_critic_0"
        assert f"marlogue inspect {folder}" in str(caught.value)
        assert check_folder(folder) == {"what": "bad batch"}
        batch = BadBatch.load(folder)
        assert (batch.model, batch.number, batch.in_a_row) == ("critic_0", "value", 3)
        assert batch.histories is not None
        assert len(batch.histories) == len(batch.samples)
        assert batch.team == folder / "team"
        kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
        assert kinds <= {".json", ".safetensors", ".txt", ".jinja"}
        earlier = BadBatch.load(tmp_path / "bad_batches" / "000001_critic_0")
        assert earlier.team is None

    def test_an_overflow_by_a_huge_learning_rate(self, tmp_path):
        """The first of four steps throws the weights far away; none is made after it."""
        kept: dict[str, Any] = {}

        class Watch(Callback):
            def on_item(self, trainer: Any, samples: Any) -> None:
                steps = trainer.actors[0].optimizer
                made = steps.adamw.step

                def step() -> None:
                    made()
                    kept.update(count=kept.get("count", 0) + 1, state=state(steps))

                steps.adamw.step = step

        trainer = make_trainer(
            "maac",
            train_batch_size=1,
            agent_learning_rate=1e30,
            rollout_buffer_size=4,
            train_dataset=[{"prompt": "go x"}] * 4,
            callbacks=[Watch()],
            logdir=tmp_path,
        )
        with pytest.raises(FloatingPointError, match=r"3 times in a row.*agent_0"):
            trainer.train()
        assert kept["count"] >= 1
        assert_same(state(trainer.actors[0].optimizer), kept["state"])
        assert BadBatch.load(tmp_path / "bad_batches" / "000003_agent_0").team is not None

    def test_batches_do_not_fill_the_disk(self, tmp_path):
        trainer = make_trainer(
            "separate",
            callbacks=[Spoil(EVERY)],
            max_steps=32,
            train_batch_size=1,
            rollout_buffer_size=4,
            max_bad_steps=1000,
            logdir=tmp_path,
        )
        trainer.train()
        assert trainer.bad_numbers.figures()["train/bad_steps"] == 64
        assert len(list((tmp_path / "bad_batches").iterdir())) == MOST_KEPT

    def test_a_batch_that_cannot_be_saved_does_not_hide_the_error(self, tmp_path):
        trainer = make_trainer(
            "separate",
            callbacks=[Spoil(EVERY)],
            max_steps=4,
            max_bad_steps=1,
            logdir=tmp_path,
        )
        (tmp_path / "bad_batches").write_text("a file where the folder should be")
        with pytest.raises(FloatingPointError, match="could not be saved"):
            trainer.train()

    def test_a_bad_step_among_good_ones(self, tmp_path):
        """A reward of 1e30 overflows a critic's loss; the other agent and critic learn what they
        would learn without it."""
        trainers = []
        for bad in ({}, {0: 1e30}):
            trainer = make_trainer("separate", callbacks=[Spoil(bad)], max_steps=4)
            trainers.append(trainer)
            trainer.train()
        one, other = map(weights, trainers)
        for name in one:
            if name.startswith(("agent 0", "critic 0")):
                assert torch.equal(one[name], other[name]), name
        assert trainers[1].bad_numbers.in_a_row == {"critic_1": 1}


@pytest.mark.parametrize("kind", ["maac", "shared"])
def test_counts_are_part_of_a_training_state(kind, tmp_path):
    """A step that was bad before a checkpoint counts after it."""
    first, second = (make_trainer(kind, callbacks=[Spoil({0: 1e30})]) for _ in range(2))
    first.train()
    assert first.bad_numbers.in_a_row
    first.save_state(tmp_path)
    second.load_state(tmp_path)
    assert second.bad_numbers.state_dict() == first.bad_numbers.state_dict()
    assert second.watch.state_dict() == first.watch.state_dict()


def test_gradients_are_freed_when_a_step_is_interrupted():
    """What stops a step between its micro-batches leaves nothing for the next one."""
    here = actor(micro_batch_size=1)
    twin = deepcopy(here)
    calls = iter(range(10))

    def score(answered, **kwargs):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return LLMPolicy.score(here.policy, answered, **kwargs)

    here.policy.score = score  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        here.step([sample(), sample(ids=(1,))])
    assert here.step([sample(), sample(ids=(1,))]) == twin.step([sample(), sample(ids=(1,))])
    assert_same(state(here.optimizer), state(twin.optimizer))


def test_a_half_precision_model_is_checked_as_it_computes():
    trainer = make_trainer("maac", dtype="bfloat16", max_bad_steps=1)
    trainer.train()
    assert trainer.bad_numbers.figures()["train/bad_steps"] == 0
