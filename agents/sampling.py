"""From next-token logits to a token: temperature, top-k, top-p, and streams of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marlogue.agents.rules import check_fields, real, whole

#: The name of one completion's random numbers, e.g. (seed, item, generation, turn, agent).
Stream = Sequence[int]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a completion is sampled. Nothing else plays a part: a checkpoint's own
    ``generation_config`` is read for its end tokens only.

    Attributes:
        max_new_tokens: the most tokens generated, the end token included.
        min_new_tokens: end tokens are impossible before this many tokens were generated.
        temperature: logits are divided by it; 0 takes the most probable token.
        top_p: the smallest set of most probable tokens whose probability reaches ``top_p``.
        top_k: the ``top_k`` most probable tokens; None for all. With both, top-p acts inside top-k.

    Raises:
        ValueError: when a value has a wrong type or is out of its range.
    """

    max_new_tokens: int = whole(256, at_least=1)
    min_new_tokens: int = whole(0, at_least=0)
    temperature: float = real(1.0, at_least=0)
    top_p: float = real(1.0, above=0, at_most=1)
    top_k: int | None = whole(None, at_least=1, optional=True)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens ({self.min_new_tokens}) must be at most max_new_tokens "
                f"({self.max_new_tokens}); set a smaller one."
            )

    @property
    def restricts(self) -> bool:
        """True when some tokens that the model allows can't be sampled."""
        return self.top_p < 1 or self.top_k is not None or self.min_new_tokens > 0


def uniforms(streams: Sequence[Stream], count: int) -> Tensor:
    """The first ``count`` random numbers of each stream.

    A stream is named, not consumed: a completion's random numbers depend on its own name alone,
    so it is the same whatever shares its batch, and evaluation can't disturb training.

    Returns:
        Tensor [B, count], float64, in [0, 1).
    """
    return torch.from_numpy(np.stack([_generator(stream).random(count) for stream in streams]))


def _generator(stream: Stream) -> np.random.Generator:
    # The length comes first, since numpy takes (1,) and (1, 0) for the same name.
    return np.random.default_rng((len(stream), *stream))


def sample_tokens(logits: Tensor, uniform: Tensor, params: SamplingParams) -> Tensor:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: [B, V].
        uniform: [B], in [0, 1).
        params: temperature, top_k and top_p are used.

    Returns:
        Tensor [B] of token ids.

    Raises:
        FloatingPointError: when a row holds NaN or no finite logit.
    """
    logits = logits.float()
    if params.temperature == 0:
        _refuse_non_finite(logits.amax(-1))
        return logits.argmax(-1)
    logits = logits / params.temperature
    candidates = None
    # Taking top-k first gives top-p far less to sort, and the same distribution.
    if params.top_k is not None and params.top_k < logits.size(-1):
        logits, candidates = logits.topk(params.top_k, dim=-1)
    elif params.top_p < 1:
        logits, candidates = logits.sort(dim=-1, descending=True)
    probabilities = torch.softmax(logits, dim=-1)
    if params.top_p < 1:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before >= params.top_p, 0.0)
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1]
    _refuse_non_finite(total)
    # Strictly below the total, so that a token of probability 0 is never the answer.
    below = torch.nextafter(total, torch.zeros_like(total))
    threshold = torch.minimum(uniform.to(total) * total, below).unsqueeze(-1)
    choice = torch.searchsorted(cumulative, threshold, right=True)
    return (choice if candidates is None else candidates.gather(-1, choice)).squeeze(-1)


def _refuse_non_finite(per_row: Tensor) -> None:
    if not bool(torch.isfinite(per_row).all()):
        raise FloatingPointError(
            "the policy's logits are not finite (NaN or infinite), so nothing can be sampled; "
            "lower the learning rate, set max_grad_norm, or use dtype='float32'."
        )
