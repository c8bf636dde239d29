"""The value head: shape, first weights, precision, and on disk."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from marlogue.agents import ValueHead


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_linear_by_hand():
    head = ValueHead(3)
    assert head.head_hidden_dim is None
    (layer,) = [module for module in head.modules() if isinstance(module, nn.Linear)]
    assert layer.weight.shape == (1, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0, -1.0]]))
        layer.bias.fill_(0.5)
    hidden = torch.tensor([[[1.0, 1.0, 1.0], [0.0, 3.0, 1.0]]])
    assert head(hidden).tolist() == [[2.5, 5.5]]


def test_hidden_layer_by_hand():
    """Linear(hidden, H), tanh, Linear(H, 1)."""
    head = ValueHead(2, 3)
    assert head.head_hidden_dim == 3
    first, second = [module for module in head.modules() if isinstance(module, nn.Linear)]
    assert (first.weight.shape, second.weight.shape) == ((3, 2), (1, 3))
    hidden = torch.randn(5, 2, generator=seeded(0))
    expected = torch.tanh(hidden @ first.weight.T + first.bias) @ second.weight.T + second.bias
    torch.testing.assert_close(head(hidden), expected.squeeze(-1))


@pytest.mark.parametrize("hidden_dim", [None, 300])
def test_first_weights(hidden_dim):
    """N(0, 0.02) and zero, of the last layer as well."""
    head = ValueHead(2000, hidden_dim, generator=seeded(0))
    for layer in (module for module in head.modules() if isinstance(module, nn.Linear)):
        count = layer.weight.numel()
        assert layer.weight.std().item() == pytest.approx(0.02, rel=5 / (2 * count) ** 0.5)
        assert abs(layer.weight.mean().item()) < 5 * 0.02 / count**0.5
        assert layer.weight.abs().max() > 0.03
        assert (layer.bias == 0).all()


def test_first_weights_come_from_the_generator_given():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (
        ValueHead(8, 4, generator=seeded(seed)).state_dict() for seed in (5, 5, 6)
    )
    torch.manual_seed(2)
    later = ValueHead(8, 4, generator=seeded(5)).state_dict()
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, later[name])
    assert any(not torch.equal(value, other[name]) for name, value in first.items())
    # A head that is drawn from its own generator must not move the global one.
    torch.set_rng_state(before)
    ValueHead(8, 4, generator=seeded(5))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("hidden_dim", [None, 4])
class TestPrecision:
    def test_half_precision_states_give_float32_values(self, hidden_dim):
        head = ValueHead(8, hidden_dim, generator=seeded(0))
        hidden = torch.randn(6, 8, generator=seeded(1)).to(torch.bfloat16)
        values = head(hidden)
        assert values.dtype == torch.float32
        assert torch.equal(values, head(hidden.float()))

    def test_autocast_does_not_reach_it(self, hidden_dim):
        """Values near 1 have steps of 0.008 in bfloat16, which is coarse for a TD error."""
        head = ValueHead(8, hidden_dim, generator=seeded(0))
        hidden = torch.randn(6, 8, generator=seeded(1))
        with torch.autocast("cpu", torch.bfloat16):
            values = head(hidden)
        assert values.dtype == torch.float32
        assert torch.equal(values, head(hidden))

    def test_gradients_under_autocast(self, hidden_dim):
        head = ValueHead(8, hidden_dim, generator=seeded(0))
        hidden = torch.randn(6, 8, generator=seeded(1))
        gradients = []
        for enabled in (True, False):
            head.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = head(hidden).square().sum()
            loss.backward()
            gradients.append([parameter.grad.clone() for parameter in head.parameters()])
        for one, other in zip(*gradients, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("hidden_dim", [None, 4])
def test_saved_and_loaded_bit_for_bit(hidden_dim, tmp_path):
    """C71."""
    head = ValueHead(8, hidden_dim, generator=seeded(0))
    hidden = torch.randn(6, 8, generator=seeded(1))
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    again = ValueHead(8, hidden_dim, generator=seeded(9))
    assert not torch.equal(again(hidden), head(hidden))
    again.load_state_dict(load_file(tmp_path / "head.safetensors"))
    assert torch.equal(again(hidden), head(hidden))


def test_hidden_size_is_checked():
    with pytest.raises(ValueError, match=r"\(0\) must be at least 1"):
        ValueHead(8, 0)
