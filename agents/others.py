"""The part of a critic that mixes what it knows of the other agents."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from marlogue.agents import attention
from marlogue.agents.mlp import uniform_parameter
from marlogue.agents.neighbourhoods import Neighbourhood

AttentionName = Literal["full", "linear", "local", "mean"]


class OthersMixer(nn.Module):
    """x_i: per head sum_j w_ij LeakyReLU(W_v g_j) over the others j, heads side by side.

    The weights w_ij are the softmax of (W_q e_i) . (W_k g_j) / sqrt(d) (Iqbal and Sha 2019,
    equation 6; "full", or "local" over neighbours), those of linear attention (Katharopoulos et
    al. 2020; "linear"), or all equal ("mean").

    Args:
        width: of e, g and x.
        num_heads: H; d = width / H.
        kind: the weights.
        neighbourhood: whose neighbours "local" attends to.
        generator: source of the initial weights.

    Raises:
        ValueError: when heads do not divide the width, the kind is unknown, or a neighbourhood is
            missing or not used.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        kind: AttentionName = "full",
        neighbourhood: Neighbourhood | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if kind not in ("full", "linear", "local", "mean"):
            raise ValueError(f"attention ({kind!r}) must be 'full', 'linear', 'local' or 'mean'.")
        if num_heads < 1 or width % num_heads:
            raise ValueError(f"num_heads ({num_heads}) must divide the hidden size ({width}).")
        if (kind == "local") != (neighbourhood is not None):
            raise ValueError(
                f"neighbourhood ({neighbourhood!r}) must be given for attention='local' and for no "
                f"other (here {kind!r}); use Nearest or FixedGraph."
            )
        self.width, self.num_heads, self.kind = width, num_heads, kind
        self.neighbourhood = neighbourhood
        bound = width**-0.5
        self.value = uniform_parameter((width, width), bound, generator)
        self.value_bias = uniform_parameter((width,), bound, generator)
        if kind != "mean":
            self.query = uniform_parameter((width, width), bound, generator)
            self.key = uniform_parameter((width, width), bound, generator)

    def forward(
        self,
        own: Tensor,
        others: Tensor,
        observations: Tensor,
        present: Tensor | None,
        queries: Tensor | None,
    ) -> Tensor:
        """x [B, M, width] of query agents.

        Args:
            own: e of the query agents, [B, M, width].
            others: g of all agents, [B, N, width].
            observations: [B, N, D], for neighbourhoods.
            present: [B, N] bool; None for all.
            queries: [B, M] long; None for all.
        """
        # A flat product may be overwritten by its activation, which a view of one may not.
        flat = F.linear(others.flatten(0, 1), self.value, self.value_bias)
        values = F.leaky_relu_(flat).view_as(others)
        if self.kind == "mean":
            return attention.mean_of_others(values, present=present, query_agents=queries)
        values = self._heads(values)
        asked = self._heads(F.linear(own, self.query))
        keys = self._heads(F.linear(others, self.key))
        if self.kind == "linear":
            mixed = attention.linear_attention(
                asked, keys, values, present=present, query_agents=queries
            )
        elif self.neighbourhood is not None and others.shape[1] >= attention.GATHER_FROM:
            near = self.neighbourhood(observations, present, queries)
            allowed = self._everyone(others, present, queries)
            mixed = attention.local_attention(asked, keys, values, near, allowed)
        else:
            keep = self._keep(others, observations, present, queries)
            mixed = attention.full_attention(asked, keys, values, keep)
        return mixed.flatten(2)

    def weights(
        self,
        own: Tensor,
        others: Tensor,
        observations: Tensor,
        present: Tensor | None,
        queries: Tensor | None,
    ) -> Tensor:
        """w [B, H, M, N], arguments as for `forward`; a row sums to 1, or to 0 where there is
        nobody else. Differentiable."""
        keep = self._keep(others, observations, present, queries)
        if self.kind == "mean":
            return attention.mean_weights(keep, len(others), self.num_heads, others.dtype)
        asked = self._heads(F.linear(own, self.query))
        keys = self._heads(F.linear(others, self.key))
        if self.kind == "linear":
            return attention.linear_weights(asked, keys, keep)
        return attention.softmax_weights(asked, keys, keep)

    def _keep(
        self,
        others: Tensor,
        observations: Tensor,
        present: Tensor | None,
        queries: Tensor | None,
    ) -> Tensor:
        keep = self._everyone(others, present, queries)
        if self.neighbourhood is None:
            return keep
        near = self.neighbourhood(observations, present, queries)
        return keep & attention.neighbours_mask(near, others.shape[1])

    def _everyone(self, others: Tensor, present: Tensor | None, queries: Tensor | None) -> Tensor:
        return attention.others_mask(
            others.shape[1], present=present, queries=queries, device=others.device
        )

    def _heads(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.num_heads, -1))
