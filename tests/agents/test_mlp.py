"""Perceptrons, shared or one per group, against layers written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from marlogue.agents import GroupedMLP, mlp
from marlogue.agents.mlp import ACTIVATIONS
from tests.support.teams import seeded


def by_hand(network, group, x, activation, last):
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        x = weight[group] @ x + bias[group]
        if k < len(network.weights) - 1 or last:
            x = activation(x.clone())
    return x


@torch.no_grad()
@pytest.mark.parametrize("name", list(ACTIVATIONS))
@pytest.mark.parametrize("last", [True, False])
def test_one_set_of_weights(name, last):
    network = mlp([3, 6, 5, 2], activation=name, last_activation=last, generator=seeded(0)).double()
    tokens = torch.randn(4, 2, 3, generator=seeded(1), dtype=torch.float64)
    out = network(tokens)
    for index in torch.cartesian_prod(torch.arange(4), torch.arange(2)).tolist():
        x = tokens[tuple(index)]
        expected = by_hand(network, 0, x, ACTIVATIONS[name], last)
        torch.testing.assert_close(out[tuple(index)], expected, rtol=0, atol=1e-13)


@torch.no_grad()
@pytest.mark.parametrize("ids", [[0, 1, 2], [2, 0, 1], [0, 2, 2, 0], [1, 1], [1, 0, 1, 2, 2]])
def test_groups_of_a_team(ids):
    """Equal and unequal groups, an empty one, any order."""
    network = GroupedMLP([3, 4, 2], num_groups=3, generator=seeded(0)).double()
    tokens = torch.randn(5, len(ids), 3, generator=seeded(1), dtype=torch.float64)
    out = network(tokens, groups=torch.tensor(ids))
    for b in range(5):
        for i, group in enumerate(ids):
            expected = by_hand(network, group, tokens[b, i], nn.functional.leaky_relu, False)
            torch.testing.assert_close(out[b, i], expected, rtol=0, atol=1e-13)


def test_groups_that_differ_by_sample_have_their_own_gradients():
    network = GroupedMLP([2, 3, 1], num_groups=3, generator=seeded(0)).double()
    tokens = torch.randn(2, 2, 2, generator=seeded(1), dtype=torch.float64)
    network(tokens, groups=torch.tensor([[0, 2], [2, 0]])).sum().backward()
    grads = network.weights[0].grad
    assert grads[1].abs().max() == 0
    assert grads[0].abs().max() > 0
    assert grads[2].abs().max() > 0


@torch.no_grad()
@pytest.mark.parametrize("num_groups", [1, 2])
def test_arrays_side_by_side(num_groups):
    network = GroupedMLP([5, 4, 2], num_groups=num_groups, generator=seeded(0)).double()
    groups = None if num_groups == 1 else torch.tensor([0, 1, 1])
    parts = [torch.randn(2, 3, x, generator=seeded(x), dtype=torch.float64) for x in (2, 1, 2)]
    whole = network(torch.cat(parts, -1), groups=groups)
    torch.testing.assert_close(network(*parts, groups=groups), whole, rtol=0, atol=1e-13)


def test_activations_in_place_have_the_right_gradients():
    for name in ACTIVATIONS:
        for norm in (True, False):
            network = mlp([3, 4, 4, 2], activation=name, layer_norm=norm, generator=seeded(3))
            tokens = torch.randn(5, 3, generator=seeded(4), dtype=torch.float64)
            assert torch.autograd.gradcheck(network.double(), tokens.requires_grad_())


def test_layer_norm_by_hand():
    network = mlp([2, 3], activation="relu", last_activation=True, layer_norm=True)
    with torch.no_grad():
        network.weights[0][0] = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        network.biases[0].zero_()
        out = network(torch.tensor([1.0, 2.0]))  # 1, 2, 3 before: mean 2, variance 2/3
    torch.testing.assert_close(out, torch.tensor([0.0, 0.0, 1.5**0.5]), rtol=0, atol=1e-4)


def test_first_weights():
    """U(-1/sqrt(fan-in), 1/sqrt(fan-in)), the last layer times its gain, from the generator."""
    network = mlp([400, 300, 5], last_gain=0.1, generator=seeded(0))
    first, last = network.weights
    assert 0.049 < first.abs().max() <= 0.05
    assert first.std().item() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    assert 0.09 * 300**-0.5 < last.abs().max() <= 0.1 * 300**-0.5
    torch.manual_seed(1)
    before = torch.get_rng_state()
    again = mlp([400, 300, 5], last_gain=0.1, generator=seeded(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.weights[0], first)


def test_errors():
    with pytest.raises(ValueError, match=r"sizes \(\[3\]\) must be two or more widths"):
        mlp([3])
    with pytest.raises(ValueError, match=r"sizes \(\[3, 0\]\)"):
        mlp([3, 0])
    with pytest.raises(ValueError, match=r"num_groups \(0\)"):
        GroupedMLP([1, 1], num_groups=0)
    with pytest.raises(ValueError, match=r"activation \('sin'\) must be one of relu, leaky_relu"):
        mlp([1, 1], activation="sin")
    with pytest.raises(ValueError, match=r"groups \(None\) must be given to a network of 2"):
        GroupedMLP([1, 1], num_groups=2)(torch.zeros(1, 1))
