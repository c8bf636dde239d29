"""Warnings of the silent kind: each speaks when it should, once, and is silent otherwise."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from marlogue.agents import Completion, tiny_model
from marlogue.algorithms import Callback, IACConfig, MAACConfig
from marlogue.algorithms import watchers as limits
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.sample import Joint, Sample
from marlogue.algorithms.update_figures import Returns, figures_of
from marlogue.algorithms.watch import ReferenceKLError, Watch, rounding
from tests.support.team import make_trainer, rows


def sample(agent: int = 0, turn: int = 0, tokens: int = 2, **numbers: Any) -> Sample:
    action = Completion((3,), (1,) * tokens, "", truncated=numbers.pop("truncated", False))
    known = {"return_": 0.0, "value": 0.0, "target": 0.0, "log_prob": -2.0, **numbers}
    return Sample(
        f"agent_{agent}", agent, turn, 0, 0, {}, Joint(("q",), ("",)), action, **known
    )  # fmt: skip


def said(updates: Iterable[list[Sample]], watch: Watch) -> list[str]:
    """What is warned of over these updates."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for update in updates:
            watch.updated(update, {})
    return [str(warning.message) for warning in told]


def watching(**settings: Any) -> Watch:
    return Watch(MAACConfig(**settings))


class TestFigures:
    def test_by_hand(self) -> None:
        """Two agents of two samples: 2 and 4 tokens, log p -2 and -6: 16 nats over 12 tokens."""
        learnt = [
            sample(k, tokens=t, log_prob=p, return_=r, target=r, value=0.5, reference_kl=kl)
            for k in (0, 1)
            for t, p, r, kl in ((2, -2.0, 1.0, 0.5 + k), (4, -6.0, 3.0, 1.5 + k))
        ]
        update = figures_of(learnt)
        assert update.entropy == pytest.approx(16 / 12)
        assert update.token_kl == pytest.approx((0.5 + 1.5 + 1.5 + 2.5) / 12)
        assert (update.furthest, update.reference_kl) == ("agent_1", 2.0)
        group = update.groups[1]
        assert (group.place, group.size, group.low, group.mean) == ("agent_1/turn_1", 2, 1.0, 2.0)
        assert group.target_variance == group.error_variance == pytest.approx(1.0)

    def test_what_is_not_known_or_not_finite_has_no_part(self) -> None:
        update = figures_of([sample(log_prob=math.nan), sample(log_prob=-math.inf), sample()])
        assert update.entropy == 1.0
        assert math.isnan(update.token_kl)
        assert math.isnan(update.reference_kl)
        assert figures_of([sample(reference_kl=math.inf)]).reference_kl == math.inf

    def test_the_best_return(self) -> None:
        """Within 5% of the range [0, 10]: from 9.5 on; a range of one number has no best."""
        returns = Returns()
        groups = figures_of([sample(return_=r) for r in (0.0, 10.0)]).groups
        returns.see(groups)
        for mean, near in ((9.5, True), (9.4, False)):
            assert returns.near_best(figures_of([sample(return_=mean)]).groups[0]) is near
        other = figures_of([sample(agent=1, return_=1.0)]).groups
        returns.see(other)
        assert not returns.near_best(other[0])


class TestEqualReturns:
    def group(self, *returns: float) -> list[Sample]:
        return [sample(return_=r) for r in returns]

    def test_a_reward_that_never_differs(self) -> None:
        told = said([self.group(1.0, 1.0)] * 40, watching())
        assert len(told) == 1
        assert "in 32 of the last 32 groups" in told[0]

    def test_nine_tenths_are_enough_and_less_are_not(self) -> None:
        """29 of 32 are above 90%, 28 below."""
        for different, wanted in ((3, 1), (4, 0)):
            updates = [self.group(0.0, 1.0)] * different + [self.group(0.0, 0.0)] * (32 - different)
            assert len(said(updates, watching())) == wanted

    def test_a_task_that_is_solved(self) -> None:
        updates = [self.group(0.0, 1.0)] * 8 + [self.group(1.0, 1.0)] * 100
        assert said(updates, watching()) == []

    def test_groups_of_one_say_nothing(self) -> None:
        watch = watching()
        assert said([self.group(1.0)] * 100, watch) == []
        assert watch.updated(self.group(1.0), {}) == {}

    def test_early_turns_are_judged_by_what_follows(self) -> None:
        """Rewards of 0 in the first turn, and returns that differ: signal comes from later."""
        update = [sample(reward=0.0, return_=r) for r in (0.0, 1.0)]
        assert said([update] * 100, watching()) == []

    def test_a_guidance_gives_signal(self) -> None:
        assert said([self.group(1.0, 1.0)] * 40, Watch(MAACConfig(), guided=True)) == []

    def test_the_share_is_logged(self) -> None:
        update = [sample(k, return_=float(k * n)) for k in (0, 1) for n in (1, 2)]
        assert watching().updated(update, {}) == {"train/equal_return_groups": 0.5}


class TestCritic:
    def update(self, error: float, spread: float = 1.0) -> list[Sample]:
        """Targets +-spread of variance spread^2, errors y - V of +-error."""
        return [
            sample(return_=s, target=s * spread, value=s * (spread - error)) for s in (-1.0, 1.0)
        ]

    def test_worse_than_a_constant_for_long(self) -> None:
        """Errors of variance 1.44 on targets of 1: 1 - 1.44 = -0.44."""
        told = said([self.update(1.2)] * (limits.VARIANCE_UPDATES + 5), watching())
        assert len(told) == 1
        assert "-0.44" in told[0]

    @pytest.mark.parametrize(
        ("updates", "error"), [(limits.VARIANCE_UPDATES - 1, 1.2), (60, 1.05), (60, 0.5)]
    )
    def test_not_before_and_not_for_a_new_one(self, updates: int, error: float) -> None:
        """1 - 1.05^2 = -0.10 is what a critic looks like that has not learnt yet."""
        assert said([self.update(error)] * updates, watching()) == []

    def test_the_last_errors_of_a_solved_task(self) -> None:
        """Targets that spread a twentieth of what they did, and errors above that."""
        updates = [self.update(0.5)] * 5 + [self.update(0.1, spread=0.05)] * 100
        assert said(updates, watching()) == []


class TestEntropy:
    def update(self, entropy: float, return_: float) -> list[Sample]:
        return [sample(tokens=2, log_prob=-2 * entropy, return_=return_)] * 2

    def run(self, low: float, return_: float, count: int = 10) -> list[str]:
        # Returns of 0 and 1 were seen in the beginning, when the entropy was 2 nats.
        first = [
            sample(tokens=2, log_prob=-4.0, return_=0.0),
            sample(tokens=2, log_prob=-4.0, return_=1.0),
        ]
        return said([first] + [self.update(low, return_)] * count, watching())

    def test_one_answer_that_is_not_the_best(self) -> None:
        told = self.run(0.09, 0.5)
        assert len(told) == 1
        assert "under 5% of its first value for 5 updates (0.09 nats, 2 at first)" in told[0]

    def test_silent_otherwise(self) -> None:
        assert self.run(0.09, 0.5, count=limits.ENTROPY_UPDATES - 1) == []
        assert self.run(0.11, 0.5) == []  # 5.5%
        assert self.run(0.01, 1.0) == []  # solved

    @pytest.mark.parametrize(("first_turn", "words"), [(1.0, 0), (0.5, 1)])
    def test_a_task_is_solved_by_its_first_turn(self, first_turn: float, words: int) -> None:
        """Later turns are of the few episodes that did not end well before."""
        begun = [sample(turn=t, log_prob=-4.0, return_=r) for t in (0, 1) for r in (0.0, 1.0)]
        then = [sample(turn=1, log_prob=-0.02, return_=0.0)]
        then += [sample(turn=0, log_prob=-0.02, return_=first_turn)] * 3
        assert len(said([begun] + [then] * 10, watching())) == words


class TestCut:
    def update(self, cut: bool = True, size: int = 8) -> list[Sample]:
        return [sample(return_=float(k), truncated=cut) for k in range(size)]

    def test_all_of_them_for_long(self) -> None:
        told = said([self.update()] * 25, watching(max_new_tokens=16))
        assert len(told) == 1
        assert (
            "all 160 completions of the last 20 updates were cut at max_new_tokens (16)"
            in (told[0])
        )

    def test_silent_otherwise(self) -> None:
        one_ended = [*self.update(size=7), sample(return_=1.0)]
        assert said([self.update()] * 19 + [one_ended] * 30, watching()) == []
        assert said([self.update()] * 30, watching(max_new_tokens=7)) == []
        assert said([self.update(size=2)] * 30, watching()) == []


class TestReference:
    def update(self, kl: float, entropy: float = 1.0) -> list[Sample]:
        return [
            sample(tokens=2, log_prob=-2 * entropy, reference_kl=2 * kl, return_=float(k > 0))
            for k in range(20)
        ]

    def test_beyond_what_the_reference_would_say(self) -> None:
        told = said([self.update(0.0)] + [self.update(2.1)] * 4, watching())
        assert len(told) == 1
        assert "2.1 nats per token" in told[0]

    def test_settling_on_one_answer_is_silent(self) -> None:
        """From uniform over 8 words to one of them: ln 8 = 2.08 nats per token, the entropy that
        was; once a spike is over, counting begins anew."""
        settled = [self.update(0.0, math.log(8))] + [self.update(math.log(8), 0.01)] * 50
        assert said(settled, watching()) == []
        spikes = ([self.update(5.0)] * 2 + [self.update(0.1)]) * 10
        assert said([self.update(0.0), *spikes], watching()) == []

    def test_without_bound(self) -> None:
        assert len(said([self.update(0.0)] + [self.update(math.inf)] * 4, watching())) == 1


class TestWeights:
    """C74: AdamW at 5e-6 does not move a bfloat16 weight of 0.02."""

    def parameter(self, dtype: torch.dtype, value: float = 0.02) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.full((4,), value, dtype=dtype))

    def stepped(self, dtype: torch.dtype, rate: float, gradient: float = 1.0) -> Optimizer:
        optimizer = Optimizer([self.parameter(dtype)], rate)
        optimizer.parameters[0].grad = torch.full((4,), gradient, dtype=dtype)
        optimizer.step()
        return optimizer

    @pytest.mark.parametrize(
        ("dtype", "value", "rate", "lost"),
        [
            # 0.02 lies in [2^-6, 2^-5), where bfloat16 (8 bits) steps by 2^-13 = 1.22e-4.
            (torch.bfloat16, 0.02, 6.0e-5, 1.0),
            (torch.bfloat16, 0.02, 6.2e-5, 0.0),
            (torch.float16, 0.02, 5e-6, 1.0),  # 11 bits: 2^-16 = 1.53e-5
            (torch.float16, 0.02, 8e-6, 0.0),
            (torch.float32, 0.02, 5e-6, 0.0),
            (torch.float32, 0.02, 9e-10, 1.0),  # 24 bits: 2^-29 = 1.86e-9
            (torch.bfloat16, 0.0, 5e-6, 0.0),
        ],
    )
    def test_rounding(self, dtype: torch.dtype, value: float, rate: float, lost: float) -> None:
        assert rounding([self.parameter(dtype, value)], rate)[0] == lost

    def test_rounding_agrees_with_the_optimiser(self) -> None:
        """What is said to be lost is what AdamW does not move, and nothing else is."""
        for rate in (5e-6, 3e-5, 1e-4, 1e-3):
            optimizer = self.stepped(torch.bfloat16, rate)
            unmoved = bool((optimizer.parameters[0] == torch.tensor(0.02).bfloat16()).all())
            lost = rounding([self.parameter(torch.bfloat16)], rate)[0] == 1.0
            assert unmoved is lost is optimizer.unmoved

    def test_no_false_word_about_what_moves_or_has_no_reason_to(self) -> None:
        assert not self.stepped(torch.float32, 5e-6).unmoved
        assert not self.stepped(torch.bfloat16, 0.0).unmoved
        assert not self.stepped(torch.bfloat16, 5e-6, gradient=0.0).unmoved

    def test_each_model_once(self) -> None:
        watch = watching()
        coarse, fine = self.stepped(torch.bfloat16, 5e-6), self.stepped(torch.float32, 5e-6)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                watch.updated([sample()], {"agent_0": coarse, "critic_0": fine})
        messages = [str(warning.message) for warning in told]
        assert len(messages) == 2
        assert "100% of the weights of agent_0 (bfloat16)" not in messages[0]
        assert "a step of agent_0 with a learning rate of 5e-06 left all its weights" in messages[0]
        assert "100% of the weights of agent_0 (bfloat16) do not move" in messages[1]
        assert "numbers of their size lie 0.00012 apart" in messages[1]

    def test_in_a_training(self) -> None:
        class Halve(Callback):
            def on_train_start(self, trainer: Any) -> None:
                trainer.agents[0].model.bfloat16()

        trainer = make_trainer("separate", agent_learning_rate=5e-6, callbacks=[Halve()])
        with pytest.warns(UserWarning, match=r"weights of agent_0 \(bfloat16\) do not move"):
            trainer.train()
        assert "rate agent_1" in trainer.watch.said


class TestState:
    def test_counting_goes_on(self) -> None:
        """Half of the updates before, half after a checkpoint: the same word at the same time."""
        cases: dict[str, tuple[Callable[[], Watch], list[list[Sample]]]] = {
            "equal": (watching, [TestEqualReturns().group(1.0, 1.0)] * 32),
            "critic": (watching, [TestCritic().update(1.2)] * 50),
            "cut": (watching, [TestCut().update()] * 20),
            "kl": (watching, [TestReference().update(0.0)] + [TestReference().update(3.0)] * 3),
            "entropy": (
                watching,
                [TestCritic().update(0.0)] + [TestEntropy().update(0.01, 0.0)] * 5,
            ),
        }
        for name, (make, updates) in cases.items():
            half = len(updates) // 2
            first, second = make(), make()
            assert said(updates[:half], first) == [], name
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert said(updates[half:-1], second) == [], name
            assert len(said(updates[-1:], second)) == 1, name
            third = make()
            third.load_state_dict(json.loads(json.dumps(second.state_dict())))
            assert said(updates, third) == [], name


class TestBound:
    def test_it_needs_a_reference(self) -> None:
        with pytest.raises(ValueError, match=r"max_reference_kl.*reference_kl_enabled=True"):
            IACConfig(max_reference_kl=1.0)
        with pytest.raises(ValueError, match="max_reference_kl"):
            IACConfig(max_reference_kl=0.0, reference_kl_enabled=True)

    def test_the_run_stops_in_order(self, tmp_path: Path) -> None:
        """After the update that went too far, with a checkpoint; its figures are in the log."""
        trainer = make_trainer(
            "maac",
            reference_kl_enabled=True,
            max_reference_kl=0.05,
            agent_learning_rate=5e-2,
            train_dataset=rows(32),
            logdir=tmp_path,
        )
        with pytest.raises(
            ReferenceKLError, match=r"KL of agent_\d.*max_reference_kl is 0.05"
        ) as error:
            trainer.train()
        assert 1 < trainer.updates < 8
        lines = (tmp_path / "progress.json").read_text().splitlines()
        logged = [json.loads(line) for line in lines]
        kl = [max(line.get(f"agent_{k}/turn_1/reference_kl", 0) for k in (0, 1)) for line in logged]
        assert kl[-1] > 0.05
        assert max(kl[:-1]) <= 0.05
        assert any("checkpoints" in note for note in error.value.__notes__)

    def test_below_the_bound_nothing_happens(self) -> None:
        trainer = make_trainer("maac", reference_kl_enabled=True, max_reference_kl=1e6)
        trainer.train()
        assert trainer.updates == 1


def test_a_run_that_learns_is_silent() -> None:
    """The reward is for one word: from random words to that one, and none of the warnings."""
    words = ("go", "x", "y", "z", "a", "b", "c")
    models = [tiny_model(words, seed=seed, n_layer=1, n_embd=16) for seed in range(4)]
    rewards: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make_trainer(
            "separate",
            agents=[model for model, _ in models[:2]],
            tokenizer=models[0][1],
            critics=[model for model, _ in models[2:]],
            reward_func=lambda first, second: [
                [float(said == "a") for said in both] for both in zip(first, second, strict=True)
            ],
            train_dataset=rows(32),
            rollout_buffer_size=32,
            num_train_epochs=30,
            agent_learning_rate=3e-2,
            metrics_callback=lambda samples: rewards.append(samples[0].reward) or {},
            reference_kl_enabled=True,
            reference_kl_coef=0.0,
            max_new_tokens=1,
        )
        trainer.train()
    assert sum(rewards[:64]) / 64 < 0.3
    assert sum(rewards[-64:]) / 64 > 0.9
    ranges = trainer.watch.returns.ranges
    assert ranges == {"agent_0/turn_1": [0.0, 1.0], "agent_1/turn_1": [0.0, 1.0]}
    entropy = next(w for w in trainer.watch.watchers if w.name == "entropy")
    assert entropy.seen_first > 2
