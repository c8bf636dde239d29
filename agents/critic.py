"""A critic: a transformer without a language-model head, and a value head on its last token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents.heads import ValueHead, fitting
from marlogue.agents.trunk import Trunk

_MEND = (
    "shorten prompts (max_prompt_tokens) or completions (max_new_tokens), write a shorter text "
    "(joint_formatter), take a critic with a longer context, or in MAAC set "
    "critic_architecture='attention', which reads each agent's text by itself"
)


class Critic:
    """Maps a history (token ids) to one value, read at the history's last token.

    V(h) reads a history that ends with the prompt, Q(h, a) one that ends with the completion.

    Args:
        model: a transformers model. A language-model head, where it has one, is neither run nor
            trained.
        tokenizer: turns text into the ids of this model.
        value_head: the head; by default a new one of ``value_head_hidden_dim``.
        value_head_hidden_dim: hidden size of the new head; None for a linear one.
        generator: source of the new head's weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        value_head: ValueHead | None = None,
        value_head_hidden_dim: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.trunk = Trunk(model)
        if value_head is None:
            value_head = ValueHead(self.trunk.width, value_head_hidden_dim, generator=generator)
        self.value_head = fitting(value_head, self.trunk.width).to(self.trunk.device)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.trunk.device

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is trained: the trunk and the value head."""
        yield from self.trunk.base.parameters()
        yield from self.value_head.parameters()

    def values(self, histories: Sequence[Sequence[int]]) -> Tensor:
        """Values [B] of B histories in one batch, float32; differentiable.

        Raises:
            ValueError: when a history is empty, longer than the model's context, or holds an id
                outside its vocabulary.
        """
        self.trunk.check_readable(histories, "a history for the critic", _MEND)
        return self.value_head(self.trunk.last_hidden(histories))
