"""From an observation (text) to the token ids that a policy reads.

Two ways: plain text, with the special tokens that the tokenizer puts in front; or a chat template,
with an optional system message and the tag that opens the assistant's turn. Only ids come out: what
is prompt and what is padding follows from lengths, never from the values of ids, since an id that
pads a batch may be an ordinary part of a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

PromptOverflow = Literal["error", "truncate"]

_SLACK = 8  # tokens by which the encoding of a shortened text may differ from a slice of the whole


class PromptEncoder:
    """Turn prompts into token ids, within a limit.

    Plain prompts get the special tokens that the tokenizer puts in front of a text (such as a BOS
    token), unless the text starts with them already; an end token that it would append is left out,
    because the policy writes on from there. Rendered templates are encoded as they are: what a
    template does not write is not added, so there is never a second BOS.

    Prompts over the limit are an error, or lose text from their left end (``"truncate"``): of a
    chat prompt only the user's text is shortened, so that the system message and the assistant tag
    stay; of a plain prompt the BOS token stays. What is left is never longer than the limit, and
    every cut is logged as a warning.

    Args:
        tokenizer: the policy's tokenizer; it is not changed.
        chat_template: False for plain text, True for the tokenizer's own template, or a Jinja
            template over ``messages``, ``bos_token`` and ``add_generation_prompt``.
        system_prompt: text of a system message; needs a chat template. None sends no system
            message (some templates then write their own), "" sends an empty one.
        max_prompt_tokens: limit in tokens, special tokens and template included; None for none.
        prompt_overflow: ``"error"`` or ``"truncate"``.

    Raises:
        ValueError, TypeError: an argument does not fit, or the template cannot be used; the message
            names what to change. Templates are tried at once, not at the first prompt.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template: bool | str = False,
        system_prompt: str | None = None,
        max_prompt_tokens: int | None = None,
        prompt_overflow: PromptOverflow = "error",
    ) -> None:
        _check_arguments(chat_template, system_prompt, max_prompt_tokens, prompt_overflow)
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.system_prompt = None if system_prompt is None else _well_formed(system_prompt)
        self.max_prompt_tokens = max_prompt_tokens
        self.prompt_overflow = prompt_overflow
        self._told_about_bos = False
        if chat_template is not False:
            self._try_template()

    def __call__(self, prompt: str, room: int | None = None) -> list[int]:
        """Encode one prompt.

        Args:
            prompt: the text that the agent observes.
            room: what the model's context leaves for this prompt beside ``max_new_tokens``; the
                smaller of it and ``max_prompt_tokens`` is the limit.

        Returns:
            The ids, at least one and at most the limit.

        Raises:
            TypeError: the prompt is no string.
            ValueError: the prompt is too long and must not be cut, what may not be cut is too long
                by itself, or nothing is left to encode.
        """
        if not isinstance(prompt, str):
            raise TypeError(f"prompt ({prompt!r}) must be a string; make one in the formatter")
        prompt = _well_formed(prompt)
        if self.chat_template is not False:
            self._warn_of_second_bos(prompt)
        ids = self._encode(prompt)
        limit = self.max_prompt_tokens
        reason = f"max_prompt_tokens ({limit})"
        if room is not None and (limit is None or room < limit):
            limit = room
            reason = f"the model's context, which leaves {room} beside max_new_tokens,"
        if limit is not None and len(ids) > limit:
            if self.prompt_overflow == "error":
                raise ValueError(
                    f"{reason} must hold the prompt ({len(ids)} tokens: {_shown(prompt)}); shorten "
                    'the prompt, raise the limit, or set prompt_overflow="truncate" to cut '
                    "prompts at their start"
                )
            ids = self._truncate(prompt, len(ids), limit, reason)
        if not ids:
            raise ValueError(
                f"prompt ({_shown(prompt)}) must encode to at least one token, the policy has "
                "nothing to start from; give it text in the formatter, or use a tokenizer that "
                "puts a BOS token in front"
            )
        return ids

    def render(self, prompt: str) -> str:
        """Return the text that is encoded: the prompt itself, or the filled-in chat template."""
        if self.chat_template is False:
            return prompt
        return self._apply(prompt, self.system_prompt)

    def _apply(self, prompt: str, system_prompt: str | None) -> str:
        messages = [{"role": "user", "content": prompt}]
        if system_prompt is not None:
            messages.insert(0, {"role": "system", "content": system_prompt})
        template = self.chat_template if isinstance(self.chat_template, str) else None
        rendered = self.tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        return str(rendered)

    def _ids(self, text: str) -> list[int]:
        """Encode a text and nothing else."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _encode(self, prompt: str) -> list[int]:
        """Encode a prompt, or what the template makes of it, without a limit."""
        bare = self._ids(self.render(prompt))
        if self.chat_template is not False or self._starts_with_bos(prompt):
            return bare
        full = list(self.tokenizer(prompt, verbose=False)["input_ids"])
        for start in range(len(full) - len(bare) + 1) if bare else ():
            if full[start : start + len(bare)] == bare:
                front = full[:start]
                return bare if bare[:start] == front else front + bare
        return _without_end(full, self.tokenizer)

    def _starts_with_bos(self, text: str) -> bool:
        bos = self.tokenizer.bos_token
        return bool(bos) and text.lstrip().startswith(str(bos))

    def _truncate(self, prompt: str, length: int, limit: int, reason: str) -> list[int]:
        """Encode the longest end of the prompt that fits, with everything that must stay."""
        head = ""
        if self.chat_template is False and self._starts_with_bos(prompt):
            bos = str(self.tokenizer.bos_token)
            head = prompt[: prompt.index(bos) + len(bos)]
        text = prompt[len(head) :]
        fixed = len(self._encode(head))
        if fixed > limit:
            kept = "BOS token" if self.chat_template is False else "text of the chat template"
            kept += ", system_prompt included" if self.system_prompt else ""
            raise ValueError(
                f"{reason} must hold what is never cut ({fixed} tokens: the {kept}) and some of "
                f"the prompt; set it to more than {fixed}, or shorten that text"
            )
        start, ids = _longest_end(
            self._cut_positions(text), lambda i: self._encode(head + text[i:]), limit
        )
        logger.warning(
            "prompt cut from %d to %d tokens for %s: %d of its %d characters left out (%s)",
            length,
            len(ids),
            reason.rstrip(","),
            start,
            len(text),
            _shown(prompt),
        )
        return ids

    def _cut_positions(self, text: str) -> list[int]:
        """Return where a text may be cut, in ascending order, from 0 to its length.

        At the start of a token where the tokenizer tells, so that no word or character is torn.
        """
        if not self.tokenizer.is_fast:
            return list(range(len(text) + 1))
        encoding = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        starts = {start for start, _ in encoding["offset_mapping"]}
        return sorted(starts | {0, len(text)})

    def _try_template(self) -> None:
        """Render the template once, to find now what would fail or get lost later."""
        shown = f"chat_template ({_shown(self.chat_template)})"
        if self.chat_template is True and not self.tokenizer.chat_template:
            raise ValueError(
                "chat_template (True) must come with a tokenizer that has a chat template; set "
                "chat_template to a Jinja template, or to False for plain prompts"
            )
        try:
            first, second = (self._apply(text, None) for text in ("first", "second"))
        except (TemplateError, ValueError, TypeError) as error:
            raise ValueError(
                f"{shown} must render a user message: {error}; set it to a template that does"
            ) from error
        if first == second:
            raise ValueError(
                f"{shown} must write the user's message, and it leaves it out; "
                "use messages[-1]['content'] in it"
            )
        if self.system_prompt is not None:
            self._try_system_prompt()
        added = self.tokenizer("", verbose=False)["input_ids"]
        bos = self.tokenizer.bos_token_id
        if (
            isinstance(self.chat_template, str)
            and bos in added
            and not self._starts_with_bos(first)
        ):
            logger.warning(
                "%s writes no %r in front, which the tokenizer puts before plain text; start it "
                "with {{ bos_token }} if the model was trained with one",
                shown,
                self.tokenizer.bos_token,
            )

    def _try_system_prompt(self) -> None:
        shown = f"system_prompt ({_shown(self.system_prompt)})"
        mend = "put its text into the prompts, or set chat_template to one with a system role"
        try:
            first, second = (self._apply("x", text) for text in ("first", "second"))
        except (TemplateError, ValueError, TypeError) as error:
            raise ValueError(
                f"{shown} must suit the chat template, which refuses it ({error}); {mend}"
            ) from error
        if first == second:
            raise ValueError(f"{shown} must suit the chat template, which leaves it out; {mend}")

    def _warn_of_second_bos(self, prompt: str) -> None:
        if self._told_about_bos or not self._starts_with_bos(prompt):
            return
        self._told_about_bos = True
        logger.warning(
            "a prompt starts with %r and goes through a chat template as well (%s); set "
            "chat_template=False if the formatter has applied a template already",
            self.tokenizer.bos_token,
            _shown(prompt),
        )


def pad_token_id(tokenizer: PreTrainedTokenizerBase, vocab_size: int | None = None) -> int:
    """Return an id to pad batches with; the tokenizer is not changed.

    The padding token, else the end token, else 0. Padding is masked by length, so the choice
    changes no result; it only has to be an id that the model can look up.

    Args:
        tokenizer: the tokenizer to ask.
        vocab_size: number of rows of the model's embedding. Ids outside it are passed over: a
            padding token is often added to the tokenizer alone.
    """
    for candidate in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(candidate, int) and (vocab_size is None or 0 <= candidate < vocab_size):
            return candidate
    return 0


def _longest_end(
    cuts: list[int], encode: Callable[[int], list[int]], limit: int
) -> tuple[int, list[int]]:
    """Find the first cut whose text fits; the whole is too long and the empty text is not.

    The length hardly ever grows when text is taken away, so halving finds the place; what it
    returns was measured, not inferred.
    """
    best, best_ids = len(cuts) - 1, encode(cuts[-1])
    too_long = 0
    guess = len(cuts) - 1 - limit - _SLACK  # spares encoding most of a very long text
    while best - too_long > 1:
        guess = min(max(guess, too_long + 1), best - 1)
        ids = encode(cuts[guess])
        if len(ids) <= limit:
            best, best_ids = guess, ids
        else:
            too_long = guess
        guess = (too_long + best) // 2
    return cuts[best], best_ids


def _without_end(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Leave out end tokens that the tokenizer appended; one that is all there is may be the BOS."""
    ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
    length = len(ids)
    while length and ids[length - 1] in ends and ids[:length] != [tokenizer.bos_token_id]:
        length -= 1
    return ids[:length]


def _well_formed(text: str) -> str:
    """Replace lone surrogates, which are no characters and which no tokenizer takes, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _shown(value: object) -> str:
    """Quote a value in a message, at most about 60 characters of it."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:40]}...{shown[-17:]}"


def _check_arguments(
    chat_template: object,
    system_prompt: object,
    max_prompt_tokens: object,
    prompt_overflow: object,
) -> None:
    if not isinstance(chat_template, bool | str):
        raise TypeError(
            f"chat_template ({chat_template!r}) must be a bool or a Jinja template; set it to "
            "True for the tokenizer's own"
        )
    if system_prompt is not None and not isinstance(system_prompt, str):
        raise TypeError(f"system_prompt ({system_prompt!r}) must be a string; set it to text")
    if system_prompt is not None and chat_template is False:
        raise ValueError(
            f"system_prompt ({_shown(system_prompt)}) must come with a chat template; set "
            "chat_template=True, or put its text into the prompts"
        )
    if max_prompt_tokens is not None:
        if isinstance(max_prompt_tokens, bool) or not isinstance(max_prompt_tokens, int):
            raise TypeError(
                f"max_prompt_tokens ({max_prompt_tokens!r}) must be an integer; set it to a number "
                "of tokens, or to None for no limit"
            )
        if max_prompt_tokens < 1:
            raise ValueError(
                f"max_prompt_tokens ({max_prompt_tokens}) must be at least 1; set it to None for "
                "no limit"
            )
    if prompt_overflow not in ("error", "truncate"):
        raise ValueError(
            f"prompt_overflow ({prompt_overflow!r}) must be 'error' or 'truncate'; "
            "set prompt_overflow='error'"
        )
