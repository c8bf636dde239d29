"""A common value and what each action adds to it."""

from __future__ import annotations

from torch import Tensor


def dueling_values(raw: Tensor, exists: Tensor, level: Tensor | float = 0.0) -> Tensor:
    """``Q(a) = V + level + G(a) - mean_b G(b)`` over the actions that exist (Wang et al. 2016,
    "Dueling Network Architectures for Deep Reinforcement Learning", eq. 9).

    What is learnt of one action's value moves V, and so the values of all of them. Otherwise,
    while the level of the values is still being found, actions that have not been tried of late
    lag behind by far more than actions differ, and policies turn to them.

    Args:
        raw: [..., 1 + A], V and G.
        exists: [..., A] bool, at least one of them True.
        level: the mean of all values, where it is kept apart.

    Returns:
        [..., A], 0 for actions that do not exist.
    """
    value, gains = raw[..., :1] + level, raw[..., 1:].masked_fill(~exists, 0.0)
    mean = gains.sum(-1, keepdim=True) / exists.sum(-1, keepdim=True)
    return (value + gains - mean).masked_fill(~exists, 0.0)
