"""Linear attention to the other agents: one sum over all, less each agent's own term.

Shapes: B samples, N agents, M query agents, H heads, d numbers per key, e per value.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# What is left of a sum without the own term is taken to be at least this share of it: below, only
# rounding would be left.
_LEAST_SHARE = 1e-6


def positive(scores: Tensor) -> Tensor:
    """phi = elu + 1 (Katharopoulos et al. 2020, equation 7)."""
    return F.elu(scores) + 1


def weights_of_features(queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """Weights [B, H, M, N]: phi(q_i) . phi(k_j) over its sum, where ``mask`` is True; rows are 0
    where it is nowhere."""
    scores = torch.einsum("bmhd,bnhd->bhmn", positive(queries), positive(keys)) * mask
    total = scores.sum(-1, keepdim=True)
    return scores / total.where(total > 0, 1.0)


def sums_without_self(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    present: Tensor | None,
    query_agents: Tensor | None,
) -> Tensor:
    """x_i = sum over j != i of phi(q_i) . phi(k_j) v_j, over the same sum without v_j.

    Args:
        queries: [B, M, H, d].
        keys: [B, N, H, d].
        values: [B, N, H, e].
        present: [B, N] bool; None for all.
        query_agents: [B, M] long; None for all N.

    Returns:
        [B, M, H, e]; zeros where nobody else is there.
    """
    mixed: Tensor = _SumsWithoutSelf.apply(queries, keys, values, present, query_agents)
    return mixed


class _SumsWithoutSelf(torch.autograd.Function):
    """The formula above and its derivative, each in a few passes over memory.

    With S = sum_j k_j v_j^T and z = sum_j k_j over all agents (k, q: features), own = q_i . k_i::

        x = (q S - own v_i) / left        left = q z - own
        phi'(s) = min(phi(s), 1)
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        present: Tensor | None,
        query_agents: Tensor | None,
    ) -> Tensor:
        q, k, v = _features(queries), _features(keys), _by_head(values)
        if present is not None:
            k.mul_(present[:, None, :, None])
        own_k, own_v = _rows(k, query_agents), _rows(v, query_agents)
        sums, total_k = k.transpose(2, 3) @ v, k.sum(2).unsqueeze(-1)
        own = (q * own_k).sum(-1, keepdim=True)
        total = q @ total_k
        left = torch.maximum(total - own, _LEAST_SHARE * total)
        mixed = (q @ sums).addcmul_(own, own_v, value=-1)
        if present is not None:
            here = present if query_agents is None else present.gather(1, query_agents)
            alone = (present.sum(1, keepdim=True) - here.long() == 0)[:, None, :, None]
            left.masked_fill_(alone, torch.inf)
        mixed.div_(left)
        free = total - own > _LEAST_SHARE * total
        ctx.save_for_backward(q, k, v, mixed, own, left, free, sums, total_k, query_agents)
        return mixed.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mixed, own, left, free, sums, total_k, query_agents = ctx.saved_tensors
        own_k, own_v = _rows(k, query_agents), _rows(v, query_agents)
        g = _by_head(gradient).div_(left)  # of the numerator
        g_left = -(g * mixed).sum(-1, keepdim=True)
        g_own = -(g * own_v).sum(-1, keepdim=True) - g_left * free
        g_total = torch.where(free, g_left, _LEAST_SHARE * g_left)
        g_sums = q.transpose(2, 3) @ g
        g_total_k = q.transpose(2, 3) @ g_total

        g_q = (g @ sums.transpose(2, 3)).addcmul_(g_own, own_k)
        g_q.addcmul_(g_total, total_k.transpose(2, 3))
        g_k = (v @ g_sums.transpose(2, 3)).add_(g_total_k.transpose(2, 3))
        g_v = k @ g_sums
        if query_agents is None:
            g_k.addcmul_(g_own, q)
            g_v.addcmul_(own, g, value=-1)
        else:
            g_k.scatter_add_(2, _index(query_agents, g_k), g_own * q)
            g_v.scatter_add_(2, _index(query_agents, g_v), -own * g)
        g_q.mul_(q.clamp(max=1))
        g_k.mul_(k.clamp(max=1))  # 0 for absent agents, as their features are
        return g_q.transpose(1, 2), g_k.transpose(1, 2), g_v.transpose(1, 2), None, None


def _by_head(x: Tensor) -> Tensor:
    """[B, n, H, d] to a fresh [B, H, n, d], the layout of batched products."""
    swapped = x.transpose(1, 2)
    return torch.empty(swapped.shape, dtype=x.dtype, device=x.device).copy_(swapped)


def _features(scores: Tensor) -> Tensor:
    return F.elu_(_by_head(scores)).add_(1)


def _rows(x: Tensor, query_agents: Tensor | None) -> Tensor:
    return x if query_agents is None else x.gather(2, _index(query_agents, x))


def _index(query_agents: Tensor, x: Tensor) -> Tensor:
    return query_agents[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
