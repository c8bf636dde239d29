"""Attention of each agent to the others: to all, to neighbours, or in linear time.

Shapes: B samples, N agents, M query agents (all N where ``queries`` is None), H heads, d numbers
per key, e per value, K neighbours. ``queries`` [B, M] (long) are the agents that ask; ``present``
[B, N] (bool) are those that take part (None: all). No agent attends to itself or to an absent one,
and one that has no other to attend to gets zeros, with finite gradients.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from marlogue.agents.few_agents import FEW_AGENTS, attention_of_few
from marlogue.agents.linear_attention import sums_without_self, weights_of_features

#: From this many agents on, gathering neighbours is cheaper than masking all others.
GATHER_FROM = 512


def others_mask(
    num_agents: int,
    *,
    present: Tensor | None = None,
    queries: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Whom each query agent may attend to: bool [N, N], or [B, M, N] where samples differ."""
    agents = torch.arange(num_agents, device=device)
    own = agents if queries is None else queries
    keep = own.unsqueeze(-1) != agents
    return keep if present is None else keep & present.unsqueeze(-2)


def neighbours_mask(neighbours: Tensor, num_agents: int) -> Tensor:
    """Lists of neighbours [..., M, K] (-1: none) as a mask [..., M, N]."""
    spare = torch.where(neighbours < 0, num_agents, neighbours)
    mask = torch.zeros(
        *neighbours.shape[:-1], num_agents + 1, dtype=torch.bool, device=neighbours.device
    )
    return mask.scatter_(-1, spare, True)[..., :num_agents]


def rows_of(table: Tensor, queries: Tensor | None) -> Tensor:
    """Rows [B, M, ...] of the query agents in a table [B, N, ...]."""
    if queries is None:
        return table
    tail = table.shape[2:]
    index = queries.view(*queries.shape, *[1] * len(tail)).expand(-1, -1, *tail)
    return table.gather(1, index)


def softmax_weights(queries: Tensor, keys: Tensor, keep: Tensor) -> Tensor:
    """Weights [B, H, M, N]: the softmax over j of q_i . k_j / sqrt(d) where ``keep`` ([M, N] or
    [B, M, N]) is True; they sum to 1, or to 0 where nothing is kept (Vaswani et al. 2017)."""
    scores = torch.einsum("bmhd,bnhd->bhmn", queries, keys) * queries.shape[-1] ** -0.5
    mask = _per_head(keep)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1) * mask


def full_attention(queries: Tensor, keys: Tensor, values: Tensor, keep: Tensor) -> Tensor:
    """What `softmax_weights` make of the values, fused: the weights are never in memory.

    Args:
        queries: [B, M, H, d].
        keys: [B, N, H, d].
        values: [B, N, H, e].
        keep: [M, N] or [B, M, N], from `others_mask`.

    Returns:
        [B, M, H, e].
    """
    if keys.shape[1] <= FEW_AGENTS and values.shape == keys.shape:
        return attention_of_few(queries, keys, values, keep)
    alone = _alone(keep)
    # A row without anything to attend to is NaN in some kernels: it attends to all, and is erased.
    mask = keep if alone is None else keep | alone.unsqueeze(-1)
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=_per_head(mask),
    ).transpose(1, 2)
    return mixed if alone is None else mixed.masked_fill(alone[..., None, None], 0.0)


def linear_weights(queries: Tensor, keys: Tensor, keep: Tensor) -> Tensor:
    """Weights [B, H, M, N] of linear attention: phi(q_i) . phi(k_j) over its sum, where ``keep`` is
    True, with phi = elu + 1 (Katharopoulos et al. 2020)."""
    return weights_of_features(queries, keys, _per_head(keep))


def linear_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    present: Tensor | None = None,
    query_agents: Tensor | None = None,
) -> Tensor:
    """What `linear_weights` make of the values, in time and memory linear in N.

    Sums over all agents are made once; each agent's own term is then subtracted from numerator and
    denominator. For few agents (N up to d), where that would cost more and lose digits to
    cancellation (at N = 2 half of the sum is the own term), the weights are made instead.

    Args:
        queries: [B, M, H, d].
        keys: [B, N, H, d].
        values: [B, N, H, e].
        present: [B, N] bool.
        query_agents: [B, M] long.

    Returns:
        [B, M, H, e].
    """
    num_agents = keys.shape[1]
    if num_agents > keys.shape[-1]:
        return sums_without_self(queries, keys, values, present, query_agents)
    keep = others_mask(num_agents, present=present, queries=query_agents, device=keys.device)
    return torch.einsum("bhmn,bnhe->bmhe", linear_weights(queries, keys, keep), values)


def local_attention(
    queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor
) -> Tensor:
    """Softmax attention to at most K neighbours, gathered: time and memory go with M K.

    Args:
        queries: [B, M, H, d].
        keys: [B, N, H, d].
        values: [B, N, H, e].
        neighbours: [B, M, K] or [M, K] long, no agent twice in a list; -1 for none.
        keep: [M, N] or [B, M, N], from `others_mask`; neighbours that it leaves out are.

    Returns:
        [B, M, H, e], what `full_attention` gives with the neighbours' mask.
    """
    B, N, H, _ = keys.shape
    index = neighbours.clamp(min=0).expand(B, -1, -1)
    kept = (neighbours >= 0) & keep.expand(B, -1, -1).gather(-1, index)
    flat = (index + N * torch.arange(B, device=keys.device)[:, None, None]).reshape(-1)
    near_keys = keys.reshape(B * N, -1)[flat].view(*index.shape, H, -1)
    near_values = values.reshape(B * N, -1)[flat].view(*index.shape, H, -1)
    scores = torch.einsum("bmhd,bmkhd->bmhk", queries, near_keys) * queries.shape[-1] ** -0.5
    mask = kept.unsqueeze(-2)
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.einsum("bmhk,bmkhe->bmhe", scores.softmax(-1) * mask, near_values)


def mean_weights(keep: Tensor, batch_size: int, num_heads: int, dtype: torch.dtype) -> Tensor:
    """Equal weights [B, H, M, N] for all that ``keep`` holds."""
    even = keep.to(dtype) / keep.sum(-1, keepdim=True).clamp(min=1)
    return _per_head(even).expand(batch_size, num_heads, -1, -1)


def mean_of_others(
    values: Tensor, *, present: Tensor | None = None, query_agents: Tensor | None = None
) -> Tensor:
    """The mean of the values [B, N, ...] of the other agents that are present: [B, M, ...]."""
    shape = (*values.shape[:2], *[1] * (values.ndim - 2))
    if present is None:
        here = values.new_ones(1, 1, *shape[2:]).expand(shape)
    else:
        here = present.view(shape).to(values.dtype)
        values = values * here
    count = here.sum(1, keepdim=True) - rows_of(here, query_agents)
    others = values.sum(1, keepdim=True) - rows_of(values, query_agents)
    return (others / count.clamp(min=1)).masked_fill(count == 0, 0.0)


def _per_head(mask: Tensor) -> Tensor:
    """[M, N] as it is, [B, M, N] with a dimension for heads."""
    return mask if mask.ndim == 2 else mask.unsqueeze(1)


def _alone(keep: Tensor) -> Tensor | None:
    """Rows [M] or [B, M] that keep nothing; None where a look (free on a CPU) shows none."""
    alone = ~keep.any(-1)
    if alone.device.type == "cpu" and not alone.any():
        return None
    return alone
