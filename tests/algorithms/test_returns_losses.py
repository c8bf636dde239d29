"""Targets, advantages, returns and losses against numbers worked out by hand."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch

from marlogue.agents import Completion, LLMPolicy, k3, sum_by_row
from marlogue.algorithms.actor import Actor
from marlogue.algorithms.groups import Group, make_groups, minibatches
from marlogue.algorithms.losses import actor_loss, clipped_value_loss, value_loss
from marlogue.algorithms.metrics import sample_metrics, value_metrics
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.returns import expected_returns, normalized, td_target
from marlogue.algorithms.sample import Joint, Sample
from tests.support.cf import cf_model


def sample(
    *, ids=(0,), prompt_ids=(3, 4), turn=0, reward=0.0, value=math.nan, truncated=False, **fields
) -> Sample:
    action = Completion(prompt_ids=prompt_ids, ids=tuple(ids), text="", truncated=truncated)
    joint = Joint(prompts=("q r", "q"), completions=("", ""))
    made = Sample("agent_0", 0, turn, 0, 0, {}, joint, action, reward=reward, value=value)
    for name, field in fields.items():
        setattr(made, name, field)
    return made


def group(samples) -> Group:
    return Group(0, 0, list(samples), [list(samples)])


class TestTargets:
    def test_a_terminal_turn_has_its_reward_as_target(self):
        assert td_target(1.0, None, 0.5) == 1.0

    def test_other_turns_bootstrap(self):
        assert td_target(1.0, 4.0, 0.5) == 3.0

    def test_nothing_comes_back_with_a_discount_of_zero(self):
        assert td_target(1.0, 4.0, 0.0) == 1.0

    @pytest.mark.parametrize(("truncated", "wanted"), [(False, [3.0, 1.0]), (True, [3.0, 3.0])])
    def test_rewards_1_1_and_a_next_value_of_4(self, truncated, wanted):
        """C25 for one-step targets: V is 4 everywhere, discount 1/2."""
        second = sample(reward=1.0, value=4.0, turn=1)
        first = sample(reward=1.0, value=4.0, next=second)
        if truncated:
            second.next = sample(value=4.0, turn=2, is_final_observation=True)
        one = group([first, second])
        one.set_targets(0.5)
        assert [s.target for s in one.samples] == wanted

    def test_an_episode_that_ends_early_does_not_look_ahead(self):
        ended = sample(reward=2.0, value=7.0)
        goes_on = sample(reward=2.0, value=7.0, next=sample(value=10.0, turn=1))
        both = group([ended, goes_on])
        both.set_targets(0.9)
        assert [s.target for s in both.samples] == [2.0, pytest.approx(11.0)]

    def test_delta_is_target_minus_value(self):
        one = group([sample(reward=2.0, value=0.5)])
        one.set_targets(1.0)
        one.set_advantages(normalize=False)
        assert one.samples[0].advantage == 1.5


class TestNormalisation:
    def test_population_deviation(self):
        got = normalized(torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64))
        sigma = math.sqrt(14 / 4)  # mean 3, squares 4, 1, 0, 9
        assert got.tolist() == pytest.approx([-2 / sigma, -1 / sigma, 0.0, 3 / sigma])

    def test_a_single_advantage_stays(self):
        """C23."""
        assert normalized(torch.tensor([3.0])).tolist() == [3.0]

    def test_equal_advantages_are_zero(self):
        assert normalized(torch.full((4,), 2.5)).tolist() == [0.0] * 4

    def test_the_divisor_is_at_least_a_millionth(self):
        got = normalized(torch.tensor([0.0, 2e-9], dtype=torch.float64))
        assert got.tolist() == pytest.approx([-1e-3, 1e-3])

    def test_a_group_is_normalised_as_a_whole_however_it_is_cut(self):
        values = [0.0, 1.0, 2.0, 5.0]
        samples = [sample(reward=v, value=0.0) for v in values]
        one = Group(0, 0, samples, [samples[:1], samples[1:]])
        one.set_targets(1.0)
        one.set_advantages(normalize=True)
        sigma = math.sqrt((4 + 1 + 0 + 9) / 4)
        assert [s.advantage for s in samples] == pytest.approx([(v - 2) / sigma for v in values])

    def test_a_group_of_one_learns_from_its_error(self):
        one = group([sample(reward=3.0, value=0.0)])
        one.set_targets(1.0)
        one.set_advantages(normalize=True)
        assert one.samples[0].advantage == 3.0


class TestReturns:
    def test_from_each_turn_on_undiscounted(self):
        """C59: rewards 1, 0, 2 of one agent and 1 of another."""
        assert expected_returns([1.0, 0.0, 2.0]) == [3.0, 2.0, 2.0]
        assert expected_returns([1.0]) == [1.0]

    def test_of_nothing(self):
        assert expected_returns([]) == []

    def test_the_figure_leaves_abstentions_out(self):
        """C42: rewards 1, none, 3 have the mean 2."""
        samples = [
            sample(reward=1.0, return_=1.0),
            sample(reward=0.0, return_=0.0, abstained=True),
            sample(reward=3.0, return_=3.0),
        ]
        figures = sample_metrics(samples)
        assert figures["reward_mean"] == figures["expected_return"] == 2.0
        assert figures["abstained"] == 1.0


class TestLosses:
    def test_actor(self):
        log_probs = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
        loss = actor_loss(log_probs, torch.tensor([2.0, -1.0, 0.5]), 3)
        assert loss.item() == pytest.approx(-(-2.0 + 2.0 - 2.0) / 3)
        loss.backward()
        assert log_probs.grad.tolist() == pytest.approx([-2 / 3, 1 / 3, -0.5 / 3])

    def test_value(self):
        values = torch.tensor([1.0, 3.0], requires_grad=True)
        loss = value_loss(values, torch.tensor([2.0, 0.0]), 2)
        assert loss.item() == 5.0
        loss.backward()
        assert values.grad.tolist() == [-1.0, 3.0]

    @pytest.mark.parametrize(
        ("value", "old", "target", "loss", "slope"),
        [
            (0.6, 0.5, 1.0, 0.16, -0.8),  # within the range: the plain square
            (0.9, 0.5, 1.0, 0.09, 0.0),  # moved on towards y: (0.7 - 1)^2 is more, and is flat
            (0.1, 0.5, 1.0, 0.81, -1.8),  # moved away: the plain square is more
            (2.0, 0.5, 1.0, 1.0, 2.0),  # overshot: the plain square, 1, beats (0.7 - 1)^2
            (1.2, 0.5, 1.0, 0.09, 0.0),  # overshot by less than is clipped
        ],
    )
    def test_clipped_value(self, value, old, target, loss, slope):
        got = torch.tensor([value], requires_grad=True)
        error = clipped_value_loss(got, torch.tensor([old]), torch.tensor([target]), 0.2, 1)
        error.backward()
        assert error.item() == pytest.approx(loss, abs=1e-6)
        assert got.grad.item() == pytest.approx(slope, abs=1e-6)

    def test_parts_of_a_minibatch_add_up_to_its_mean(self):
        values, targets = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2.0, 0.0, 5.5])
        parts = value_loss(values[:1], targets[:1], 3) + value_loss(values[1:], targets[1:], 3)
        assert parts.item() == pytest.approx(value_loss(values, targets, 3).item())
        old = torch.zeros(3)
        whole = clipped_value_loss(values, old, targets, 0.2, 3)
        halves = [
            clipped_value_loss(values[s], old[s], targets[s], 0.2, 3)
            for s in (slice(0, 2), slice(2, 3))
        ]
        assert sum(halves).item() == pytest.approx(whole.item())

    def test_no_gradient_flows_into_the_bootstrap(self):
        """C28: V(s) = w s, w = 1/2, s = 1 -> s' = 2, r = 1: dL/dw is -3, not +3."""
        w = torch.tensor(0.5, requires_grad=True)
        first = sample(reward=1.0, value=(w * 1).item())
        first.next = sample(value=(w * 2).item(), turn=1)
        one = group([first])
        one.set_targets(1.0)
        value_loss((w * 1).reshape(1), torch.tensor([first.target]), 1).backward()
        assert w.grad.item() == pytest.approx(-3.0)


class TestK3:
    def test_by_hand(self):
        policy, reference = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.5]).log()
        wanted = [0.5 - math.log(0.5) - 1, 2.0 - math.log(2.0) - 1]
        assert k3(policy, reference).tolist() == pytest.approx(wanted)

    def test_exactly_zero_where_they_agree(self):
        same = torch.tensor([-0.1, -7.0, -90.0])
        assert k3(same, same.clone()).tolist() == [0.0, 0.0, 0.0]

    def test_expectation_is_the_divergence(self):
        """Averaged over the policy's own samples k3 is KL(policy || reference), exactly."""
        p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
        wanted = (p * (p / q).log()).sum().item()
        assert (p * k3(p.log(), q.log())).sum().item() == pytest.approx(wanted, abs=1e-6)

    def test_summed_over_the_tokens_of_each_completion(self):
        rows = torch.tensor([0, 0, 2])
        assert sum_by_row(torch.tensor([1.0, 2.0, 4.0]), rows, 3).tolist() == [3.0, 0.0, 4.0]


class TestPenalty:
    def actor(self, p, reference=None, temperature=1.0, micro_batch_size=None):
        policy = LLMPolicy(*cf_model(p))
        frozen = None if reference is None else LLMPolicy(*cf_model(reference))
        return Actor(
            policy,
            Optimizer(policy.model.parameters(), 1e-3),
            temperature=temperature,
            micro_batch_size=micro_batch_size,
            compute=nullcontext,
            reference=frozen,
        )

    def test_reward_less_the_estimate(self):
        """Tokens A, B, end; policy (.5, .25, .25), reference (.25, .25, .5)."""
        one = sample(ids=(0, 1, 2), reward=2.0)
        self.actor((0.5, 0.25, 0.25), (0.25, 0.25, 0.5)).penalize([one], 0.1)
        kl = (0.5 - math.log(0.5) - 1) + 0.0 + (2.0 - math.log(2.0) - 1)
        assert one.reference_kl == pytest.approx(kl, abs=1e-6)
        assert one.penalty == pytest.approx(0.1 * kl, abs=1e-6)
        assert one.reward == 2.0
        Group(0, 0, [one], [[one]]).set_targets(1.0)
        assert one.target == pytest.approx(2.0 - 0.1 * kl, abs=1e-6)

    def test_reference_is_scored_at_the_same_temperature(self):
        """C07: at T = 1/2 the policy is (2/3, 1/6, 1/6), the reference (1/6, 1/6, 2/3)."""
        one = sample(ids=(0,), reward=0.0)
        self.actor((0.5, 0.25, 0.25), (0.25, 0.25, 0.5), 0.5).penalize([one], 1.0)
        assert one.reference_kl == pytest.approx(0.25 - math.log(0.25) - 1, abs=1e-6)
        assert one.log_prob == pytest.approx(math.log(2 / 3), abs=1e-6)

    def test_neither_prompt_nor_padding_counts(self):
        """C18, C20: completions of 1 and 4 tokens, and words of probability 0, in one batch."""
        short, long = sample(ids=(2,)), sample(ids=(0, 0, 1, 2), prompt_ids=(5, 5, 5, 5, 5))
        self.actor((0.5, 0.25, 0.25), (0.25, 0.25, 0.5), micro_batch_size=2).penalize(
            [short, long], 1.0
        )
        a, end = 0.5 - math.log(0.5) - 1, 2.0 - math.log(2.0) - 1
        assert short.reference_kl == pytest.approx(end, abs=1e-6)
        assert long.reference_kl == pytest.approx(2 * a + end, abs=1e-6)
        assert short.log_prob == pytest.approx(math.log(0.25), abs=1e-6)

    def test_gradient_of_the_closed_form(self):
        """d loss / d wte[:, 0] = -mean adv (count - n p); AdamW's first step goes against it."""
        actor = self.actor((0.5, 0.25, 0.25))
        samples = [sample(ids=(0, 1, 2)), sample(ids=(0,))]
        samples[0].advantage, samples[1].advantage = 2.0, -1.0
        seen = {}
        weight = actor.policy.model.transformer.wte.weight
        weight.register_post_accumulate_grad_hook(lambda p: seen.update(grad=p.grad[:, 0].clone()))
        figures = actor.step(samples)
        wanted = [
            -(2.0 * (1 - 1.5) - 1.0 * (1 - 0.5)) / 2,
            -(2.0 * (1 - 0.75) - 1.0 * (0 - 0.25)) / 2,
            -(2.0 * (1 - 0.75) - 1.0 * (0 - 0.25)) / 2,
            *(0.0, 0.0, 0.0),
        ]
        assert seen["grad"].tolist() == pytest.approx(wanted, abs=1e-6)
        log_a, log_b = math.log(0.5), math.log(0.25)
        loss = -(2.0 * (log_a + 2 * log_b) - 1.0 * log_a) / 2
        assert figures["actor_loss"] == pytest.approx(loss, abs=1e-6)
        assert figures["entropy"] == pytest.approx(-(2 * log_a + 2 * log_b) / 4, abs=1e-6)
        assert samples[0].log_prob == pytest.approx(log_a + 2 * log_b, abs=1e-6)


class TestFigures:
    def known(self, values, targets):
        return [
            sample(value=v, target=t, return_=0.0) for v, t in zip(values, targets, strict=True)
        ]

    def test_explained_variance(self):
        figures = value_metrics(self.known([1.0, 2.0, 3.0], [1.0, 2.0, 6.0]))
        # errors 0, 0, 3 have the variance 2; targets 14/3
        assert figures["explained_variance"] == pytest.approx(1 - 2 / (14 / 3))
        assert figures["td_error_mean"] == pytest.approx(1.0)
        assert figures["td_error_std"] == pytest.approx(math.sqrt(2))

    def test_perfect_and_useless_values(self):
        perfect = value_metrics(self.known([1.0, 2.0], [1.0, 2.0]))
        assert perfect["explained_variance"] == 1.0
        useless = value_metrics(self.known([5.0, 5.0], [1.0, 2.0]))
        assert useless["explained_variance"] == 0.0

    def test_targets_that_do_not_vary_explain_nothing(self):
        figures = value_metrics(self.known([1.0, 2.0], [3.0, 3.0]))
        assert "explained_variance" not in figures
        assert figures["td_error_mean"] == 1.5

    def test_a_single_sample(self):
        figures = value_metrics(self.known([1.0], [3.0]))
        assert "explained_variance" not in figures
        assert figures["td_error_std"] == 0.0

    def test_every_figure_is_finite(self):
        figures = sample_metrics([sample(abstained=True)])
        assert all(math.isfinite(value) for value in figures.values())

    def test_share_of_cut_completions_and_their_length(self):
        figures = sample_metrics([sample(ids=(0, 1, 0), truncated=True), sample(ids=(2,))])
        assert figures["truncated_share"] == 0.5
        assert figures["completion_length"] == 2.0


class TestMinibatches:
    def test_every_sample_once_and_the_last_may_be_smaller(self):
        samples = [sample(turn=k) for k in range(7)]
        cut = minibatches(samples, 3, (0, 1, 2))
        assert [len(batch) for batch in cut] == [3, 3, 1]
        assert sorted(s.turn_idx for batch in cut for s in batch) == list(range(7))

    def test_shuffled_by_name(self):
        def order(*stream):
            samples = [sample(turn=k) for k in range(20)]
            return [s.turn_idx for batch in minibatches(samples, 20, stream) for s in batch]

        assert order(1, 2) == order(1, 2)
        assert order(1, 2) != order(1, 3)
        assert order(1, 2) != list(range(20))

    def test_groups_are_turns_in_order(self):
        turns = (1, 0, 2, 0)
        samples = [sample(turn=t) for t in turns]
        groups = make_groups(0, samples, 8, (0,))
        assert [g.turn_idx for g in groups] == [0, 1, 2]
        assert [g.samples for g in groups] == [
            [samples[1], samples[3]],
            [samples[0]],
            [samples[2]],
        ]
