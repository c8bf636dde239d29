"""Values of a team made of its agents' values.

Shapes: B samples, N agents, D numbers per observation. Absent agents (``present`` [B, N] False)
count for nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from marlogue.agents.mlp import mlp

TeamHeadName = Literal["sum", "monotonic"]


class SumMixer(nn.Module):
    """The sum of the agents' values (Sunehag et al. 2018, value decomposition networks)."""

    def forward(
        self, values: Tensor, observations: Tensor, present: Tensor | None = None
    ) -> Tensor:
        """Values [B, N] to the team's [B]; observations are not read."""
        return _present_only(values, present).sum(-1)


class MonotonicMixer(nn.Module):
    """A mix that never falls when an agent's value rises (Rashid et al. 2018, QMIX)::

        V = w_2(s) . elu(sum_i w_1(o_i, s) V_i + b_1(s)) + b_2(s)    w_1, w_2 >= 0

    Weights are absolute values of what small networks make of observations, never of actions. In
    the paper the state's network has one output per agent; here the weights of agent i come from
    its observation and s, the mean observation of those present, so that the same networks mix any
    number of agents.

    Args:
        observation_size: D.
        embedding_size: E, width of the hidden layer.
        hidden_size: hidden width of the networks that make the weights.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        observation_size: int,
        *,
        embedding_size: int = 32,
        hidden_size: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        E, h = embedding_size, hidden_size
        self.first_weights = mlp([2 * observation_size, h, E], generator=generator)
        self.first_bias = mlp([observation_size, E], generator=generator)
        self.second_weights = mlp([observation_size, h, E], generator=generator)
        self.second_bias = mlp([observation_size, h, 1], generator=generator)

    def forward(
        self, values: Tensor, observations: Tensor, present: Tensor | None = None
    ) -> Tensor:
        """Values [B, N] and observations [B, N, D] to the team's value [B]."""
        state = _mean(observations, present)
        seen = torch.cat([observations, state.unsqueeze(1).expand_as(observations)], -1)
        weights = self.first_weights(seen).abs()
        mixed = torch.einsum("bn,bne->be", _present_only(values, present), weights)
        hidden = F.elu(mixed + self.first_bias(state))
        out = (hidden * self.second_weights(state).abs()).sum(-1)
        total: Tensor = out + self.second_bias(state).squeeze(-1)
        return total


def make_team_head(
    name: TeamHeadName, observation_size: int, *, generator: torch.Generator | None = None
) -> SumMixer | MonotonicMixer:
    """The mixer of a name.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in ("sum", "monotonic"):
        raise ValueError(f"team_head ({name!r}) must be 'sum' or 'monotonic'.")
    if name == "sum":
        return SumMixer()
    return MonotonicMixer(observation_size, generator=generator)


def _present_only(values: Tensor, present: Tensor | None) -> Tensor:
    return values if present is None else values.masked_fill(~present, 0.0)


def _mean(observations: Tensor, present: Tensor | None) -> Tensor:
    if present is None:
        return observations.mean(1)
    here = present.unsqueeze(-1)
    return (observations * here).sum(1) / here.sum(1).clamp(min=1)
