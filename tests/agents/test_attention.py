"""The pieces of attention: kernels against each other and against loops, and neighbourhoods."""

from __future__ import annotations

import math

import pytest
import torch

from marlogue.agents import AttentionCritic, FixedGraph, Nearest
from marlogue.agents import attention as A
from tests.support.teams import batch_of, seeded, team_of


def tensors(B, N, H, d, dtype=torch.float64, M=None):
    shapes = [(B, M or N, H, d), (B, N, H, d), (B, N, H, d)]
    return [
        torch.randn(shape, generator=seeded(k), dtype=dtype).requires_grad_()
        for k, shape in enumerate(shapes)
    ]


def test_by_hand():
    """Two numbers to attend to, with scores 0 and log 3: weights 1/4 and 3/4."""
    q = torch.tensor([[[[2.0]], [[0.0]], [[0.0]]]])
    k = torch.tensor([[[[99.0]], [[0.0]], [[math.log(3) / 2]]]])
    v = torch.tensor([[[[99.0]], [[4.0]], [[8.0]]]])
    keep = A.others_mask(3)
    assert keep.tolist() == [[False, True, True], [True, False, True], [True, True, False]]
    out = A.full_attention(q, k, v, keep).flatten()
    torch.testing.assert_close(out, torch.tensor([7.0, 53.5, 51.5]))
    weights = A.softmax_weights(q, k, keep)[0, 0]
    torch.testing.assert_close(weights[0], torch.tensor([0.0, 0.25, 0.75]))


def test_linear_by_hand():
    """phi(0) = 1, phi(2) = 3, phi(-log 2) = 1/2."""
    q = torch.zeros(1, 3, 1, 1)
    k = torch.tensor([0.0, 2.0, -math.log(2)]).view(1, 3, 1, 1)
    v = torch.tensor([10.0, 20.0, 40.0]).view(1, 3, 1, 1)
    expected = torch.tensor([(3 * 20 + 0.5 * 40) / 3.5, (10 + 20) / 1.5, (10 + 60) / 4.0])
    torch.testing.assert_close(A.linear_attention(q, k, v).flatten(), expected)


@pytest.mark.parametrize("N", [2, 3, 5, 12, 40])
@pytest.mark.parametrize("with_present", [False, True])
@pytest.mark.parametrize("with_queries", [False, True])
def test_kernels_are_the_weights_times_the_values(N, with_present, with_queries):
    """Full and linear, values and gradients, on either side of every switch of method."""
    B, M = 6, 2
    queries = torch.randint(N, (B, M), generator=seeded(7)) if with_queries else None
    present = torch.rand(B, N, generator=seeded(8)) < 0.5 if with_present else None
    if present is not None:
        present[0] = False
        present[1] = torch.arange(N) == 1
    keep = A.others_mask(N, present=present, queries=queries)

    def run(kind):
        q, k, v = tensors(B, N, 2, 4, M=M if with_queries else None)
        if kind == "full":
            out = A.full_attention(q, k, v, keep)
        elif kind == "linear":
            out = A.linear_attention(q, k, v, present=present, query_agents=queries)
        else:
            made = A.softmax_weights if kind == "softmax" else A.linear_weights
            out = torch.einsum("bhmn,bnhe->bmhe", made(q, k, keep), v)
        out.square().sum().backward()
        return [out.detach(), q.grad, k.grad, v.grad]

    for one, other in (("full", "softmax"), ("linear", "weights")):
        for mine, expected in zip(run(one), run(other), strict=True):
            assert mine.isfinite().all()
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-11)


def test_linear_gradient_numerically():
    """With an agent asked twice, and some absent."""
    q, k, v = tensors(2, 6, 2, 3, M=3)
    queries = torch.tensor([[4, 4, 0], [1, 2, 5]])
    present = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0]]).bool()

    def run(*x):
        return A.linear_attention(*x, present=present, query_agents=queries)

    assert torch.autograd.gradcheck(run, (q, k, v))


def test_linear_in_single_precision():
    """A large key of one's own takes no more digits than it must."""
    q, k, v = tensors(2, 100, 2, 8)
    exact = A.linear_attention(q, k, v)
    single = A.linear_attention(q.float(), k.float(), v.float())
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=2e-6)
    huge = k.detach().clone()
    huge[:, 3] += 1e9
    bounded = A.linear_attention(q.float(), huge.float(), v.float())
    assert bounded.isfinite().all()


@pytest.mark.parametrize("batched", [True, False])
def test_gathering_is_masking(batched):
    """Values and gradients, with lists that are short, empty, or name absent agents."""
    B, N, K = 3, 9, 4
    lists = torch.rand(B if batched else 1, N, N, generator=seeded(3)).argsort(-1)[..., :K]
    lists = lists.masked_fill(lists == torch.arange(N)[:, None], -1)
    lists[0, 2] = -1
    lists[0, 5, 1:] = -1
    lists = lists if batched else lists[0]
    present = torch.rand(B, N, generator=seeded(4)) < 0.6
    keep = A.others_mask(N, present=present)
    results = []
    for gather in (True, False):
        q, k, v = tensors(B, N, 2, 4)
        if gather:
            out = A.local_attention(q, k, v, lists, keep)
        else:
            out = A.full_attention(q, k, v, keep & A.neighbours_mask(lists, N))
        out.square().sum().backward()
        results.append([out.detach(), q.grad, k.grad, v.grad])
    assert (results[0][0][0, 2] == 0).all()
    for gathered, masked in zip(*results, strict=True):
        torch.testing.assert_close(gathered, masked, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_critic_gathers_at_many_agents(monkeypatch):
    """The same values on both sides of the switch, for all agents and for query agents."""
    team = team_of([3] * 7, [2] * 7)
    critic = AttentionCritic(
        team, hidden_size=8, num_heads=2, attention="local", neighbourhood=Nearest(3, [0, 1])
    ).double()
    seen, done = batch_of(team, 4)
    present = torch.rand(4, 7, generator=seeded(4)) < 0.7
    queries = critic.random_queries(2, 4)
    for asked in (None, queries):
        masked = critic(seen, done, present, asked)
        with monkeypatch.context() as patch:
            patch.setattr(A, "GATHER_FROM", 7)
            gathered = critic(seen, done, present, asked)
        torch.testing.assert_close(gathered, masked, rtol=0, atol=1e-13)


def test_nearest_against_sorting():
    places = torch.randn(5, 8, 4, generator=seeded(0), dtype=torch.float64)
    present = torch.rand(5, 8, generator=seeded(1)) < 0.5
    present[0] = True
    queries = torch.tensor([[0, 3], [7, 1], [2, 5], [4, 4], [6, 0]])
    for position in ([1, 3], lambda seen: seen[..., [1, 3]]):
        found = Nearest(3, position)(places, present, queries)
        for b in range(5):
            for m, i in enumerate(queries[b].tolist()):
                far = {
                    j: math.dist(places[b, i, [1, 3]].tolist(), places[b, j, [1, 3]].tolist())
                    for j in range(8)
                    if j != i and present[b, j]
                }
                expected = sorted(far, key=far.get)[:3]
                assert found[b, m].tolist() == expected + [-1] * (3 - len(expected))
    assert Nearest(50, [0])(places, None, None).shape == (5, 8, 8)


def test_fixed_graph():
    graph = FixedGraph([[1], [0, 2], []])
    assert graph.num_neighbours == 2
    assert graph.table.tolist() == [[1, -1], [0, 2], [-1, -1]]
    for lists, agent in (([[0], []], 0), ([[1], [2]], 1), ([[1, 1], []], 0), ([[], [-1]], 1)):
        with pytest.raises(ValueError, match=rf"neighbours\[{agent}\] .* must be different agents"):
            FixedGraph(lists)
    with pytest.raises(ValueError, match=r"neighbours \(of 3 agents\) must be .* the 2 agents"):
        graph(torch.zeros(1, 2, 3), None, None)


def test_nearest_errors():
    with pytest.raises(ValueError, match=r"num_neighbours \(0\) must be at least 1"):
        Nearest(0, [0])
    with pytest.raises(ValueError, match=r"position \(\[\]\) must name at least one index"):
        Nearest(1, [])
    with pytest.raises(ValueError, match=r"position \(\[5\]\) must hold indices .* of 3 numbers"):
        Nearest(1, [5])(torch.zeros(1, 2, 3), None, None)
    with pytest.raises(ValueError, match=r"position returned \[2, 3\]; it must return \[B, N, P\]"):
        Nearest(1, lambda seen: seen[0])(torch.zeros(1, 2, 3), None, None)
