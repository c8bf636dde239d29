"""What a critic reads: the joint history (MAAC) or an agent's own (IAC), as token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from transformers import PreTrainedTokenizerBase

from marlogue.algorithms.sample import Sample

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
        text = self._formatter(joint.prompts, joint.completions if self._reads_actions else None)
        if not text or not isinstance(text, str):
            raise ValueError(
                f"joint_formatter must return a text that is not empty; it returned {text!r}."
            )
        return self._encode(text)


class OwnHistory:
    """The agent's own history h_i, for Q with its own action: the ids that the agent read and
    wrote, or their text encoded anew where the critic has another vocabulary.

    Args:
        critic_type: "v" or "q".
        tokenizer: of a critic with another vocabulary; None to use the agent's own ids.
    """

    def __init__(
        self, critic_type: CriticType, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        self._reads_actions = critic_type == "q"
        self._encode = None if tokenizer is None else encoder(tokenizer)

    def __call__(self, sample: Sample) -> tuple[int, ...]:
        """The ids."""
        if self._encode is not None:
            return self._encode(sample.prompt + (sample.completion if self._reads_actions else ""))
        return sample.prompt_ids + (sample.completion_ids if self._reads_actions else ())


def encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], tuple[int, ...]]:
    """Text to ids with the tokenizer's special tokens, remembered for a while."""

    @lru_cache(maxsize=_REMEMBERED_TEXTS)
    def encode(text: str) -> tuple[int, ...]:
        ids = tuple(tokenizer(text)["input_ids"])
        if not ids:
            raise ValueError(f"the critic's tokenizer makes no token of {text!r}.")
        return ids

    return encode
