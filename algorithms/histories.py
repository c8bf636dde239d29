"""What a critic reads, as token ids: the joint history as one text or as one text per agent (MAAC),
or an agent's own (IAC)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from marlogue.agents import Answered, Completion, TeamHistory, micro_batches
from marlogue.algorithms.sample import Joint, Sample
from marlogue.envs.callbacks import noted

CriticType = Literal["v", "q"]
#: ``joint_formatter(prompts, completions)``; completions are None for V(h).
JointFormatter = Callable[[Sequence[str], Sequence[str] | None], str]
#: What a critic reads of a sample: something hashable that its ``values`` takes.
History = Callable[[Sample], Any]

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


class OwnText:
    """An agent's prompt and completion as ids of the critic: those that the agent read and wrote,
    or the same texts encoded anew where the critic has another vocabulary.

    Args:
        critic_type: "v" (no completion) or "q".
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

    def __call__(self, agent_idx: int, prompt: str, action: Completion) -> Answered:
        """The ids, of the completion none for V."""
        if self._shares_ids[agent_idx]:
            return Answered(action.prompt_ids, action.ids if self._reads_actions else ())
        if not self._reads_actions:
            return Answered(self._encode(prompt), ())
        # One by one, as the agent read and wrote them: joined texts could share a token.
        ids = self._tokenizer(action.text, add_special_tokens=False).input_ids
        return Answered(self._encode(prompt), tuple(ids))


class OwnHistory:
    """The agent's own history h_i, for Q with its own action.

    Args:
        text: what is read of an agent.
    """

    def __init__(self, text: OwnText) -> None:
        self._text = text

    def __call__(self, sample: Sample) -> tuple[int, ...]:
        """The ids."""
        prompt, completion = self._text(sample.agent_idx, sample.prompt, sample.action)
        return (*prompt, *completion)


class TeamTexts:
    """The joint history as one text for each agent that acts, for Q with its own action.

    Args:
        text: what is read of an agent.
        of_team: whose value is asked for: the team's, or that of the sample's agent.
    """

    def __init__(self, text: OwnText, *, of_team: bool) -> None:
        self._text = text
        self._of_team = of_team
        self._texts = lru_cache(maxsize=_REMEMBERED_TEXTS)(self._read)

    def __call__(self, sample: Sample) -> TeamHistory:
        """The texts, the same for every agent's sample of one joint step."""
        return TeamHistory(self._texts(sample.joint), None if self._of_team else sample.agent_idx)

    def _read(self, joint: Joint) -> tuple[Answered | None, ...]:
        acted = enumerate(zip(joint.prompts, joint.actions, strict=True))
        return tuple(
            None if action is None else self._text(agent_idx, prompt, action)
            for agent_idx, (prompt, action) in acted
        )


def by_length(
    histories: Sequence[Sequence[int]], size: int | None, device: torch.device
) -> Iterator[list[int]]:
    """Micro-batches of histories that are a sequence each."""
    return micro_batches([len(history) for history in histories], size, device)


def by_team(
    histories: Sequence[TeamHistory], size: int | None, device: torch.device
) -> Iterator[list[int]]:
    """Micro-batches that keep the histories of a joint step together, so that their texts are read
    once. A joint step counts as many sequences as it has texts; there is at least one in each."""
    members: dict[tuple[Answered | None, ...], list[int]] = {}
    for row, history in enumerate(histories):
        members.setdefault(history.texts, []).append(row)
    teams = list(members)
    longest = [max(sum(map(len, text)) for text in texts if text) for texts in teams]
    lengths = [long * len(texts) for long, texts in zip(longest, teams, strict=True)]
    count = None if size is None else max(1, size // max(map(len, teams), default=1))
    for some in micro_batches(lengths, count, device):
        yield [row for team in some for row in members[teams[team]]]


def encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], tuple[int, ...]]:
    """Text to ids with the tokenizer's special tokens, remembered for a while."""

    @lru_cache(maxsize=_REMEMBERED_TEXTS)
    def encode(text: str) -> tuple[int, ...]:
        ids = tuple(tokenizer(text)["input_ids"])
        if not ids:
            raise ValueError(f"the critic's tokenizer makes no token of {text!r}.")
        return ids

    return encode
