"""Targets and losses of actor-attention-critic against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from marlogue.algorithms import aac_losses as losses
from marlogue.algorithms import aac_targets as targets
from tests.support.teams import joint_actions

NAN, INF = math.nan, math.inf


def logs(*rows):
    """Log-probabilities in float64; 0 becomes minus infinity."""
    return torch.tensor(rows, dtype=torch.float64).log()


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


class TestTargets:
    def test_values_of_a_policy(self):
        """pi = (1/4, 3/4), Q = (8, 4): 5; with alpha = 2 and H = 0.562335: 6.124670."""
        q, pi = doubles([8.0, 4.0]), logs(0.25, 0.75)
        assert targets.expected_value(q, pi, 0.0).item() == pytest.approx(5.0)
        assert targets.expected_value(q, pi, 2.0).item() == pytest.approx(6.124670289, abs=1e-8)
        taken = targets.sampled_value(q[0], pi[0], 2.0)
        assert taken.item() == pytest.approx(8 + 2 * math.log(4))

    def test_an_unavailable_action_counts_for_nothing(self):
        q = doubles([8.0, 4.0, NAN])
        value = targets.expected_value(q, logs(0.25, 0.75, 0.0), 2.0)
        assert value.item() == pytest.approx(6.124670289, abs=1e-8)

    def test_termination_ends_and_truncation_goes_on(self):
        """gamma = 0.5; agent 0 goes on (or is cut off, which is the same), agent 1 terminated."""
        y = targets.soft_td_targets(
            doubles([[1.0, 1.0]]), doubles([[0.5, 0.0]]), doubles([[4.0, INF]])
        )
        assert y.tolist() == [[3.0, 1.0]]

    def test_targets_have_no_graph(self):
        values = doubles([[4.0]]).requires_grad_()
        y = targets.soft_td_targets(doubles([[1.0]]), doubles([[0.5]]), values)
        assert not y.requires_grad

    def test_priorities_are_means_over_who_is_there(self):
        q, y = doubles([[1.0, 5.0, 0.0], [0, 0, 0]]), doubles([[2.0, 2.0, NAN], [NAN, NAN, NAN]])
        mask = torch.tensor([[True, True, False], [False, False, False]])
        assert targets.priorities(q, y, mask).tolist() == [2.0, 0.0]
        assert targets.priorities(q[:1, :2], y[:1, :2]).tolist() == [2.0]


class TestNSteps:
    rewards = doubles([[[1.0], [2.0], [4.0], [8.0]]])
    values = doubles([[[100.0], [200.0], [400.0], [800.0]]])
    on = doubles([[[0.5], [0.5], [0.5], [0.5]]])

    def targets(self, n, discounts=None, stops=()):
        marks = torch.tensor([[step in stops for step in range(4)]])
        discounts = self.on if discounts is None else discounts
        return targets.n_step_targets(self.rewards, discounts, self.values, marks, n).flatten()

    def test_one_step(self):
        assert self.targets(1).tolist() == [51.0, 102.0, 204.0, 408.0]

    def test_two_steps_are_shorter_at_the_end(self):
        """1 + 2/2 + 200/4, 2 + 4/2 + 400/4, 4 + 8/2 + 800/4, 8 + 800/2."""
        assert self.targets(2).tolist() == [52.0, 104.0, 208.0, 408.0]

    def test_more_steps_than_there_are(self):
        """From the first: 1 + 2/2 + 4/4 + 8/8 + 800/16."""
        assert self.targets(9)[0].item() == 54.0

    def test_a_truncation_takes_over_the_value_there(self):
        """The episode is cut off after step 1: 1 + 2/2 + 200/4 for any n of 2 or more."""
        assert self.targets(3, stops=(1,)).tolist() == [52.0, 102.0, 208.0, 408.0]

    def test_a_termination_ends_the_sum(self):
        discounts = doubles([[[0.5], [0.0], [0.5], [0.5]]])
        assert self.targets(3, discounts)[:2].tolist() == [2.0, 2.0]

    def test_zero_steps_are_refused(self):
        with pytest.raises(ValueError, match=r"n \(0\) must be at least 1"):
            self.targets(0)

    def test_random_sequences_against_a_loop(self):
        random = torch.Generator().manual_seed(0)
        B, T, N, n, gamma = 5, 11, 3, 4, 0.9
        rewards, values = (torch.rand(B, T, N, generator=random).double() for _ in range(2))
        ended = torch.rand(B, T, N, generator=random) < 0.15
        stops = torch.rand(B, T, generator=random) < 0.15
        discounts = gamma * (~ended).double()
        found = targets.n_step_targets(rewards, discounts, values, stops, n)
        for b in range(B):
            for t in range(T):
                for i in range(N):
                    y, factor = 0.0, 1.0
                    for k in range(t, min(t + n, T)):
                        y += factor * rewards[b, k, i].item()
                        factor *= gamma
                        if ended[b, k, i]:
                            break
                        if stops[b, k] or k in (t + n - 1, T - 1):
                            y += factor * values[b, k, i].item()
                            break
                    assert found[b, t, i].item() == pytest.approx(y, abs=1e-12)


class TestCriticLoss:
    def test_by_hand(self):
        """Errors 1, 3 and one of an absent agent: (1 + 9) / 2; weights 1 and 0.5 on two samples."""
        q = doubles([[1.0, 5.0, 7.0]]).requires_grad_()
        y = doubles([[2.0, 2.0, NAN]])
        mask = torch.tensor([[True, True, False]])
        loss = losses.critic_loss(q, y, mask)
        loss.backward()
        assert loss.item() == 5.0
        assert q.grad.tolist() == [[-1.0, 3.0, 0.0]]
        weighted = losses.critic_loss(
            doubles([[1.0], [5.0]]), doubles([[2.0], [2.0]]), weights=doubles([1.0, 0.5])
        )
        assert weighted.item() == (1 + 4.5) / 2

    def test_huber_counts_large_errors_linearly(self):
        """delta = 1: error 0.5 gives 0.25, error 3 gives 2 * 3 - 1 = 5."""
        loss = losses.critic_loss(doubles([[0.5, 3.0]]), doubles([[0.0, 0.0]]), huber=1.0)
        assert loss.item() == (0.25 + 5) / 2

    def test_nobody_is_there(self):
        loss = losses.critic_loss(doubles([[1.0]]), doubles([[2.0]]), torch.tensor([[False]]))
        assert loss.item() == 0.0


class TestDiscreteActors:
    q = doubles([[[8.0, 4.0]]])
    pi = (0.25, 0.75)

    def test_advantages(self):
        """8 - 5 and 4 - 5."""
        assert losses.advantages(self.q, logs(self.pi)[None]).tolist() == [[[3.0, -1.0]]]

    def test_expected_loss_and_its_gradient(self):
        """alpha = 0: -5; by the logits: -pi(a) A(a) = (-0.75, 0.75)."""
        logits = logs(self.pi)[None].requires_grad_()
        loss = losses.expected_actor_loss(logits.log_softmax(-1), self.q, 0.0)
        loss.backward()
        assert loss.item() == pytest.approx(-5.0)
        assert logits.grad.flatten().tolist() == pytest.approx([-0.75, 0.75])

    def test_expected_loss_with_entropy(self):
        loss = losses.expected_actor_loss(logs(self.pi)[None], self.q, 2.0)
        assert loss.item() == pytest.approx(-6.124670289, abs=1e-8)

    def test_counterfactual_loss_and_its_gradient(self):
        """Action 0: -log(1/4) * 3; by the logits: -(1[a] - pi(a)) * 3 = (-2.25, 2.25)."""
        logits = logs(self.pi)[None].requires_grad_()
        loss = losses.counterfactual_actor_loss(
            logits.log_softmax(-1), torch.tensor([[0]]), self.q, 0.0
        )
        loss.backward()
        assert loss.item() == pytest.approx(3 * math.log(4))
        assert logits.grad.flatten().tolist() == pytest.approx([-2.25, 2.25])

    def test_shared_value_loss(self):
        """-(log 1/4 * (10 + 2 log 4) + log 3/4 * (10 - 2 log 3/4)) / 2."""
        taken = torch.tensor([[0.25, 0.75]]).double().log()
        loss = losses.shared_value_actor_loss(taken, doubles([10.0]), 2.0)
        four, most = math.log(4), math.log(0.75)
        assert loss.item() == pytest.approx(-(-four * (10 + 2 * four) + most * (10 - 2 * most)) / 2)

    @pytest.mark.parametrize("name", ["expected", "counterfactual"])
    def test_unavailable_actions_and_absent_agents_leave_finite_gradients(self, name):
        logits = torch.zeros(1, 2, 3, dtype=torch.float64, requires_grad=True)
        available = torch.tensor([[[True, True, False], [True, True, True]]])
        log_probs = logits.masked_fill(~available, -INF).log_softmax(-1)
        q = doubles([[[8.0, 4.0, NAN], [NAN, NAN, NAN]]])
        mask = torch.tensor([[True, False]])
        if name == "expected":
            loss = losses.expected_actor_loss(log_probs, q, 0.1, mask)
        else:
            actions = torch.tensor([[0, 0]])
            loss = losses.counterfactual_actor_loss(log_probs, actions, q, 0.1, mask)
        loss.backward()
        assert torch.isfinite(loss)
        assert logits.grad[0, 0].tolist() == pytest.approx([-1.0, 1.0, 0.0])
        assert logits.grad[0, 1].tolist() == [0.0, 0.0, 0.0]

    def test_no_gradient_reaches_the_critic(self):
        q = self.q.clone().requires_grad_()
        log_probs = logs(self.pi)[None].requires_grad_()
        alpha = doubles(0.5).requires_grad_()
        losses.expected_actor_loss(log_probs, q, alpha).backward()
        losses.counterfactual_actor_loss(log_probs, torch.tensor([[1]]), q, alpha).backward()
        assert q.grad is None
        assert alpha.grad is None


class TestContinuousActors:
    def test_gradients_of_both_kinds_of_reward(self):
        """Q_i = a_i * (sum of all a): own part a_i + sum, cross part of the others a_j."""
        actions = doubles([[[1.0], [2.0], [4.0]]]).requires_grad_()
        zeros = torch.zeros(1, 3, dtype=torch.float64)

        def q(team_reward):
            own, others = losses.own_and_others(actions, team_reward)
            joint = joint_actions(own, others)
            return own[..., 0] * joint[..., 0].sum(-1)

        losses.pathwise_actor_loss(q(False), zeros, 0.0).backward()
        assert (actions.grad.flatten() * -3).tolist() == pytest.approx([8.0, 9.0, 11.0])
        actions.grad = None
        losses.team_pathwise_actor_loss(q(True).sum(-1), zeros, 0.0).backward()
        assert (actions.grad.flatten() * -3).tolist() == pytest.approx([14.0, 14.0, 14.0])

    def test_a_shared_value_weighs_the_same_in_both(self):
        """When each Q_i is the team's value, both losses have one gradient, entropy included."""

        def gradient(team_reward):
            means = doubles([[[0.3], [-0.2]]]).requires_grad_()
            spreads = doubles([[0.5, 0.7]]).requires_grad_()
            actions = means + spreads[..., None]
            log_probs = -spreads.log()
            own, others = losses.own_and_others(actions, team_reward)
            joint = joint_actions(own, others)[..., 0]
            q = joint[..., 0] * 2 - (joint.sum(-1) - 1).square()
            if team_reward:
                loss = losses.team_pathwise_actor_loss(q.mean(-1), log_probs, 0.2)
            else:
                loss = losses.pathwise_actor_loss(q, log_probs, 0.2)
            return torch.cat([g.flatten() for g in torch.autograd.grad(loss, (means, spreads))])

        assert torch.allclose(gradient(True), gradient(False), atol=1e-12)

    def test_absent_agents_count_for_nothing(self):
        """One of three is absent: mean over two; the team's value is divided by two."""
        q, mask = doubles([[1.0, 3.0, NAN]]), torch.tensor([[True, True, False]])
        assert losses.pathwise_actor_loss(q, torch.zeros(1, 3), 0.0, mask).item() == -2.0
        loss = losses.team_pathwise_actor_loss(doubles([6.0]), doubles([[1.0, 2.0, 9]]), 2.0, mask)
        assert loss.item() == 2 * 1.5 - 6 / 2


class TestOthers:
    def test_temperature_falls_while_there_is_more_entropy_than_wanted(self):
        log_alpha = doubles(0.0).requires_grad_()
        losses.temperature_loss(log_alpha, doubles([[1.0, 2.0]]), 0.5).backward()
        assert log_alpha.grad.item() == 1.0

    def test_entropies(self):
        assert losses.entropy(logs(0.25, 0.75, 0.0)).item() == pytest.approx(0.5623351446)
        weights = doubles([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]).requires_grad_()
        found = losses.attention_entropy(weights)
        found.sum().backward()
        assert found.tolist() == pytest.approx([math.log(2), 0.0])
        assert torch.isfinite(weights.grad).all()

    def test_consistency_pulls_the_mix_only(self):
        team, mixed = doubles([3.0]).requires_grad_(), doubles([1.0]).requires_grad_()
        loss = losses.consistency_loss(team, mixed)
        loss.backward()
        assert loss.item() == 4.0
        assert team.grad is None
        assert mixed.grad.item() == -4.0
