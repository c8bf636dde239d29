"""Guidance in the actors' loss of actor-attention-critic, in each of its forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marlogue.algorithms.aac_actors import ActorLoss
from marlogue.algorithms.aac_losses import masked_mean
from marlogue.algorithms.aac_rows import Asked, Preparation, rows_of_transitions
from tests.algorithms.test_aac_update import B, N, config, made, transitions
from tests.support.teams import seeded


def loss_of(guidance, weight, *, told=False, discrete=True, **changes):
    """The actors' loss, the batch's rows and the networks; draws begin at seed 3."""
    args = config(**changes)
    team, networks = made(args, discrete)
    rows = rows_of_transitions(networks, transitions(team, guidance=guidance), Preparation())
    found = ActorLoss(args, networks, seeded(3))(rows, Asked(None, rows.present), weight, told)
    return *found, rows, networks


def gradients_of(loss, networks):
    return torch.autograd.grad(loss, list(networks.actors.parameters()), allow_unused=True)


def normal(*shape):
    return torch.randn(*shape, generator=seeded(1))


class TestContinuous:
    def test_each_agent_is_led_alike_whether_rewards_are_shared(self):
        """With w = 1 nothing of Q is left, and the rest does not ask whose rewards are whose."""
        found = []
        for sharing in ("own", "mean"):
            loss, _, _, networks = loss_of(
                normal(B, N, 2), 1.0, discrete=False, reward_sharing=sharing
            )
            found.append(gradients_of(loss, networks))
        for own, shared in zip(*found, strict=True):
            if own is not None:
                torch.testing.assert_close(own, shared)

    def test_by_hand(self):
        guidance = normal(B, N, 2)
        loss, _, rows, _ = loss_of(guidance, 0.25, discrete=False)
        unguided, _, _, _ = loss_of(None, 0.25, discrete=False)
        actions, logs = rows.policy(None).sample(seeded(3))
        entropy = 0.1 * masked_mean(logs, rows.present)
        learned = unguided - entropy
        kept = guidance[rows.present]
        steep = kept.square().sum(-1).mean().sqrt()
        lead = (kept * actions[rows.present]).sum(-1).mean() / steep
        torch.testing.assert_close(loss, entropy + 0.75 * learned - 0.25 * lead)

    def test_cosine(self):
        """Guidance that is what the critic says already: 1; the opposite: -1."""
        team, networks = made(config(), discrete=False)
        rows = rows_of_transitions(networks, transitions(team), Preparation())
        actions = rows.policy(None).sample(seeded(3))[0].detach().requires_grad_()
        q = networks.critic(rows.seen, actions.detach(), rows.attending, own_actions=actions)
        (slopes,) = torch.autograd.grad(q.sum(), actions)
        for sign in (1, -1):
            _, told, _, _ = loss_of(sign * slopes, 0.5, told=True, discrete=False)
            assert float(told["guidance/cosine"]) == pytest.approx(sign, abs=1e-4)
            assert float(told["guidance/spread"]) > 0


class TestDiscrete:
    def test_advantages_of_what_was_done_leave_the_entropy_alone(self):
        guidance = normal(B, N)
        loss, _, rows, _ = loss_of(guidance, 1.0)
        policy = rows.policy(None)
        probs, logs = policy.probs, policy.log_probs
        entropy = 0.1 * masked_mean((probs * logs.clamp(min=-1e6)).sum(-1), rows.present)
        kept = guidance[rows.present]
        gains = (kept - kept.mean()) / kept.std(correction=0)
        taken = (policy.log_prob(rows.actions)[rows.present] * gains).mean()
        torch.testing.assert_close(loss, entropy - taken)

    def test_with_a_shared_value_guidance_stays_each_agents_own(self):
        """With w = 1 an agent's score is weighed by its own guidance, not by the team's."""
        guidance = normal(B, N, 3)
        loss, _, rows, networks = loss_of(guidance, 1.0, actor_gradient="shared_value")
        policy = rows.policy(None)
        actions, logs = policy.sample(seeded(3))
        exists = networks.team.action_mask() & rows.available
        there = rows.present.numpy()
        spread, gains, scores = [], np.zeros((B, N)), []
        for b, i in zip(*np.nonzero(there), strict=True):
            kept = guidance[b, i][exists[b, i]]
            spread.append(float(kept.var(correction=0)))
            mean = float((policy.probs.detach()[b, i] * guidance[b, i]).sum())
            gains[b, i] = float(guidance[b, i, actions[b, i]]) - mean
        scale = np.sqrt(np.mean(spread))
        for b, i in zip(*np.nonzero(there), strict=True):
            log = float(logs[b, i].detach())
            scores.append(-log * (gains[b, i] / scale - 0.1 * log))
        assert float(loss.detach()) == pytest.approx(np.mean(scores), rel=1e-4)

    def test_normalised_values_do_not_jump_when_the_weight_gets_to_zero(self):
        guidance = normal(B, N, 3)
        almost, _, _, _ = loss_of(guidance, 1e-7, advantage_normalization=True)
        nothing, _, _, _ = loss_of(guidance, 0.0, advantage_normalization=True)
        assert float(almost) == pytest.approx(float(nothing), rel=1e-3)
