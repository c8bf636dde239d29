"""Generation backends: prompt ids in, completion ids out.

A backend is anything with the two methods of :class:`GenerationBackend`. The one here runs a
transformers model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents.modes import eval_mode
from marlogue.agents.sampling import SamplingParams, Stream, sample_tokens, uniforms
from marlogue.agents.trunk import Padded, Trunk, pad


class Generated(NamedTuple):
    """Ids as sampled, a generated end token included, and whether the limit cut them."""

    ids: tuple[int, ...]
    truncated: bool


class GenerationBackend(Protocol):
    """Prompt ids to completions, for one model."""

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, streams: Sequence[Stream]
    ) -> list[Generated]:
        """One completion per prompt, in the prompts' order. ``streams[k]`` names the random
        numbers of completion k (see :func:`marlogue.agents.sampling.uniforms`)."""

    def sync(self, model: PreTrainedModel) -> None:
        """Called when the weights of ``model`` have changed."""


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a completion: of the generation config, the config and the tokenizer."""
    declared: list[Any] = [tokenizer.eos_token_id, getattr(model.config, "eos_token_id", None)]
    if model.generation_config is not None:
        declared.append(model.generation_config.eos_token_id)
    ids: set[int] = set()
    for value in declared:
        ids.update(value if isinstance(value, Iterable) else () if value is None else (value,))
    return frozenset(ids)


class TransformersBackend:
    """Batched decoding with a transformers model and its key-value cache.

    Prompts are sorted by length (little padding) and padded on the left; a prompt that occurs
    several times is read once and its cache repeated; sequences that ended leave the batch.

    Args:
        model: the causal language model.
        end_ids: ids that end a completion.
        pad_id: any valid id; it is masked wherever it pads.
        batch_size: the most sequences decoded together.
        dtype: decode with a copy of the model in this dtype; None decodes with the model itself.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        end_ids: frozenset[int],
        pad_id: int,
        batch_size: int = 64,
        dtype: torch.dtype | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"generation_batch_size ({batch_size}) must be at least 1.")
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"generation_dtype ({dtype!r}) must be a torch.dtype or None.")
        if model._is_stateful:
            raise ValueError(
                f"model ({type(model).__name__}) is recurrent: its state would read the padding of "
                "a batch; use a model with attention, or pass a backend of your own."
            )
        # A tokenizer may know ids that the model can't say.
        vocabulary = model.config.get_text_config().vocab_size
        self.end_ids = frozenset(token for token in end_ids if token < vocabulary)
        self.pad_id = pad_id
        self.batch_size = batch_size
        self._is_copy = dtype is not None and dtype != model.dtype
        if self._is_copy:
            # Not loaded again: the copy must hold the weights as they are now.
            model = deepcopy(model).requires_grad_(False)
            nn.Module.to(model, dtype)
        self.trunk = Trunk(model)

    @torch.no_grad()
    def sync(self, model: PreTrainedModel) -> None:
        """Bring the decoding copy, where there is one, up to date with ``model``."""
        if self._is_copy:
            for ours, theirs in zip(self.trunk.model.parameters(), model.parameters(), strict=True):
                ours.copy_(theirs)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, streams: Sequence[Stream]
    ) -> list[Generated]:
        """See :class:`GenerationBackend`.

        Raises:
            FloatingPointError: when the model's logits are not finite.
        """
        if len(prompts) != len(streams):
            raise ValueError(
                f"streams ({len(streams)}) must hold one name per prompt ({len(prompts)})."
            )
        answers: list[Generated | None] = [None] * len(prompts)
        # Equal prompts stay neighbours, so that each batch reads every prompt once.
        order = sorted(range(len(prompts)), key=lambda k: (len(prompts[k]), tuple(prompts[k])))
        with eval_mode(self.trunk.model):
            for first in range(0, len(order), self.batch_size):
                members = order[first : first + self.batch_size]
                generated = self._decode(
                    [tuple(prompts[k]) for k in members], params, [streams[k] for k in members]
                )
                for k, answer in zip(members, generated, strict=True):
                    answers[k] = answer
        return [answer for answer in answers if answer is not None]

    @torch.no_grad()
    def _decode(
        self, prompts: list[tuple[int, ...]], params: SamplingParams, streams: list[Stream]
    ) -> list[Generated]:
        device = self.trunk.device
        random = uniforms(streams, params.max_new_tokens).to(device)
        end_ids = torch.tensor(sorted(self.end_ids), dtype=torch.long, device=device)
        tokens = torch.full(
            (len(prompts), params.max_new_tokens), self.pad_id, dtype=torch.long, device=device
        )
        lengths = torch.full((len(prompts),), params.max_new_tokens, device=device)
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        live = torch.arange(len(prompts), device=device)  # rows of `tokens` still in the batch

        logits, batch, cache = self._read_prompts(prompts)
        for step in range(params.max_new_tokens):
            if step < params.min_new_tokens:
                logits[:, end_ids] = -torch.inf
            chosen = sample_tokens(logits, random[live, step], params)
            tokens[live, step] = chosen
            stops = torch.isin(chosen, end_ids)
            lengths[live[stops]] = step + 1
            ended[live[stops]] = True
            if bool(stops.any()):
                go_on = (~stops).nonzero().squeeze(-1)
                if go_on.numel() == 0:
                    break
                live, chosen = live[go_on], chosen[go_on]
                batch = Padded(*(field[go_on] for field in batch))
                cache.batch_select_indices(go_on)
            if step + 1 == params.max_new_tokens:
                break
            batch = Padded(
                chosen.unsqueeze(-1),
                torch.cat([batch.mask, batch.mask.new_ones(len(live), 1)], dim=-1),
                batch.positions[:, -1:] + 1,
            )
            logits = self.trunk.next_logits(batch, cache)
        return [
            Generated(tuple(row[:length]), not done)
            for row, length, done in zip(
                tokens.tolist(), lengths.tolist(), ended.tolist(), strict=True
            )
        ]

    def _read_prompts(self, prompts: list[tuple[int, ...]]) -> tuple[Tensor, Padded, Any]:
        """Logits [B, V] after each prompt, with the batch and the cache that hold them."""
        unique = list(dict.fromkeys(prompts))
        batch = pad(unique, pad_id=self.pad_id, device=self.trunk.device, left=True)
        cache = self.trunk.new_cache()
        logits = self.trunk.next_logits(batch, cache)
        if len(unique) < len(prompts):
            place = {prompt: row for row, prompt in enumerate(unique)}
            rows = torch.tensor([place[prompt] for prompt in prompts], device=self.trunk.device)
            cache.batch_select_indices(rows)
            logits = logits[rows]
            batch = Padded(*(field[rows] for field in batch))
        return logits, batch, cache
