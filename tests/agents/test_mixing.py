"""Mixing of the agents' values."""

from __future__ import annotations

import torch
from torch.nn.functional import elu, leaky_relu

from marlogue.agents import AttentionCritic, MonotonicMixer, SumMixer
from tests.support.teams import batch_of, seeded, team_of


def two_layers(network, x):
    hidden = leaky_relu(network.weights[0][0] @ x + network.biases[0][0])
    return network.weights[1][0] @ hidden + network.biases[1][0]


def test_sum_of_those_present():
    values = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    present = torch.tensor([[True, True, True], [True, False, True]])
    seen = torch.zeros(2, 3, 1)
    assert SumMixer()(values, seen).tolist() == [7.0, 7.0]
    assert SumMixer()(values, seen, present).tolist() == [7.0, 5.0]


@torch.no_grad()
def test_monotonic_against_loops():
    mixer = MonotonicMixer(3, embedding_size=4, hidden_size=5, generator=seeded(0)).double()
    seen = torch.randn(4, 3, 3, generator=seeded(1), dtype=torch.float64)
    values = torch.randn(4, 3, generator=seeded(2), dtype=torch.float64)
    present = torch.ones(4, 3, dtype=torch.bool)
    present[1, 0] = False
    present[2, 1:] = False
    out = mixer(values, seen, present)
    for b in range(4):
        here = [i for i in range(3) if present[b, i]]
        state = sum(seen[b, i] for i in here) / len(here)
        hidden = mixer.first_bias.weights[0][0] @ state + mixer.first_bias.biases[0][0]
        for i in here:
            weights = two_layers(mixer.first_weights, torch.cat([seen[b, i], state])).abs()
            hidden = hidden + weights * values[b, i]
        expected = elu(hidden) @ two_layers(mixer.second_weights, state).abs()
        expected = expected + two_layers(mixer.second_bias, state)[0]
        torch.testing.assert_close(out[b], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(mixer(values, seen)[0], out[0])


def test_monotonic_in_every_value_and_blind_to_absent_agents():
    mixer = MonotonicMixer(3, generator=seeded(0)).double()
    seen = 3 * torch.randn(200, 5, 3, generator=seeded(1), dtype=torch.float64)
    values = (3 * torch.randn(200, 5, generator=seeded(2), dtype=torch.float64)).requires_grad_()
    present = torch.rand(200, 5, generator=seeded(3)) < 0.7
    (slopes,) = torch.autograd.grad(mixer(values, seen, present).sum(), values)
    assert (slopes[present] > 0).all()
    assert (slopes[~present] == 0).all()
    changed = torch.where(present[..., None], seen, torch.full_like(seen, 7.0))
    torch.testing.assert_close(mixer(values, changed, present), mixer(values, seen, present))
    assert mixer(values[:1], seen[:1], torch.zeros(1, 5, dtype=torch.bool)).isfinite().all()


def test_team_head_of_a_critic_reads_no_actions():
    """The team's value depends on actions through the agents' values alone."""
    team = team_of([3] * 3, [2] * 3)
    critic = AttentionCritic(
        team, hidden_size=8, num_heads=2, team_head="monotonic", generator=seeded(0)
    ).double()
    seen, done = batch_of(team, 6)
    values = critic(seen, done).gather(-1, done[..., None]).squeeze(-1)
    total = critic.team_value(values, seen)
    assert total.shape == (6,)
    total.sum().backward()
    for name, parameter in critic.named_parameters():
        if parameter.numel():
            assert parameter.grad.abs().max() > 0, name
