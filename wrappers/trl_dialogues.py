"""Dialogues of TRL's model with an environment, as token ids that are never encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_STAND_IN = "(what was said)"


@dataclass
class Dialogue:
    """What the model has read and said as one agent in one episode."""

    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: int = 0

    def read(self, ids: list[int]) -> None:
        """Append what the agent is shown."""
        if not self.turns:
            self.prompt_ids = ids
            return
        self.ids += ids
        self.own += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def say(self, ids: list[int], logprobs: list[float] | None) -> None:
        """Append what the model said."""
        self.turns += 1
        self.ids += ids
        self.own += [1] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


class Writer:
    """The trainer's model and tokenizer, as players of dialogues."""

    def __init__(
        self, trainer: Any, chat: bool | None, system_prompt: str | None, separator: str
    ) -> None:
        processing = trainer.processing_class
        self.trainer = trainer
        self.tokenizer = getattr(processing, "tokenizer", processing)
        self.chat = self.tokenizer.chat_template is not None if chat is None else chat
        self.separator = separator
        if self.chat and self.tokenizer.chat_template is None:
            raise ValueError("chat (True) must be False for a tokenizer without a chat template")
        if system_prompt is not None and not self.chat:
            raise ValueError("system_prompt must be None where there is no chat template")
        self.opening = [] if system_prompt is None else [_message("system", system_prompt)]
        config = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
        self.room: int | None = getattr(config, "max_position_embeddings", None)

    def silence(self) -> Dialogue:
        """The dialogue of an agent that never had its turn: TRL takes no empty one."""
        end = [int(self.trainer.eos_token_ids[0])]
        return Dialogue(prompt_ids=end, ids=end, own=[0], logprobs=[0.0])

    def encode(self, prompt: str, dialogue: Dialogue) -> list[int]:
        """The ids that put a prompt before the model, at the end of the dialogue so far."""
        text = self._in_chat(prompt, dialogue) if self.chat else self._in_plain(prompt, dialogue)
        special = not self.chat and not dialogue.turns  # a template writes its own
        ids = list(self.tokenizer(text, add_special_tokens=special)["input_ids"])
        if not ids and not dialogue.turns:
            raise ValueError(
                f"prompt ({prompt!r}) must encode to at least one token, the model has nothing to "
                "start from; give it text in the formatter, or use a chat template"
            )
        return ids

    def _in_plain(self, prompt: str, dialogue: Dialogue) -> str:
        return self.separator + prompt if dialogue.turns else prompt

    def _in_chat(self, prompt: str, dialogue: Dialogue) -> str:
        if not dialogue.turns:
            return self._render([*self.opening, _message("user", prompt)])
        # Rendered behind a stand-in: the model's own ids must stay as they were sampled.
        history = [_message("user", "-"), _message("assistant", _STAND_IN)]
        _, found, text = self._render([*history, _message("user", prompt)]).partition(_STAND_IN)
        if not found:
            raise ValueError(
                "the chat template must show what the assistant said before; set chat=False, or "
                "give the tokenizer another template"
            )
        last = dialogue.ids[-1]
        ended = last in self.trainer.eos_token_ids
        return text.removeprefix(self.tokenizer.decode([last])) if ended else text

    def answer(self, dialogues: Sequence[Dialogue]) -> list[str]:
        """Let the model speak in each dialogue; returns what it said."""
        if not dialogues:
            return []
        contexts = [dialogue.prompt_ids + dialogue.ids for dialogue in dialogues]
        longest = max(len(context) for context in contexts)
        new = self.trainer.max_completion_length
        if self.room is not None and longest + new > self.room:
            raise ValueError(
                f"a dialogue of {longest} tokens and max_completion_length ({new}) must fit into "
                f"the model's context of {self.room}; shorten prompts, or set a smaller one"
            )
        spoken, logprobs = self.trainer._generate_single_turn(contexts, None, {}, num_generations=1)
        for k, dialogue in enumerate(dialogues):
            dialogue.say(list(spoken[k]), None if logprobs is None else list(logprobs[k]))
        return [str(text) for text in self.tokenizer.batch_decode(spoken, skip_special_tokens=True)]

    def _render(self, messages: list[dict[str, str]]) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=True,
                **self.trainer.chat_template_kwargs,
            )
        )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
