"""The value head."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Maps a hidden state to one value: ``Linear(D, 1)``, after ``Linear(D, H)`` and tanh where a
    hidden size H is given. Weights are drawn from N(0, 0.02), biases are 0.

    Args:
        hidden_size: D, the width of the trunk.
        head_hidden_dim: H; None for a single linear layer.
        generator: source of the initial weights; None for torch's global generator.
    """

    def __init__(
        self,
        hidden_size: int,
        head_hidden_dim: int | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if head_hidden_dim is not None and head_hidden_dim < 1:
            raise ValueError(
                f"value head hidden size ({head_hidden_dim}) must be at least 1; "
                "set None for a single linear layer."
            )
        self.hidden_size = hidden_size
        self.head_hidden_dim = head_hidden_dim
        layers: list[nn.Module] = []
        if head_hidden_dim is not None:
            layers += [_linear(hidden_size, head_hidden_dim), nn.Tanh()]
        layers.append(_linear(head_hidden_dim or hidden_size, 1))
        self.layers = nn.Sequential(*layers)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02, generator=generator)
                nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to values [...], in float32."""
        with torch.autocast(hidden.device.type, enabled=False):  # values keep all their digits
            values: Tensor = self.layers(hidden.float()).squeeze(-1)
        return values


def fitting(head: ValueHead, width: int) -> ValueHead:
    """The head itself.

    Raises:
        ValueError: when it is not made for hidden states of this width.
    """
    if head.hidden_size != width:
        raise ValueError(
            f"value_head ({head.hidden_size} wide) must fit the model's hidden states ({width})."
        )
    return head


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer without torch's own initial weights, which come from the global generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    return layer
