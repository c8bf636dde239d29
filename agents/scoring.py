"""Log-probabilities of completions, in batches and at completion positions only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from marlogue.agents.trunk import Trunk, pad

#: Logits of this many positions exist at a time before they are reduced to log-probabilities.
_LOGIT_CHUNK = 256
#: Padded tokens of one micro-batch when its size is left to us.
_TOKENS_PER_MICRO_BATCH = {"cpu": 512}
_TOKENS_PER_MICRO_BATCH_ELSEWHERE = 8192


class Answered(NamedTuple):
    """A prompt of P tokens and its completion of C tokens."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]


class Scores(NamedTuple):
    """What one forward pass says about B completions of T generated tokens altogether.

    Attributes:
        token_log_probs: [T] log-probability of each generated token, row after row, float32.
        rows: [T] the row of the batch that each token belongs to.
        prompt_hidden: [B, D] hidden state at the last prompt token (before the completion).
        last_hidden: [B, D] hidden state at the last completion token.
    """

    token_log_probs: Tensor
    rows: Tensor
    prompt_hidden: Tensor
    last_hidden: Tensor

    @property
    def log_probs(self) -> Tensor:
        """[B] log-probability of each completion: the sum over its tokens."""
        return sum_by_row(self.token_log_probs, self.rows, self.last_hidden.size(0))


def sum_by_row(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Sum ``values`` [T] into [count] by the row that each belongs to."""
    return values.new_zeros(count).index_add(0, rows, values)


def score(
    trunk: Trunk, answered: Sequence[Answered], *, pad_id: int, temperature: float = 1.0
) -> Scores:
    """Score B completions under a model; differentiable.

    The end token is scored like any other; prompt and padding never are: the positions come from
    the lengths. The logit of the token at position n is read at position n - 1. Sequences are
    padded on the right, which a causal model cannot see.

    Args:
        trunk: the model.
        answered: prompts and completions as ids, at least one id each.
        pad_id: any valid id.
        temperature: the logits are divided by it, as at sampling.

    Raises:
        ValueError: when a prompt or completion is empty, or the temperature is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature ({temperature}) must be above 0 to score.")
    if not all(prompt and completion for prompt, completion in answered):
        raise ValueError("answered must hold at least one prompt and one completion token each.")
    batch = pad(
        [(*prompt, *completion) for prompt, completion in answered],
        pad_id=pad_id,
        device=trunk.device,
    )
    starts = torch.tensor([len(prompt) for prompt, _ in answered], device=trunk.device)
    counts = torch.tensor([len(ids) for _, ids in answered], device=trunk.device)
    columns = torch.arange(batch.ids.size(1), device=trunk.device)
    generated = (columns >= starts[:, None]) & (columns < (starts + counts)[:, None])
    predicts = generated.roll(-1, dims=1)  # one earlier; column 0 is always a prompt token
    hidden, logits = trunk.hidden_and_logits(batch, predicts)
    row = torch.arange(len(answered), device=trunk.device)
    return Scores(
        token_log_probs=_token_log_probs(logits, batch.ids[generated], temperature),
        rows=row.repeat_interleave(counts),
        prompt_hidden=hidden[row, starts - 1],
        last_hidden=hidden[row, starts + counts - 1],
    )


def _token_log_probs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """[T, V] logits and [T] tokens to [T] log-probabilities."""
    parts = [
        -F.cross_entropy(some / temperature if temperature != 1 else some, ids, reduction="none")
        for some, ids in zip(logits.split(_LOGIT_CHUNK), tokens.split(_LOGIT_CHUNK), strict=True)
    ]
    return torch.cat(parts)


def k3(policy: Tensor, reference: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference) per token: ``exp(d) - d - 1`` with
    ``d = log p_reference - log p_policy`` (Schulman 2020, "Approximating KL divergence").
    It is never negative, and 0 where the two agree."""
    difference = reference - policy
    return difference.expm1() - difference  # exp(d) - 1 would lose what is left of a small d


def micro_batches(
    lengths: Sequence[int], size: int | None, device: torch.device
) -> Iterator[list[int]]:
    """Split rows into micro-batches of similar length.

    Args:
        lengths: tokens of each row.
        size: rows of a micro-batch; None lets the padded tokens decide, by what was measured to
            be fast for the device.
        device: where they will run.

    Yields:
        Row numbers, every row once, longest rows first (what does not fit fails at once).

    Raises:
        ValueError: when ``size`` is below 1.
    """
    if size is not None and size < 1:
        raise ValueError(f"micro_batch_size ({size}) must be at least 1.")
    budget = _TOKENS_PER_MICRO_BATCH.get(device.type, _TOKENS_PER_MICRO_BATCH_ELSEWHERE)
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    first = 0
    while first < len(order):
        count = size or max(1, budget // max(1, lengths[order[first]]))
        yield order[first : first + count]
        first += count
