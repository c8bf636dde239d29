"""Vocabularies: what the numbers of token actions and observations stand for."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from gymnasium.spaces import Text
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override


class Vocabulary(ABC):
    """V tokens, numbered 0 to V - 1; `len(vocabulary)` is V.

    Attributes:
        end: index of the token that closes a text; None where there is none.
        pad: index of the token that fills up a text, which may be `end`; None where there is none.
    """

    end: int | None = None
    pad: int | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The indices of a text's tokens.

        Raises:
            ValueError: when the text has a part that is no token.
        """

    @abstractmethod
    def piece(self, index: int) -> str:
        """What one token stands for, for people to read."""

    @abstractmethod
    def longest_text(self, count: int) -> int:
        """A bound on the characters of a text of `count` tokens."""

    @abstractmethod
    def join(self, indices: Sequence[int]) -> str:
        """The text of tokens, none of which is the end."""

    def decode(self, indices: Iterable[int]) -> str:
        """The text of tokens, up to the first `end`, which is not part of it."""
        taken: list[int] = []
        for index in indices:
            if index == self.end:
                break
            taken.append(index)
        return self.join(taken)


class Words(Vocabulary):
    """A vocabulary of words (or any pieces of text), joined by a separator.

    Args:
        words: the tokens; a word may itself have separators in it ("not sure"), and texts are
            encoded by the longest words that fit.
        end: the word that closes a text; put behind the others unless it is one of them.
        separator: stands between words. A space (or other white space) encodes text that is
            separated by any white space; "" joins the words as they are.
        unknown: the word that stands for everything else when texts are encoded; put behind the
            others unless it is one of them. None: anything else is an error.

    Raises:
        TypeError: when a word is no str.
        ValueError: when there are no words, an empty word, or one twice.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        end: str | None = None,
        separator: str = " ",
        unknown: str | None = None,
    ) -> None:
        if isinstance(words, str):
            raise TypeError(f"words ({words!r}) must be a list of words, not one text")
        for word in (*words, *(word for word in (end, unknown) if word is not None)):
            if not isinstance(word, str):
                raise TypeError(f"words must be texts (str); one of them is {word!r}")
        added = [word for word in (end, unknown) if word is not None and word not in words]
        self.words = tuple(dict.fromkeys([*words, *added]))
        if not isinstance(separator, str):
            raise TypeError(f"separator ({separator!r}) must be a text; set '' to join words as is")
        self.separator = separator
        self._index = {word: index for index, word in enumerate(self.words)}
        if not words or "" in self._index or len(words) > len(set(words)):
            raise ValueError(
                f"words ({', '.join(map(repr, words))}) must be one or more different texts that "
                "are not empty; an empty text is written by `end` alone"
            )
        self.end = None if end is None else self._index[end]
        self.unknown = None if unknown is None else self._index[unknown]
        self._most_parts = max(len(self._parts(word)) for word in self.words)

    def __len__(self) -> int:
        return len(self.words)

    @override
    def piece(self, index: int) -> str:
        return self.words[index]

    @override
    def longest_text(self, count: int) -> int:
        said = [len(word) for index, word in enumerate(self.words) if index != self.end]
        return count * max(said, default=0) + (count - 1) * len(self.separator)

    @override
    def join(self, indices: Sequence[int]) -> str:
        return self.separator.join(self.words[index] for index in indices)

    @override
    def encode(self, text: str) -> list[int]:
        parts = self._parts(text)
        indices = []
        at = 0
        while at < len(parts):
            index, taken = self._longest(parts, at)
            indices.append(index)
            at += taken
        return indices

    def _parts(self, text: str) -> list[str]:
        if not text or not self.separator:
            return list(text)
        return text.split(None if self.separator.isspace() else self.separator)

    def _longest(self, parts: list[str], at: int) -> tuple[int, int]:
        """The longest word that begins at a part, and how many parts it has."""
        for taken in range(min(self._most_parts, len(parts) - at), 0, -1):
            index = self._index.get(self.separator.join(parts[at : at + taken]))
            if index is not None:
                return index, taken
        if self.unknown is None:
            raise ValueError(
                f"{parts[at]!r} is not in the vocabulary of {len(self)} words; add it, or set "
                "unknown to a word that stands for all others"
            )
        return self.unknown, 1


class TokenizerVocabulary(Vocabulary):
    """The vocabulary of a tokenizer, or a few of its tokens.

    A policy over tokens has an output for each: choose `ids` where the whole vocabulary is too
    large. Texts are decoded without special tokens and encoded without adding any, as
    `marlogue.agents` does.

    Args:
        tokenizer: one of transformers or tokenizers, or anything with their `encode(text,
            add_special_tokens=False)`, `decode(ids, skip_special_tokens=True)` and `len()` (or
            `get_vocab()`).
        ids: the token ids that are the tokens 0, 1, ... here; None for all.
        end: the token id that closes a text; put behind the others unless it is one of them. None:
            the tokenizer's `eos_token_id`, if it is among them.

    Raises:
        TypeError: when the tokenizer lacks a method, or an id is no integer.
        ValueError: when ids are empty, repeated, or not the tokenizer's.
    """

    def __init__(
        self, tokenizer: Any, ids: Iterable[int] | None = None, end: int | None = None
    ) -> None:
        for method in ("encode", "decode"):
            if not callable(getattr(tokenizer, method, None)):
                raise TypeError(
                    f"tokenizer ({tokenizer!r}) must have the method {method}, as those of "
                    "transformers have; pass marlogue.wrappers.vocabulary.Words for a list of words"
                )
        self.tokenizer = tokenizer
        vocab, size = _known(tokenizer)
        chosen = list(range(size)) if ids is None else [_id("ids", i, size) for i in ids]
        if not chosen or len(chosen) > len(set(chosen)):
            raise ValueError(f"ids ({chosen}) must be one or more different token ids")
        if end is not None and _id("end", end, size) not in chosen:
            chosen.append(operator.index(end))
        self.ids = tuple(chosen)
        self._index = {token: index for index, token in enumerate(self.ids)}
        self.end = self._index_of("eos_token_id" if end is None else end)
        own = self._index_of("pad_token_id")
        self.pad = self.end if own is None else own
        said = set(range(len(self))) - {self.end}
        raw = [len(text) for text, token in vocab.items() if self._index.get(token) in said]
        self._longest = max(raw or [len(self.piece(index)) for index in said], default=0)

    def _index_of(self, token: int | str) -> int | None:
        """The index of a token id, or of the one that the tokenizer has under a name."""
        number = getattr(self.tokenizer, token, None) if isinstance(token, str) else token
        return None if number is None else self._index.get(int(number))

    def __len__(self) -> int:
        return len(self.ids)

    @override
    def piece(self, index: int) -> str:
        return str(self.tokenizer.decode([self.ids[index]], skip_special_tokens=False))

    @override
    def longest_text(self, count: int) -> int:
        return count * (self._longest + 1)  # some decoders put a space between tokens

    @override
    def join(self, indices: Sequence[int]) -> str:
        ids = [self.ids[index] for index in indices]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    @override
    def encode(self, text: str) -> list[int]:
        # Tokenizers refuse half of a surrogate pair, which is no character.
        sound = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        encoded = self.tokenizer.encode(sound, add_special_tokens=False)
        ids = [int(token) for token in getattr(encoded, "ids", encoded)]
        absent = [token for token in ids if token not in self._index]
        if absent:
            pieces = [self.tokenizer.decode([token]) for token in absent[:4]]
            raise ValueError(
                f"the tokens {', '.join(map(repr, pieces))} (ids {absent[:4]}) are not among the "
                f"{len(self)} that were chosen; add them to ids, or leave ids out"
            )
        return [self._index[token] for token in ids]


def as_vocabulary(vocabulary: Any) -> Vocabulary:
    """The vocabulary itself, or all of a tokenizer's."""
    return vocabulary if isinstance(vocabulary, Vocabulary) else TokenizerVocabulary(vocabulary)


def require_room(env: ParallelEnv, vocabulary: Vocabulary, count: int, argument: str) -> None:
    """Refuse texts of so many tokens that the environment's action spaces may not hold them.

    Raises:
        ValueError: names the argument that sets the count, and the agent.
    """
    longest = vocabulary.longest_text(count)
    for agent in env.possible_agents:
        space = env.action_space(agent)
        if isinstance(space, Text) and longest > space.max_length:
            raise ValueError(
                f"{argument} ({count}) must be so small that every text is in the action space of "
                f"{agent} ({space}); {count} of the longest tokens may have {longest} characters. "
                "Choose fewer or shorter tokens, or raise the space's length (max_completion_chars)"
            )
        if isinstance(space, Text):
            _require_characters(space, vocabulary, agent, count)


def _require_characters(space: Text, vocabulary: Vocabulary, agent: str, count: int) -> None:
    """Refuse tokens whose text, or what stands between two, is outside the space's charset."""
    for index in range(len(vocabulary)):
        text = vocabulary.decode([index] * min(count, 2))
        missing = [char for char in text if char not in space.character_set]
        if missing:
            raise ValueError(
                f"the action space of {agent} ({space}) must contain {missing[0]!r}, which stands "
                f"in {text!r}; choose other tokens, or give the environment a space of any text "
                "(marlogue.envs.UnicodeText)"
            )


def _known(tokenizer: Any) -> tuple[dict[str, int], int]:
    """The tokens as the tokenizer writes them (none where it does not tell), and how many ids."""
    if callable(getattr(tokenizer, "get_vocab", None)):
        vocab: dict[str, int] = tokenizer.get_vocab()
        return vocab, max(vocab.values()) + 1
    return {}, len(tokenizer)


def _id(name: str, token: Any, size: int) -> int:
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise TypeError(f"{name} ({token!r}) must be token ids (int)")
    if not 0 <= operator.index(token) < size:
        raise ValueError(f"{name} ({token}) must be a token id from 0 to {size - 1}")
    return operator.index(token)
