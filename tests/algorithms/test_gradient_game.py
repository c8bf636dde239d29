"""A two-agent game of one step whose exact gradient is known: every estimator's mean agrees with
it, over all joint actions with their probabilities, and so is its variance exact.

Objective: E R(a) - alpha sum_i E log pi_i(a_i). Variances are sums over all logits (or means) of
the variance of one sample's gradient.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from marlogue.algorithms import aac_losses as losses
from marlogue.algorithms.guidance import logit_gradients, mixed_values
from tests.support.teams import joint_actions

ALPHA = 0.3
LOGITS = torch.tensor([[0.2, -0.5, 0.9], [-0.3, 0.4, 0.1]], dtype=torch.float64)
PAYOFF = torch.tensor([[5.0, 1.0, 2.0], [0.0, 7.0, 3.0], [4.0, 2.0, 6.0]], dtype=torch.float64)
JOINT = torch.cartesian_prod(torch.arange(3), torch.arange(3))  # [9, 2]
WEIGHTS = (LOGITS[0].softmax(-1)[:, None] * LOGITS[1].softmax(-1)).flatten()  # [9]


def exact_gradient() -> Tensor:
    """[2, 3] of the objective by the logits, from its definition."""
    logits = LOGITS.clone().requires_grad_()
    pi = logits.softmax(-1)
    gain = (pi[0][:, None] * pi[1] * PAYOFF).sum()
    gain = gain - ALPHA * (pi * pi.log()).sum()
    return torch.autograd.grad(gain, logits)[0]


def own_values(joint: Tensor, payoff: Tensor = PAYOFF) -> Tensor:
    """[2, 3], Q_i(o, (a, a_-i)) for all own actions."""
    return torch.stack([payoff[:, joint[1]], payoff[joint[0], :]])


def loss_of(name: str, log_probs: Tensor, joint: Tensor, payoff: Tensor) -> Tensor:
    """The loss of one sample [1, 2, ...]."""
    q = own_values(joint, payoff)[None]
    if name == "expected":
        return losses.expected_actor_loss(log_probs, q, ALPHA)
    if name == "counterfactual":
        return losses.counterfactual_actor_loss(log_probs, joint[None], q, ALPHA)
    taken = losses.taken(log_probs, joint[None])
    return losses.shared_value_actor_loss(taken, payoff[joint[0], joint[1]][None], ALPHA)


def moments(name: str, payoff: Tensor = PAYOFF) -> tuple[Tensor, float]:
    """Mean gradient [2, 3] and total variance of one sample, exactly."""
    samples = []
    for joint in JOINT:
        logits = LOGITS.clone().requires_grad_()
        loss = loss_of(name, logits.log_softmax(-1)[None], joint, payoff)
        # The loss is a mean over two agents, the objective is not divided.
        samples.append(-2 * torch.autograd.grad(loss, logits)[0])
    gradients = torch.stack(samples)
    mean = (WEIGHTS[:, None, None] * gradients).sum(0)
    variance = (WEIGHTS * (gradients - mean).square().sum((1, 2))).sum().item()
    return mean, variance


@pytest.mark.parametrize("name", ["expected", "counterfactual", "shared_value"])
def test_the_mean_is_the_exact_gradient(name):
    mean, variance = moments(name)
    print(f"{name}: variance {variance:.4f}, squared norm {exact_gradient().square().sum():.4f}")
    assert torch.allclose(mean, exact_gradient(), atol=1e-12)


def test_more_credit_means_less_variance(record_property):
    variances = {name: moments(name)[1] for name in ("expected", "counterfactual", "shared_value")}
    for name, variance in variances.items():
        record_property(f"variance_{name}", variance)
    assert variances["expected"] * 2 < variances["counterfactual"]
    assert variances["counterfactual"] * 2 < variances["shared_value"]


def test_the_expected_form_has_no_noise_where_agents_do_not_interact():
    """R = u(a_1) + v(a_2): what the other does moves all own values alike, and cancels."""
    u = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    additive = u[:, None] - 3 * u.flip(0)
    assert moments("expected", additive)[1] == pytest.approx(0.0, abs=1e-20)
    assert moments("counterfactual", additive)[1] > 1.0


def test_closed_form_gradients_are_those_of_the_losses():
    """logit_gradients against autograd, for both forms and mixed with guidance."""
    guidance = torch.tensor([[[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]]], dtype=torch.float64)
    joint = JOINT[5]
    mixed = mixed_values(own_values(joint)[None], guidance, 0.4)
    for actions in (None, joint[None]):
        logits = LOGITS[None].clone().requires_grad_()
        log_probs = logits.log_softmax(-1)
        if actions is None:
            loss = losses.expected_actor_loss(log_probs, mixed, 0.0)
        else:
            loss = losses.counterfactual_actor_loss(log_probs, actions, mixed, 0.0)
        wanted = -2 * torch.autograd.grad(loss, logits)[0]
        found = logit_gradients(LOGITS.log_softmax(-1)[None], mixed, actions)
        assert torch.allclose(found, wanted, atol=1e-12)


# Continuous actions: a_i = m_i + s_i e_i, R(a) = -(a_1 + a_2 - 1)^2 - a_1^2 / 2 + a_2.

MEANS, LOG_SPREADS = (0.3, -0.4), (-1.0, -0.5)


def reward(first: Tensor, second: Tensor) -> Tensor:
    return -(first + second - 1).square() - first.square() / 2 + second


def exact_continuous() -> Tensor:
    """[2, 2] by means and log spreads: E R = -(m1+m2-1)^2 - s1^2 - s2^2 - (m1^2 + s1^2)/2 + m2 and
    the entropy of each agent, log s + constant."""
    (m1, m2), (s1, s2) = MEANS, (math.exp(x) for x in LOG_SPREADS)
    total = m1 + m2 - 1
    by_means = [-2 * total - m1, -2 * total + 1]
    by_spreads = [-3 * s1**2 + ALPHA, -2 * s2**2 + ALPHA]
    return torch.tensor([by_means, by_spreads], dtype=torch.float64)


@pytest.mark.parametrize("team_reward", [True, False])
def test_pathwise_gradients_agree_with_the_exact_one(team_reward):
    """Means and variances by Gauss-Hermite quadrature, exact for these polynomials."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    samples, probabilities = [], []
    for e1, w1 in zip(nodes, weights, strict=True):
        for e2, w2 in zip(nodes, weights, strict=True):
            params = torch.tensor([MEANS, LOG_SPREADS], dtype=torch.float64, requires_grad=True)
            noise = torch.tensor([e1, e2], dtype=torch.float64)
            actions = (params[0] + params[1].exp() * noise)[None, :, None]
            log_probs = (-params[1] - noise.square() / 2)[None]
            own, others = losses.own_and_others(actions, team_reward)
            joint = joint_actions(own, others)[..., 0]
            q = reward(joint[..., 0], joint[..., 1])
            if team_reward:
                loss = losses.team_pathwise_actor_loss(q.mean(-1), log_probs, ALPHA)
            else:
                loss = losses.pathwise_actor_loss(q, log_probs, ALPHA)
            samples.append(-2 * torch.autograd.grad(loss, params)[0])
            probabilities.append(w1 * w2)
    gradients = torch.stack(samples)
    weight = torch.tensor(probabilities)[:, None, None]
    mean = (weight * gradients).sum(0)
    variance = (weight * (gradients - mean).square()).sum().item()
    print(
        f"pathwise: variance {variance:.4f}, squared norm {exact_continuous().square().sum():.4f}"
    )
    assert torch.allclose(mean, exact_continuous(), atol=1e-10)
