"""Actors for vectors: distributions, recurrence, sharing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from marlogue.agents import DiscreteActions, TanhGaussian, VectorActors
from tests.support.teams import batch_of, seeded, team_of

UNLIKE = ([3, 5, 3, 4], [2, 4, 2, 3])


def actors_of(team, **arguments):
    arguments = {"hidden_sizes": (8, 6), "generator": seeded(0), **arguments}
    return VectorActors(team, **arguments).double()


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["all", "type", "none"])
def test_discrete_against_loops(sharing):
    team = team_of(*UNLIKE)
    actors = actors_of(team, sharing=sharing, id_embedding=2)
    assert actors.sharing.num_groups == {"all": 1, "type": 3, "none": 4}[sharing]
    seen, _ = batch_of(team, 3)
    pi, state = actors(seen)
    assert isinstance(pi, DiscreteActions)
    assert state.shape == (3, 4, 0)
    groups = actors.sharing.groups.tolist()
    for b in range(3):
        for i in range(4):
            x = torch.cat([seen[b, i], actors.sharing.ids[i]])
            for network, last in ((actors.trunk, True), (actors.head, False)):
                for weight, bias in zip(network.weights, network.biases, strict=True):
                    x = weight[groups[i]] @ x + bias[groups[i]]
                    x = x.relu() if last else x
            expected = x[: team.action_sizes[i]].softmax(-1)
            expected = torch.cat([expected, torch.zeros(4 - len(expected))])
            torch.testing.assert_close(pi.probs[b, i], expected, rtol=0, atol=1e-12)


def test_masks_and_log_probs():
    logits = torch.tensor([[[1.0, 2.0, 3.0], [0.0, 0.0, 5.0]]]).requires_grad_()
    available = torch.tensor([[True, True, False], [True, True, False]])
    pi = DiscreteActions.of(logits, available)
    e = math.exp(1)
    torch.testing.assert_close(pi.probs[0, 0], torch.tensor([1 / (1 + e), e / (1 + e), 0.0]))
    assert pi.probs[0, 1].tolist() == [0.5, 0.5, 0.0]
    assert pi.log_probs.isfinite().all()
    assert pi.mode().tolist() == [[1, 0]]
    entropy = pi.entropy()
    assert entropy[0, 1].item() == pytest.approx(math.log(2))
    taken = pi.log_prob(torch.tensor([[0, 1]]))
    torch.testing.assert_close(taken, torch.tensor([[-math.log(1 + e), -math.log(2)]]))
    (entropy.sum() + taken.sum()).backward()
    assert logits.grad[..., 2].abs().max() == 0
    assert logits.grad.isfinite().all()
    nothing = DiscreteActions.of(logits, torch.zeros_like(available))
    assert (nothing.probs * nothing.log_probs).isfinite().all()


def test_samples_have_the_probabilities():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0]).expand(200_000, 1, 4)
    pi = DiscreteActions.of(logits, torch.tensor([True, True, False, True]))
    actions, log_probs = pi.sample(seeded(0))
    share = torch.bincount(actions.flatten(), minlength=4) / 200_000
    torch.testing.assert_close(share, pi.probs[0, 0], rtol=0, atol=0.005)
    assert share[2] == 0
    torch.testing.assert_close(log_probs, pi.log_prob(actions))


@pytest.mark.parametrize("possible", [[0], [2], [4], [1, 3], [0, 4]])
def test_actions_that_are_ruled_out_are_never_drawn(possible):
    """At either end too; logits so far apart that float32 sums lose the smaller probabilities."""
    available = torch.zeros(5, dtype=torch.bool)
    available[possible] = True
    logits = torch.tensor([30.0, 0.0, -30.0, 5.0, 60.0]).expand(50_000, 1, 5)
    drawn, _ = DiscreteActions.of(logits, available).sample(seeded(3))
    assert set(drawn.unique().tolist()) <= set(possible)
    assert drawn.dtype == torch.long


def test_tanh_gaussian_against_torch():
    """Against torch's transformed distribution, a number that does not exist left out."""
    generator = seeded(0)
    mean, log_std = (torch.randn(50, 2, 3, generator=generator).double() for _ in range(2))
    exists = torch.tensor([[True, True, True], [True, False, False]])
    pi = TanhGaussian(mean, log_std, exists)
    actions, log_probs = pi.sample(seeded(1))
    assert (actions[:, 1, 1:] == 0).all()
    assert actions.abs().max() <= 1
    base = torch.distributions.Normal(mean, log_std.exp())
    exact = torch.distributions.TransformedDistribution(base, torch.distributions.TanhTransform())
    inside = actions.clamp(-1 + 1e-9, 1 - 1e-9)
    expected = (exact.log_prob(inside) * exists).sum(-1)
    ordinary = actions.abs().amax(-1) < 0.999
    torch.testing.assert_close(log_probs[ordinary], expected[ordinary])
    torch.testing.assert_close(pi.log_prob(actions)[ordinary], expected[ordinary])
    torch.testing.assert_close(pi.mode(), mean.tanh() * exists)


def test_tanh_gaussian_at_the_edge():
    """Far out the density falls with 1 - tanh(u)^2 = about 4 exp(-2 u), without infinity."""
    pi = TanhGaussian(
        torch.full((1, 1), 40.0), torch.full((1, 1), -3.0), torch.ones(1, 1, dtype=torch.bool)
    )
    actions, log_prob = pi.sample(seeded(0))
    assert actions.item() == 1.0
    normal = 3.0 - 0.5 * math.log(2 * math.pi)
    assert log_prob.item() == pytest.approx(normal + 80 - math.log(4), abs=3)
    assert pi.log_prob(torch.ones(1, 1)).isfinite().all()


def test_pathwise_gradient():
    """Reparameterised: d action / d mean = 1 - action^2; the density's gradient is checked
    numerically."""
    mean = torch.randn(4, 2, 3, generator=seeded(0)).double().requires_grad_()
    log_std = torch.randn(4, 2, 3, generator=seeded(1)).double().requires_grad_()
    exists = torch.ones(2, 3, dtype=torch.bool)

    def draw(m, s):
        return TanhGaussian(m, s, exists).sample(seeded(2))

    actions, _ = draw(mean, log_std)
    (slope,) = torch.autograd.grad(actions.sum(), mean)
    torch.testing.assert_close(slope, 1 - actions.square())
    assert torch.autograd.gradcheck(draw, (mean, log_std))


@torch.no_grad()
def test_continuous_begins_at_unit_spread():
    team = team_of([3, 4], [2, 1], discrete=False)
    pi, _ = actors_of(team)(batch_of(team, 5)[0])
    assert isinstance(pi, TanhGaussian)
    assert pi.mean.shape == (5, 2, 2)
    assert pi.log_std.abs().max() < 0.2
    assert pi.log_std.min() > -5


@torch.no_grad()
def test_recurrence_against_torch():
    """The cell of torch with the same weights, reset where episodes start."""
    team = team_of([3, 3], [2, 2])
    actors = actors_of(team, trunk="gru")
    assert actors.recurrent
    seen = torch.randn(4, 5, 2, 3, generator=seeded(1), dtype=torch.float64)
    starts = torch.rand(4, 5, generator=seeded(2)) < 0.3
    first = torch.randn(4, 2, 6, generator=seeded(3), dtype=torch.float64)
    pi, last = actors(seen, first, starts=starts)
    cell = nn.GRUCell(6, 6).double()
    memory = actors.memory
    cell.weight_ih.copy_(memory.read.weights[0][0])
    cell.bias_ih.copy_(memory.read.biases[0][0])
    cell.weight_hh.copy_(memory.keep.weights[0][0])
    cell.bias_hh.copy_(memory.keep.biases[0][0])
    state = first.clone()
    for t in range(5):
        state[starts[:, t]] = 0
        hidden = actors.trunk(seen[:, t])
        state = cell(hidden.flatten(0, 1), state.flatten(0, 1)).view(4, 2, 6)
        torch.testing.assert_close(pi.logits[:, t], actors.head(state))
    torch.testing.assert_close(last, state)


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["all", "none"])
def test_step_by_step_is_the_sequence(sharing):
    team = team_of([3, 3, 3], [2, 2, 2])
    actors = actors_of(team, trunk="gru", sharing=sharing)
    seen = torch.randn(4, 6, 3, 3, generator=seeded(1), dtype=torch.float64)
    starts = torch.zeros(4, 6, dtype=torch.bool)
    starts[1, 3] = True
    pi, last = actors(seen, starts=starts)
    state = actors.initial_state(4)
    assert state.shape == (4, 3, 6)
    for t in range(6):
        step, state = actors(seen[:, t], state, starts=starts[:, t])
        torch.testing.assert_close(step.logits, pi.logits[:, t])
    torch.testing.assert_close(last, state)
    fresh, _ = actors(seen[1:2, 3:])
    torch.testing.assert_close(fresh.logits, pi.logits[1:2, 3:])


@torch.no_grad()
def test_the_same_networks_for_more_agents():
    small, large = team_of([3] * 2, [2] * 2), team_of([3] * 5, [2] * 5)
    actors = actors_of(small, id_embedding=2, max_agents=5, trunk="gru")
    grown = actors.for_team(large)
    assert [id(p) for p in grown.parameters()] == [id(p) for p in actors.parameters()]
    assert actors.team is small
    seen, _ = batch_of(large, 3)
    torch.testing.assert_close(grown(seen)[0].logits[:, :2], actors(seen[:, :2])[0].logits)
    grown.load_state_dict(actors.state_dict())


def test_teams_that_networks_do_not_fit():
    small = team_of([3] * 2, [2] * 2)
    with pytest.raises(ValueError, match=r"max_agents \(2\) must be at least the number .* \(3\)"):
        actors_of(small, id_embedding=2).for_team(team_of([3] * 3, [2] * 3))
    with pytest.raises(ValueError, match=r"agents \['a2'\] must be of the team that the weights"):
        actors_of(small, sharing="none").for_team(team_of([3] * 3, [2] * 3))
    with pytest.raises(ValueError, match=r"observation size, action size .* \(4, 2, True\)"):
        actors_of(small).for_team(team_of([4] * 2, [2] * 2))
    with pytest.raises(ValueError, match=r"spaces .* must be those of a type of agent"):
        actors_of(small).for_team(team_of([3, 2], [2, 2]))
    actors_of(small, sharing="all").for_team(team_of([3, 2], [2, 2]))


def test_errors():
    team = team_of([3, 3], [2, 2])
    with pytest.raises(ValueError, match=r"trunk \('lstm'\) must be 'mlp' or 'gru'"):
        actors_of(team, trunk="lstm")
    with pytest.raises(ValueError, match=r"hidden_sizes .* at least one layer"):
        actors_of(team, hidden_sizes=())
    with pytest.raises(ValueError, match=r"max_agents \(1\) must be at least .* \(2\)"):
        actors_of(team, max_agents=1)
    with pytest.raises(ValueError, match=r"observations \(\[4, 3\]\) must be \[B, N, D\]"):
        actors_of(team)(torch.zeros(4, 3))
