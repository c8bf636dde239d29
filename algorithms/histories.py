"""What a critic reads: the joint history (MAAC) or an agent's own (IAC), as token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from transformers import PreTrainedTokenizerBase

from marlogue.algorithms.sample import Sample
from marlogue.envs.callbacks import noted

CriticType = Literal["v", "q"]
#: ``joint_formatter(prompts, completions)``; completions are None for V(h).
JointFormatter = Callable[[Sequence[str], Sequence[str] | None], str]
History = Callable[[Sample], tuple[int, ...]]

_REMEMBERED_TEXTS = 4096


class JointHistory:
    """The joint history h = (h_1, ..., h_N), for Q with the joint action: one text, one tokenizer.

    Args:
        tokenizer: of the critic.
        critic_type: "v" or "q".
        formatter: writes the text; see :func:`marlogue.envs.joint_text`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        critic_type: CriticType,
        formatter: JointFormatter,
    ) -> None:
        self._reads_actions = critic_type == "q"
        self._formatter = formatter
        self._encode = encoder(tokenizer)

    def __call__(self, sample: Sample) -> tuple[int, ...]:
        """The ids; the same for every agent's sample of one joint step."""
        joint = sample.joint
        completions = joint.completions if self._reads_actions else None
        with noted(f"calling joint_formatter for item {sample.item_idx}, turn {sample.turn_idx}"):
            text = self._formatter(joint.prompts, completions)
        if not text or not isinstance(text, str):
            raise ValueError(
                f"joint_formatter must return a text that is not empty; it returned {text!r}."
            )
        return self._encode(text)


class OwnHistory:
    """The agent's own history h_i, for Q with its own action: the ids that the agent read and
    wrote, or the same texts encoded anew where the critic has another vocabulary.

    Args:
        critic_type: "v" or "q".
        tokenizer: of the critic.
        shares_ids: for each agent, whether its ids mean the same to the critic.
    """

    def __init__(
        self,
        critic_type: CriticType,
        tokenizer: PreTrainedTokenizerBase,
        shares_ids: Sequence[bool],
    ) -> None:
        self._reads_actions = critic_type == "q"
        self._shares_ids = list(shares_ids)
        self._encode = encoder(tokenizer)
        self._tokenizer = tokenizer

    def __call__(self, sample: Sample) -> tuple[int, ...]:
        """The ids."""
        if self._shares_ids[sample.agent_idx]:
            return sample.prompt_ids + (sample.completion_ids if self._reads_actions else ())
        prompt = self._encode(sample.prompt)
        if not self._reads_actions:
            return prompt
        # One by one, as the agent read and wrote them: joined texts could share a token.
        return prompt + tuple(
            self._tokenizer(sample.completion, add_special_tokens=False).input_ids
        )


def encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], tuple[int, ...]]:
    """Text to ids with the tokenizer's special tokens, remembered for a while."""

    @lru_cache(maxsize=_REMEMBERED_TEXTS)
    def encode(text: str) -> tuple[int, ...]:
        ids = tuple(tokenizer(text)["input_ids"])
        if not ids:
            raise ValueError(f"the critic's tokenizer makes no token of {text!r}.")
        return ids

    return encode
