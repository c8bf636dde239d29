"""The attention critic, against loops over samples, agents and heads in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import elu, leaky_relu

from marlogue.agents import (
    AttentionCritic,
    ConcatCritic,
    FixedGraph,
    MeanPoolCritic,
    Nearest,
)
from tests.support.teams import batch_of, seeded, team_of

KINDS = ("full", "linear", "local", "mean")
UNLIKE = ([3, 5, 3, 4], [2, 4, 2, 3])
GRAPH = ([1, 2], [0, 3], [], [0, 1, 2])


def critic_of(team, kind="full", seed=0, **arguments):
    if kind == "local":
        arguments.setdefault("neighbourhood", Nearest(2, [0, 1]))
    arguments = {"hidden_size": 8, "num_heads": 2, **arguments}
    critic = AttentionCritic(team, attention=kind, generator=seeded(seed), **arguments)
    return critic.double()


def layers(network, group, x, last):
    """A perceptron written out."""
    count = len(network.weights)
    for k in range(count):
        x = network.weights[k][group] @ x + network.biases[k][group]
        if k < count - 1 or last:
            x = leaky_relu(x)
    return x


def listed(critic, seen, here, i):
    """Whom i may attend to."""
    others = [j for j in range(len(seen)) if j != i and here[j]]
    nearby = critic.others.neighbourhood
    if isinstance(nearby, FixedGraph):
        return [j for j in others if j in GRAPH[i]]
    if isinstance(nearby, Nearest):
        others.sort(key=lambda j: math.dist(seen[i, :2].tolist(), seen[j, :2].tolist()))
        return others[: nearby.num_neighbours]
    return others


def by_loops(critic, observations, actions, present=None):
    """Q and weights of every agent, one number after the other."""
    team, mix = critic.team, critic.others
    B, N = observations.shape[:2]
    H, d = mix.num_heads, mix.width // mix.num_heads
    groups = critic.sharing.groups.tolist()
    names = critic.sharing.ids[critic.sharing.rows]
    values = torch.zeros(B, N, team.action_size if team.discrete else 1, dtype=torch.float64)
    weights = torch.zeros(B, H, N, N, dtype=torch.float64)
    for b in range(B):
        here = [True] * N if present is None else present[b].tolist()
        seen = observations[b]
        done = torch.zeros(N, team.action_size, dtype=torch.float64)
        for j in range(N):
            if team.discrete:
                done[j, actions[b, j]] = 1.0
            else:
                done[j] = actions[b, j]
        g = [
            layers(critic.other_encoder, groups[j], torch.cat([seen[j], done[j], names[j]]), True)
            for j in range(N)
        ]
        for i in range(N):
            e = layers(critic.own_encoder, groups[i], torch.cat([seen[i], names[i]]), True)
            others = listed(critic, seen, here, i)
            x = torch.zeros(mix.width, dtype=torch.float64)
            for h in range(H):
                part = slice(h * d, (h + 1) * d)
                scores = {}
                for j in others:
                    if mix.kind == "mean":
                        scores[j] = torch.ones((), dtype=torch.float64)
                        continue
                    q, k = mix.query[part] @ e, mix.key[part] @ g[j]
                    if mix.kind == "linear":
                        scores[j] = (elu(q) + 1) @ (elu(k) + 1)
                    else:
                        scores[j] = torch.exp(q @ k / math.sqrt(d))
                total = sum(scores.values())
                for j in others:
                    w = scores[j] / total
                    weights[b, h, i, j] = w
                    x[part] += w * leaky_relu(mix.value[part] @ g[j] + mix.value_bias[part])
            if not here[i]:
                continue
            read = torch.cat([e, x] if team.discrete else [e, x, done[i]])
            out = layers(critic.head, groups[i], read, False)
            values[b, i] = dueling(out, critic.exists[i]) if team.discrete else out
    return (values if team.discrete else values.squeeze(-1)), weights


def dueling(out, exists):
    """A common value and what actions add to it, action by action."""
    common, *gains = out.tolist()
    real = [gain for gain, there in zip(gains, exists, strict=True) if there]
    mean = sum(real) / len(real)
    pairs = zip(gains, exists, strict=True)
    values = [common + gain - mean if there else 0.0 for gain, there in pairs]
    return torch.tensor(values, dtype=out.dtype)


def absences(B, N):
    """One agent away, all but one, all, and none."""
    present = torch.ones(B, N, dtype=torch.bool)
    present[0, 1] = False
    present[1, 1:] = False
    present[2] = False
    return present


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("sharing", ["all", "type", "none"])
def test_against_loops(kind, discrete, sharing):
    """Unlike agents, with names, two layers, somebody away; also for a few query agents."""
    team = team_of(*UNLIKE, discrete)
    critic = critic_of(team, kind, sharing=sharing, id_embedding=3, encoder_layers=2, head_layers=2)
    seen, done = batch_of(team, 5)
    present = absences(5, 4)
    for here in (None, present):
        expected, weights = by_loops(critic, seen, done, here)
        torch.testing.assert_close(critic(seen, done, here), expected, rtol=0, atol=1e-12)
        shown = critic.attention_weights(seen, done, here)
        torch.testing.assert_close(shown, weights, rtol=0, atol=1e-12)
        queries = torch.tensor([[3, 0], [1, 2], [2, 1], [0, 1], [3, 1]])
        rows = torch.arange(5)[:, None]
        asked = critic(seen, done, here, queries)
        torch.testing.assert_close(asked, expected[rows, queries], rtol=0, atol=1e-12)
        shown = critic.attention_weights(seen, done, here, queries)
        wanted = weights.transpose(1, 2)[rows, queries].transpose(1, 2)
        torch.testing.assert_close(shown, wanted, rtol=0, atol=1e-12)


@torch.no_grad()
def test_fixed_graph_against_loops():
    team = team_of(*UNLIKE)
    critic = critic_of(team, "local", neighbourhood=FixedGraph(GRAPH))
    seen, done = batch_of(team, 5)
    for present in (None, absences(5, 4)):
        expected, weights = by_loops(critic, seen, done, present)
        assert weights[:, :, 2].abs().max() == 0  # agent 2 has no neighbour
        torch.testing.assert_close(critic(seen, done, present), expected, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["full", "linear", "mean"])
@pytest.mark.parametrize("discrete", [True, False])
def test_two_agents(kind, discrete):
    """With one other agent every weight is 1."""
    team = team_of([3, 3], [2, 2], discrete)
    critic = critic_of(team, kind)
    seen, done = batch_of(team, 3)
    expected, _ = by_loops(critic, seen, done)
    torch.testing.assert_close(critic(seen, done), expected, rtol=0, atol=1e-12)
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64).expand(3, 2, 2, 2)
    torch.testing.assert_close(critic.attention_weights(seen, done), swap)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["linear", "mean", "local"])
def test_many_agents_against_loops(kind):
    """Enough agents for the sums over all, from which each agent's own term is subtracted."""
    team = team_of([3] * 12, [2] * 12)
    critic = critic_of(team, kind)
    seen, done = batch_of(team, 4)
    for present in (None, absences(4, 12)):
        expected, _ = by_loops(critic, seen, done, present)
        torch.testing.assert_close(critic(seen, done, present), expected, rtol=0, atol=1e-12)
        queries = critic.random_queries(5, 4, present=present, generator=seeded(1))
        asked = critic(seen, done, present, queries)
        rows = torch.arange(4)[:, None]
        torch.testing.assert_close(asked, expected[rows, queries], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("kind", [*KINDS, "concat"])
def test_own_action_does_not_leak(kind):
    """Q_i of every own action stays when only a_i changes, and changes with the others'."""
    team = team_of([3] * 6, [3] * 6)
    critic = ConcatCritic(team).double() if kind == "concat" else critic_of(team, kind, num_heads=4)
    seen, done = batch_of(team, 8)
    before = critic(seen, done)
    for i in range(6):
        other = done.clone()
        other[:, i] = (done[:, i] + 1) % 3
        change = (critic(seen, other) - before).abs().amax(-1)
        tiny = 0 if kind in ("full", "local") else 1e-12
        assert change[:, i].max() <= tiny
        assert (change.sum(0) > 1e-4).sum() == 5 if kind != "local" else change.max() > 1e-4


@pytest.mark.parametrize("kind", [*KINDS, "concat"])
def test_gradient_to_own_actions(kind):
    """With the other agents' actions detached, agent i's gradient is that of its own value; what
    attention mixes has none of the agent itself."""
    team = team_of([3] * 5, [2] * 5, discrete=False)
    critic = ConcatCritic(team).double() if kind == "concat" else critic_of(team, kind)
    seen, done = batch_of(team, 3)
    whole = done.clone().requires_grad_()
    values = critic(seen, whole)
    own = done.clone().requires_grad_()
    critic(seen, done, own_actions=own).sum().backward()
    for i in range(5):
        (gradient,) = torch.autograd.grad(values[:, i].sum(), whole, retain_graph=True)
        torch.testing.assert_close(own.grad[:, i], gradient[:, i], rtol=0, atol=1e-12)
        assert gradient[:, i].abs().min() > 0
    free = done.clone().requires_grad_()
    (leak,) = torch.autograd.grad(critic(seen, free, own_actions=done)[:, 2].sum(), free)
    assert leak[:, 2].abs().max() < 1e-14
    assert leak.abs().max() > 1e-5


@pytest.mark.parametrize("kind", ["full", "linear", "mean", "local"])
@pytest.mark.parametrize("num_agents", [2, 3, 10])
def test_gradcheck_with_absent_agents(kind, num_agents):
    """Finite differences, with nobody else there in some samples."""
    team = team_of([2] * num_agents, [2] * num_agents, discrete=False)
    critic = critic_of(team, kind, seed=4)
    seen, done = batch_of(team, 3, seed=5)
    present = absences(3, num_agents)
    inputs = (seen.requires_grad_(), done.requires_grad_())
    assert torch.autograd.gradcheck(lambda o, a: critic(o, a, present), inputs)


@pytest.mark.parametrize("kind", [*KINDS, "concat"])
def test_nobody_else(kind):
    """The only agent that is there, and a sample without any: x is 0, gradients are finite."""
    team = team_of([3] * 4, [2] * 4)
    critic = ConcatCritic(team).double() if kind == "concat" else critic_of(team, kind)
    seen, done = batch_of(team, 4)
    present = absences(4, 4)
    seen = seen * present[..., None]
    values = critic(seen, done, present)
    assert (values[~present] == 0).all()
    other = (done + ~present) % 2
    torch.testing.assert_close(critic(seen, other, present), values, rtol=0, atol=1e-13)
    values.square().sum().backward()
    for name, parameter in critic.named_parameters():
        if parameter.numel():
            assert parameter.grad.isfinite().all(), name
    if kind != "concat":
        expected = layers(
            critic.head,
            0,
            torch.cat([critic._encode(seen, done, None)[0][1, 0], torch.zeros(8)]),
            0,
        )
        torch.testing.assert_close(values[1, 0], dueling(expected, critic.exists[0]))


@torch.no_grad()
def test_mean_pool_is_an_attention_critic_of_equal_weights():
    team = team_of([3] * 4, [2] * 4)
    critic = MeanPoolCritic(team, hidden_size=8, num_heads=2).double()
    assert not hasattr(critic.others, "query")
    seen, done = batch_of(team, 2)
    weights = critic.attention_weights(seen, done)
    even = (1 - torch.eye(4, dtype=torch.float64)) / 3
    torch.testing.assert_close(weights, even.expand(2, 2, 4, 4))


@torch.no_grad()
@pytest.mark.parametrize("discrete", [True, False])
def test_concat_against_loops(discrete):
    """The first layer on everything side by side, the own action blanked."""
    team = team_of(*UNLIKE, discrete)
    critic = ConcatCritic(team, hidden_size=8, generator=seeded(2)).double()
    seen, done = batch_of(team, 3)
    N, A = team.num_agents, team.action_size
    values = critic(seen, done)
    for b in range(3):
        for i in range(N):
            hidden = critic.seen @ seen[b].flatten() + critic.own_seen @ seen[b, i] + critic.who[i]
            for j in range(N):
                if j != i:
                    taken = torch.eye(A).double()[done[b, j]] if discrete else done[b, j]
                    hidden = hidden + critic.done[j].T @ taken
            read = leaky_relu(hidden)
            read = read if discrete else torch.cat([read, done[b, i]])
            out = layers(critic.head, critic.sharing.groups[i], read, False)
            out = dueling(out, critic.exists[i]) if discrete else out[0]
            torch.testing.assert_close(values[b, i], out, rtol=0, atol=1e-12)


@torch.no_grad()
def test_grows_with_the_team():
    """Parameters are the same objects; a team of ten among thirty, of whom twenty are absent, has
    the values of the team of ten."""
    small, large = team_of([3] * 10, [2] * 10), team_of([3] * 30, [2] * 30)
    critic = critic_of(small, id_embedding=4, max_agents=30)
    grown = critic.for_team(large)
    assert [id(p) for p in grown.parameters()] == [id(p) for p in critic.parameters()]
    seen, done = batch_of(large, 2)
    present = (torch.arange(30) < 10).expand(2, 30)
    values = grown(seen, done, present)
    assert values.shape == (2, 30, 2)
    torch.testing.assert_close(values[:, :10], critic(seen[:, :10], done[:, :10]))


def test_random_queries():
    critic = critic_of(team_of([2] * 6, [2] * 6))
    present = torch.tensor([[True, False, True, True, False, False]]).expand(4000, 6)
    drawn = critic.random_queries(2, 4000, present=present, generator=seeded(0))
    assert (drawn[:, 0] != drawn[:, 1]).all()
    share = torch.bincount(drawn.flatten(), minlength=6) / 4000
    wanted = torch.tensor([2.0, 0, 2, 2, 0, 0]) / 3
    torch.testing.assert_close(share, wanted, rtol=0, atol=0.04)
    assert set(critic.random_queries(4, 1, present=present[:1])[0].tolist()) > {0, 2, 3}
    with pytest.raises(ValueError, match=r"num_queries \(7\) must be from 1 to .* \(6\)"):
        critic.random_queries(7, 1)


def test_errors():
    team = team_of([3, 3], [2, 2])
    seen, done = batch_of(team, 2)
    critic = critic_of(team)
    with pytest.raises(ValueError, match=r"observations \(\[2, 2, 2\]\) must be \[2, 2, 3\]"):
        critic(seen[..., :2], done)
    with pytest.raises(ValueError, match=r"actions \(torch.float64\) must be indices"):
        critic(seen, done.double())
    with pytest.raises(ValueError, match=r"present \(torch.int64\) must be bool"):
        critic(seen, done, torch.ones(2, 2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"queries \(\[2\]\) must be \[2, M\]"):
        critic(seen, done, queries=torch.tensor([0, 1]))
    for wrong, message in (
        ({"num_heads": 3}, r"num_heads \(3\) must divide the hidden size \(8\)"),
        ({"attention": "fast"}, r"attention \('fast'\)"),
        ({"attention": "local"}, "neighbourhood .None. must be given for attention='local'"),
        ({"overflow": "swap"}, r"overflow \('swap'\)"),
        ({"team_head": "max"}, r"team_head \('max'\)"),
        ({"sharing": "some"}, r"sharing \('some'\)"),
        ({"encoder_layers": 0}, r"encoder_layers \(0\)"),
    ):
        with pytest.raises(ValueError, match=message):
            AttentionCritic(team, **{"hidden_size": 8, **wrong})
