"""Names of the random numbers of a run.

Every random choice draws from a stream of its own, named by the run's seed, what it is for, and
where it happens. Nothing is consumed, so nothing disturbs anything else.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

TRAIN, EVAL, SHUFFLE, CRITIC_SHUFFLE, VALUE_HEAD, RESET = range(6)
# Of actor-attention-critic.
NETWORKS, ACT, EXPLORE, DRAW, REPLAY = range(6, 11)
ATTENTION = 11  # of a text critic


def derived_seed(*stream: int) -> int:
    """A seed for another library's generator, in [0, 2**31)."""
    return int(np.random.SeedSequence(stream).generate_state(1)[0] >> 1)


def restore_generator(generator: torch.Generator, state: torch.Tensor) -> None:
    """Go on with the draws of a generator whose state was saved. One on another kind of device
    cannot: it stays as it is, with a warning."""
    if state.shape != generator.get_state().shape:
        warnings.warn(
            "the run was saved on another kind of device, whose random numbers there are none of "
            f"on {generator.device}; it goes on with others.",
            stacklevel=2,
        )
        return
    generator.set_state(state.cpu())
