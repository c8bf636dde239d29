"""Attention between two or three agents, where a matrix product per sample and head costs more
than the numbers in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Up to this many agents element-by-element products are quicker than the fused kernel.
FEW_AGENTS = 3


def attention_of_few(queries: Tensor, keys: Tensor, values: Tensor, keep: Tensor) -> Tensor:
    """Softmax attention as of `full_attention`, by products and sums of [B, M, N, H, d] arrays.

    Args:
        queries: [B, M, H, d].
        keys: [B, N, H, d].
        values: [B, N, H, d].
        keep: [M, N] or [B, M, N] bool.

    Returns:
        [B, M, H, d]; zeros where nothing is kept.
    """
    mixed: Tensor = _Few.apply(queries, keys, values, keep.unsqueeze(-1))
    return mixed


class _Few(torch.autograd.Function):
    """With w the weights and G the gradient of x = sum_j w_j v_j::

    dw_j = G . v_j      ds_j = w_j (dw_j - sum_l w_l dw_l)
    dq = sum_j ds_j k_j / sqrt(d)      dk_j = sum_i ds_ij q_i / sqrt(d)      dv_j = sum_i w_ij G_i
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, keep: Tensor) -> Tensor:
        # The products are the largest arrays here: all are written to the same memory.
        product = queries.unsqueeze(2) * keys.unsqueeze(1)
        scores = product.sum(-1).mul_(queries.shape[-1] ** -0.5)
        scores.masked_fill_(~keep, torch.finfo(scores.dtype).min)
        weights = scores.softmax(2).mul_(keep)
        ctx.save_for_backward(queries, keys, values, weights)
        return torch.mul(weights.unsqueeze(-1), values.unsqueeze(1), out=product).sum(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, weights = ctx.saved_tensors
        g = gradient.unsqueeze(2)
        product = g * values.unsqueeze(1)
        g_weights = product.sum(-1)
        g_values = torch.mul(weights.unsqueeze(-1), g, out=product).sum(1)
        g_scores = (g_weights - (weights * g_weights).sum(2, keepdim=True)).mul_(weights)
        g_scores = g_scores.mul_(queries.shape[-1] ** -0.5).unsqueeze(-1)
        g_queries = torch.mul(g_scores, keys.unsqueeze(1), out=product).sum(2)
        g_keys = torch.mul(g_scores, queries.unsqueeze(2), out=product).sum(1)
        return g_queries, g_keys, g_values, None
