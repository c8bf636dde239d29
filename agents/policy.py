"""A language-model agent: prompts in, completions out, and the probability of what it said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents.completion import Completion
from marlogue.agents.generation import GenerationBackend, TransformersBackend, end_token_ids
from marlogue.agents.heads import ValueHead, fitting
from marlogue.agents.prompts import PromptEncoder, pad_token_id
from marlogue.agents.sampling import SamplingParams, Stream
from marlogue.agents.scoring import Answered, Scores, score
from marlogue.agents.trunk import Trunk, context_length

_MEND = "shorten prompts (max_prompt_tokens) or completions (max_new_tokens)"


class LLMPolicy:
    """A model with its tokenizer, a way to write prompts, and a backend that generates.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer. Where it has no padding token, its end token pads.
        chat_template: True wraps each prompt as a user message in the tokenizer's chat template,
            a string is a template of one's own, False passes prompts as they are.
        system_prompt: the system message of the chat; needs a chat template.
        max_prompt_tokens: the longest prompt; None for what the model's context leaves.
        prompt_overflow: "error" refuses a longer prompt; "truncate" cuts the user's text from its
            left, keeps the system text and the assistant tag, and logs a warning.
        value_head: a value head on the same trunk (shared actor-critic); None for none.
        backend: what generates; None for :class:`TransformersBackend` with the two arguments
            that follow.
        generation_batch_size: the most sequences decoded together.
        generation_dtype: decode with a copy of the weights in this dtype.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template: bool | str = False,
        system_prompt: str | None = None,
        max_prompt_tokens: int | None = None,
        prompt_overflow: Literal["error", "truncate"] = "error",
        value_head: ValueHead | None = None,
        backend: GenerationBackend | None = None,
        generation_batch_size: int = 64,
        generation_dtype: torch.dtype | None = None,
    ) -> None:
        if model.config.is_encoder_decoder or model.get_output_embeddings() is None:
            raise ValueError(
                f"model ({type(model).__name__}) must be a causal language model with its head; "
                "load it with AutoModelForCausalLM."
            )
        self.model = model
        self.tokenizer = tokenizer
        self.trunk = Trunk(model)
        if not self.trunk.is_causal:
            raise ValueError(
                f"model ({type(model).__name__}) must read from left to right, but its tokens see "
                "those behind them; load it as a decoder (is_decoder=True)."
            )
        self.value_head = None if value_head is None else fitting(value_head, self.trunk.width)
        self.encode = PromptEncoder(
            tokenizer,
            chat_template=chat_template,
            system_prompt=system_prompt,
            max_prompt_tokens=max_prompt_tokens,
            prompt_overflow=prompt_overflow,
        )
        end_ids = end_token_ids(model, tokenizer)
        self.pad_id = pad_token_id(tokenizer, model.config.get_text_config().vocab_size)
        self.context_length = context_length(model)
        self.backend: GenerationBackend = backend or TransformersBackend(
            model,
            end_ids=end_ids,
            pad_id=self.pad_id,
            batch_size=generation_batch_size,
            dtype=generation_dtype,
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.trunk.device

    def act(
        self, prompts: Sequence[str], params: SamplingParams, streams: Sequence[Stream]
    ) -> list[Completion]:
        """Answer each prompt once.

        Args:
            prompts: B prompts, as the environment shows them.
            params: how to sample.
            streams: B names of random-number streams, tuples of non-negative integers. A
                completion depends on its own stream only, not on who else is in the batch.

        Raises:
            ValueError: when a prompt and ``max_new_tokens`` exceed the model's context.
        """
        prompt_ids = {prompt: self._prompt_ids(prompt, params) for prompt in dict.fromkeys(prompts)}
        encoded = [prompt_ids[prompt] for prompt in prompts]
        generated = self.backend.generate(encoded, params, streams)
        return [
            Completion(
                prompt_ids=ids,
                ids=answer.ids,
                text=str(self.tokenizer.decode(list(answer.ids), skip_special_tokens=True)),
                truncated=answer.truncated,
            )
            for ids, answer in zip(encoded, generated, strict=True)
        ]

    def read(self, prompt: str, params: SamplingParams) -> Completion:
        """The prompt as ids, with no answer: what a value of the prompt alone is read from."""
        return Completion(self._prompt_ids(prompt, params), ids=(), text="", truncated=False)

    def score(self, answered: Sequence[Answered], *, temperature: float = 1.0) -> Scores:
        """Log-probabilities of completions in one batch, differentiable; see
        :func:`marlogue.agents.scoring.score`."""
        return score(self.trunk, answered, pad_id=self.pad_id, temperature=temperature)

    def values(self, histories: Sequence[Sequence[int]]) -> Tensor:
        """Values [B] of B histories through the value head on this model's trunk.

        Raises:
            ValueError: when the policy has no value head.
        """
        if self.value_head is None:
            raise ValueError("value_head (None) must be given for a policy that also judges.")
        self.trunk.check_readable(histories, "a history", _MEND)
        return self.value_head(self.trunk.last_hidden(histories, pad_id=self.pad_id))

    def _prompt_ids(self, prompt: str, params: SamplingParams) -> tuple[int, ...]:
        ids = tuple(self.encode(prompt, self._room_for_prompt(params)))
        self.trunk.check_readable([ids], "a prompt", _MEND)
        return ids

    def _room_for_prompt(self, params: SamplingParams) -> int | None:
        if self.context_length is None:
            return None
        room = self.context_length - params.max_new_tokens
        if room < 1:
            raise ValueError(
                f"max_new_tokens ({params.max_new_tokens}) must be below the model's context of "
                f"{self.context_length} tokens; set a smaller one."
            )
        return room
