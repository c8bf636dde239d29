"""How widely agents spread their attention.

B samples, M query agents, N agents, H heads, K agents (over all samples) that have a choice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marlogue.algorithms.aac_losses import attention_entropy


def choices(
    weights: Tensor,
    present: Tensor | None = None,
    queries: Tensor | None = None,
    reach: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The weights of agents that have a choice, that is at least two others to attend to.

    Args:
        weights: [B, H, M, N] of ``AttentionCritic.attention_weights``.
        present: [B, N] bool; None for all.
        queries: [B, M] long, whose weights they are; None for all in order.
        reach: the most others that an agent can attend to (k of local attention).

    Returns:
        Weights [K, H, N], and between how many others each chose [K].
    """
    weights = weights.detach()
    samples, _, asked, count = weights.shape
    if present is None:
        present = torch.ones(samples, count, dtype=torch.bool, device=weights.device)
    there = present if queries is None else present.gather(1, queries)
    others = (present.sum(-1, keepdim=True) - 1).expand(samples, asked)
    if reach is not None:
        others = others.clamp(max=reach)
    chooses = there & (others > 1)
    return weights.movedim(1, 2)[chooses], others[chooses]


def head_entropies(weights: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Mean entropy of attention weights, head by head.

    Args:
        weights: [K, H, N] of :func:`choices`.
        others: [K].

    Returns:
        [H] in nats, and [H] divided by the log of the number of others: 1 when all get the same,
        0 when one gets all.
    """
    entropies = attention_entropy(weights)
    return entropies.mean(0), (entropies / others.log()[:, None]).mean(0)
