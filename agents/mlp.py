"""Small networks for numeric inputs: one set of weights, or one per group of agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["relu", "leaky_relu", "elu", "tanh", "gelu", "silu"]

# In place where the derivative can be had from the result: one array less per layer.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "leaky_relu": F.leaky_relu_,
    "elu": F.elu_,
    "tanh": torch.tanh_,
    "gelu": F.gelu,
    "silu": F.silu,
}


class GroupedMLP(nn.Module):
    """A multi-layer perceptron with G sets of weights, each token using that of its group.

    With G = 1 it is an ordinary perceptron. With more, tokens are sorted by group, so that each
    layer is one matrix product per group (one batched product for all where groups are equally
    large), whichever way groups are mixed in the batch.

    Args:
        sizes: widths, input and output included; ``[8, 128, 4]`` has one hidden layer.
        num_groups: G.
        activation: after every layer but the last.
        last_activation: also after the last.
        layer_norm: normalise each hidden layer (Ba et al. 2016; without gain and bias, which the
            next layer has) before its activation.
        last_gain: factor of the last layer's initial weights; a small one makes a policy begin
            near uniform.
        generator: source of the initial weights, U(-1/sqrt(fan-in), 1/sqrt(fan-in)); None for
            torch's global generator.

    Raises:
        ValueError: for fewer than two sizes, a size below 1, no group, an unknown activation.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        num_groups: int = 1,
        activation: Activation = "leaky_relu",
        last_activation: bool = False,
        layer_norm: bool = False,
        last_gain: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(f"sizes ({list(sizes)}) must be two or more widths of at least 1.")
        if num_groups < 1:
            raise ValueError(f"num_groups ({num_groups}) must be at least 1.")
        self.num_groups = num_groups
        self.last_activation = last_activation
        self.layer_norm = layer_norm
        self.activation = activation_named(activation)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            bound = inputs**-0.5
            shape = (num_groups, outputs, inputs)
            self.weights.append(uniform_parameter(shape, bound, generator))
            self.biases.append(uniform_parameter((num_groups, outputs), bound, generator))
        with torch.no_grad():
            self.weights[-1].mul_(last_gain)
            self.biases[-1].mul_(last_gain)

    def forward(self, *parts: Tensor, groups: Tensor | None = None) -> Tensor:
        """Tokens [..., sizes[0]] to [..., sizes[-1]].

        Args:
            parts: the tokens; or several arrays [..., x] whose numbers, side by side, they are.
            groups: [...] (or what broadcasts to it), the group of each token, long; not needed
                when G is 1.
        """
        if self.num_groups == 1:
            rows = [part.reshape(-1, part.shape[-1]) for part in parts]
            return self._through(rows, 0).view(*parts[0].shape[:-1], -1)
        inputs = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if groups is None:
            raise ValueError(f"groups (None) must be given to a network of {self.num_groups}.")
        ids = groups.expand(inputs.shape[:-1]).reshape(-1)
        flat = inputs.reshape(-1, self.sizes[0])
        order = ids.argsort(stable=True)
        counts = torch.bincount(ids, minlength=self.num_groups).tolist()
        outputs = self._sorted(flat[order], counts)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return outputs[back].view(*inputs.shape[:-1], -1)

    def _sorted(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        if len(set(counts)) == 1:
            stacked = tokens.view(self.num_groups, counts[0], -1)
            return self._through([stacked], slice(None)).flatten(0, 1)
        parts = tokens.split(counts)
        return torch.cat([self._through([p], g) for g, p in enumerate(parts) if counts[g]])

    def _through(self, parts: Sequence[Tensor], group: int | slice) -> Tensor:
        last = len(self.weights) - 1
        hidden = parts[0]
        for layer, (all_weights, all_biases) in enumerate(
            zip(self.weights, self.biases, strict=True)
        ):
            if self.num_groups == 1:  # a view, whose gradient needs no array of zeros
                weight, bias = all_weights.squeeze(0), all_biases.squeeze(0)
            else:
                weight, bias = all_weights[group], all_biases[group]
            if isinstance(group, slice):
                hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.transpose(1, 2))
            elif layer == 0:
                hidden = _side_by_side(parts, weight, bias)
            else:
                hidden = F.linear(hidden, weight, bias)
            if layer < last or self.last_activation:
                if self.layer_norm:
                    hidden = F.layer_norm(hidden, hidden.shape[-1:])
                hidden = self.activation(hidden)
        return hidden


def mlp(
    sizes: Sequence[int],
    *,
    activation: Activation = "leaky_relu",
    last_activation: bool = False,
    layer_norm: bool = False,
    last_gain: float = 1.0,
    generator: torch.Generator | None = None,
) -> GroupedMLP:
    """A perceptron with one set of weights, [..., sizes[0]] to [..., sizes[-1]]; arguments as for
    `GroupedMLP`."""
    return GroupedMLP(
        sizes,
        activation=activation,
        last_activation=last_activation,
        layer_norm=layer_norm,
        last_gain=last_gain,
        generator=generator,
    )


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """The activation function of a name; it may overwrite its argument.

    Raises:
        ValueError: for a name that is not in `ACTIVATIONS`.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation ({name!r}) must be one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def uniform_parameter(
    shape: Sequence[int], bound: float, generator: torch.Generator | None
) -> nn.Parameter:
    """Weights from U(-bound, bound)."""
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=generator))


def _side_by_side(parts: Sequence[Tensor], weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer over arrays [n, x] side by side, without making that array."""
    columns = weight.split([part.shape[1] for part in parts], 1)
    hidden = F.linear(parts[0], columns[0], bias)
    for part, column in zip(parts[1:], columns[1:], strict=True):
        hidden = hidden.addmm_(part, column.t())
    return hidden
