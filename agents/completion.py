"""What an agent answered: the ids as sampled, and the text they stand for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of one prompt.

    The ids are kept as they were sampled and are never decoded and encoded again: another
    tokenisation of the same text has another log-probability.

    Attributes:
        prompt_ids: the P token ids that the model read.
        ids: the C token ids that it generated, a generated end token included.
        text: ``ids`` decoded without special tokens; may be empty, and may end in U+FFFD where
            the limit cut a character in two.
        truncated: True when ``max_new_tokens`` cut the completion, False when it ended by itself.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    truncated: bool
