"""A causal language model taken apart: hidden states first, logits only where they are needed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from marlogue.agents.modes import eval_mode

_PROBE_TOKENS = 3


class Padded(NamedTuple):
    """Token sequences of unequal length as one batch.

    Attributes:
        ids: [B, L] token ids.
        mask: [B, L], 1 at real tokens; made from the lengths, never from the ids, since a
            padding id may be a real token elsewhere (often the end token).
        positions: [B, L] position of each token in its own sequence (0 under padding).
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor


def pad(
    sequences: Sequence[Sequence[int]], *, pad_id: int, device: torch.device, left: bool = False
) -> Padded:
    """Pad B sequences to the length L of the longest, on the right or on the left."""
    length = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), length), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        where = slice(length - len(sequence), length) if left else slice(0, len(sequence))
        ids[row, where] = torch.as_tensor(sequence, dtype=torch.long)
        mask[row, where] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return Padded(ids.to(device), mask.to(device), positions.to(device))


def context_length(model: PreTrainedModel) -> int | None:
    """The most tokens that a model can read; None where it has no limit."""
    length: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length


class Trunk:
    """Hidden states and logits of a causal language model, in two steps.

    Most models end in ``logits = head(hidden)``, and then the head is applied to chosen positions
    only. Some do more (a soft cap, a scale). Which kind a model is, is measured once on a few
    tokens; models of the second kind go through their own whole forward pass.

    Args:
        model: a causal language model, or (for values only) a bare transformer without a head.

    Attributes:
        width: D, the size of a hidden state.
        is_causal: no token sees those behind it.

    Raises:
        ValueError: when the model can't be run this way.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.base: Any = model.base_model
        self.head: Any = model.get_output_embeddings()
        accepted = inspect.signature(self.base.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._plain_head = False
        self.width = 0
        self.is_causal = True
        self._probe()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.base.parameters()).device

    def check_readable(self, sequences: Sequence[Sequence[int]], what: str, mend: str) -> None:
        """See that the model can read these ids.

        Args:
            sequences: token ids.
            what: what they are, for the message.
            mend: what to do about one that is too long, for the message.

        Raises:
            ValueError: when a sequence is empty, longer than the context, or holds an id that the
                model doesn't know.
        """
        limit = context_length(self.model)
        vocabulary = self.model.config.get_text_config().vocab_size
        for ids in sequences:
            if not ids:
                raise ValueError(f"{what} must have at least one token.")
            if limit is not None and len(ids) > limit:
                raise ValueError(
                    f"{what} of {len(ids)} tokens must fit the model's context of {limit}; {mend}."
                )
            if max(ids) >= vocabulary:
                raise ValueError(
                    f"{what} holds the token id {max(ids)}, but the model's vocabulary ends at "
                    f"{vocabulary - 1}; pass the tokenizer of this model."
                )

    def hidden(self, batch: Padded) -> Tensor:
        """Final hidden states [B, L, D], after the last norm."""
        output = self.base(**self._inputs(batch), use_cache=False)
        return output.last_hidden_state

    def last_hidden(self, sequences: Sequence[Sequence[int]], *, pad_id: int = 0) -> Tensor:
        """Hidden states [B, D] at the last token of each of B sequences."""
        ends = torch.tensor([[len(sequence) - 1] for sequence in sequences])
        return self.hidden_at(sequences, ends, pad_id=pad_id)[:, 0]

    def hidden_at(
        self, sequences: Sequence[Sequence[int]], positions: Tensor, *, pad_id: int = 0
    ) -> Tensor:
        """Hidden states [B, K, D] at K positions [B, K] of each of B sequences."""
        batch = pad(sequences, pad_id=pad_id, device=self.device)
        row = torch.arange(len(sequences), device=self.device)[:, None]
        return self.hidden(batch)[row, positions.to(self.device)]

    def hidden_and_logits(self, batch: Padded, select: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [B, L, D], and logits [S, V] of the S positions where ``select`` [B, L]
        is True (row by row), in float32."""
        if self._plain_head:
            hidden = self.hidden(batch)
            return hidden, self.head(hidden[select]).float()
        output = self.model(**self._inputs(batch), use_cache=False, output_hidden_states=True)
        return output.hidden_states[-1], output.logits[select].float()

    def new_cache(self) -> DynamicCache:
        """An empty key-value cache of the kind that the model wants."""
        return DynamicCache(config=self.model.config)

    def next_logits(self, batch: Padded, cache: DynamicCache) -> Tensor:
        """Logits [B, V] after the last column. ``batch.mask`` also covers what the cache holds."""
        inputs = {**self._inputs(batch), self._cache_name: cache, "use_cache": True}
        if self._plain_head:
            return self.head(self.base(**inputs).last_hidden_state[:, -1])
        return self.model(**inputs).logits[:, -1]

    def _inputs(self, batch: Padded) -> dict[str, Tensor]:
        inputs = {"input_ids": batch.ids, "attention_mask": batch.mask}
        if self._takes_positions:
            inputs["position_ids"] = batch.positions
        return inputs

    @torch.no_grad()
    def _probe(self) -> None:
        """Find out how the model behaves, on a few tokens, rather than trust its kind."""
        vocabulary = self.model.config.get_text_config().vocab_size
        tokens = [token % vocabulary for token in range(_PROBE_TOKENS)]
        batch = pad([tokens], pad_id=0, device=self.device)
        with eval_mode(self.model):
            hidden = self.hidden(batch)
            self.width = hidden.size(-1)
            near = 1e-3 if hidden.dtype == torch.float32 else 5e-2
            if self._takes_positions:
                default = self.base(
                    input_ids=batch.ids, attention_mask=batch.mask, use_cache=False
                ).last_hidden_state
                if not torch.allclose(default, hidden, rtol=near, atol=near, equal_nan=True):
                    raise ValueError(
                        f"model ({type(self.model).__name__}) counts positions in a way of its "
                        "own; only positions from 0 are supported."
                    )
            alone = self.hidden(pad([tokens[:1]], pad_id=0, device=self.device))
            self.is_causal = torch.allclose(
                alone[:, 0], hidden[:, 0], rtol=near, atol=near, equal_nan=True
            )
            if self.head is not None:
                whole = self.model(**self._inputs(batch), use_cache=False).logits
                ours = self.head(hidden)
                # Exactly equal: a soft cap changes small logits by very little.
                self._plain_head = torch.equal(whole, ours)
