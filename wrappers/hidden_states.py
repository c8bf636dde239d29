"""Prompts as the hidden states of a language model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents.modes import eval_mode
from marlogue.agents.prompts import PromptEncoder, PromptOverflow
from marlogue.agents.trunk import Trunk, context_length, pad
from marlogue.envs.callbacks import shortened
from marlogue.envs.task import whole_number
from marlogue.wrappers.recent import Recent

POOLINGS = ("mean", "last")
_FLOOR = 0.1  # of the mean deviation
_SAME = 1e-6  # of the largest number: what rounding makes of equal ones


class PooledHidden:
    """Embed a text by what a transformers model makes of it: `embed(prompt) -> float32 [D]`.

    The hidden states after the last layer, averaged over the tokens, or those of the last token; a
    text without a visible character gives zeros. No gradient is kept, and the model's mode is put
    back.

    Hidden states of different prompts have most in common: with a pretrained model one coordinate
    may be a hundred times larger than what tells two prompts apart, and a small network learns
    badly from that. `standardize_on` some prompts of the task to bring out the differences.

    Vectors are remembered, so the model is taken to stay as it is; call `forget` after training it.

    Args:
        model: a language model, or a bare transformer without a head.
        tokenizer: its tokenizer.
        pooling: "mean" or "last".
        max_prompt_tokens: the longest text; None for the model's context.
        prompt_overflow: "error" refuses a longer text; "truncate" cuts it on the left, and logs a
            warning.
        standardize_on: at least two texts that the model tells apart; blank ones are left out. Over
            these each number of the vectors is brought to mean 0 and standard deviation 1. None
            leaves them as they are.
        remember: of how many texts the vectors are remembered.

    Attributes:
        size: D, the width of the model.

    Raises:
        TypeError, ValueError: when an argument does not fit. When a text is too long.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: Literal["mean", "last"] = "mean",
        max_prompt_tokens: int | None = None,
        prompt_overflow: PromptOverflow = "error",
        standardize_on: Iterable[str] | None = None,
        remember: int = 4096,
    ) -> None:
        if pooling not in POOLINGS:
            raise ValueError(f"pooling ({pooling!r}) must be one of {', '.join(POOLINGS)}")
        self.pooling = pooling
        self.trunk = Trunk(model)
        self.encode = PromptEncoder(
            tokenizer,
            max_prompt_tokens=_limit(max_prompt_tokens, context_length(model)),
            prompt_overflow=prompt_overflow,
        )
        self.size = self.trunk.width
        self._recent: Recent[str, NDArray[np.float32]] = Recent(remember)
        self._texts = None if standardize_on is None else _different(standardize_on)
        self._mean, self._scale = self._statistics()

    def __call__(self, prompt: str) -> NDArray[np.float32]:
        """Embed a text."""
        vector = self._recent.get(prompt)
        if vector is None:
            vector = self._vector(prompt)
            self._recent.put(prompt, vector)
        return vector.copy()

    def forget(self) -> None:
        """Read every text anew from now on; to be called when the model's weights have changed."""
        self._recent.clear()
        self._mean, self._scale = self._statistics()

    def _statistics(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What is taken off each number, and what it is divided by."""
        if self._texts is None:
            return np.zeros(self.size, np.float32), np.ones(self.size, np.float32)
        vectors = np.stack([self._read(text) for text in self._texts])
        deviation = vectors.std(0)
        if deviation.max() <= _SAME * np.abs(vectors).max():
            raise ValueError(
                f"standardize_on ({shortened(self._texts)}) must be texts that the model tells "
                "apart, and they all have the same hidden state; give prompts of the task"
            )
        # A number that hardly changes here must not explode where it does change.
        return vectors.mean(0), np.maximum(deviation, _FLOOR * deviation.mean())

    def _vector(self, prompt: str) -> NDArray[np.float32]:
        if not prompt.strip():
            return np.zeros(self.size, dtype=np.float32)
        return (self._read(prompt) - self._mean) / self._scale

    @torch.no_grad()
    def _read(self, prompt: str) -> NDArray[np.float32]:
        ids = self.encode(prompt)
        self.trunk.check_readable([ids], "a prompt", "set max_prompt_tokens")
        with eval_mode(self.trunk.model):
            hidden = self.trunk.hidden(pad([ids], pad_id=0, device=self.trunk.device))[0]
        pooled = hidden.float().mean(0) if self.pooling == "mean" else hidden[-1].float()
        # A copy, or the states of all tokens would be kept alive.
        vector: NDArray[np.float32] = pooled.cpu().numpy().copy()
        return vector


def _limit(max_prompt_tokens: int | None, context: int | None) -> int | None:
    if max_prompt_tokens is None:
        return context
    limit = whole_number("max_prompt_tokens", max_prompt_tokens)
    if context is not None and limit > context:
        raise ValueError(
            f"max_prompt_tokens ({limit}) must be at most the model's context of {context} tokens"
        )
    return limit


def _different(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise TypeError(f"standardize_on ({texts!r}) must be texts, not one text")
    different = [text for text in dict.fromkeys(texts) if text.strip()]
    if len(different) < 2:
        raise ValueError(
            f"standardize_on ({different!r}) must hold at least two different texts, not blank "
            "ones; give prompts of the task"
        )
    return different
