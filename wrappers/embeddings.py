"""Prompts as vectors, by any function, and one that needs no model."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.callbacks import noted
from marlogue.envs.task import whole_number
from marlogue.wrappers.embedder import Embedder
from marlogue.wrappers.view import View, require_texts


class EmbedObservations(View):
    """Prompts become `Box(low, high, (D,), float32)`.

    The last prompt of an agent whose episode has ended is embedded, too: a learner that
    bootstraps truncated episodes needs it.

    Args:
        env: an environment whose observations are texts.
        embed: `embed(prompt) -> [D]`: a list, an array or a tensor of D numbers. Ready ones are
            `HashedNgrams` and `marlogue.wrappers.hidden_states.PooledHidden`.
        size: D; None calls `embed` once to measure it.
        low, high: bounds of each number, for learners that scale by them.

    Raises:
        TypeError: when an argument has a wrong type, or the environment's observations are not
            texts.
        ValueError: when an embedding is no vector of D finite numbers within the bounds; names
            agent and function.
    """

    shared: ClassVar[tuple[str, ...]] = ("embedder",)

    def __init__(
        self,
        env: ParallelEnv,
        embed: Callable[[str], Any],
        *,
        size: int | None = None,
        low: float = -np.inf,
        high: float = np.inf,
    ) -> None:
        super().__init__(env)
        require_texts(env, "EmbedObservations", observations=True, actions=False)
        self.embedder = Embedder(embed, size=size, low=low, high=high)
        self.observation_spaces = dict.fromkeys(env.possible_agents, self.embedder.space)

    @override
    def observe(self, agent: str, observation: str, info: dict[str, Any]) -> NDArray[np.float32]:
        with noted(f"embedding the prompt of {agent}"):
            return self.embedder(observation, f"for {agent}")


class HashedNgrams:
    """Embed a text by the n-grams in it, without a model: `embed(prompt) -> float32 [size]`.

    Each n-gram is hashed to some of the `size` places, with a sign for each; the signs are added
    up, and the vector is scaled to length 1. A text without words gives zeros. The same in every
    process and on every machine. That two different short texts get the same vector is next to
    impossible, since all their places and signs would have to be the same.

    Args:
        size: D.
        words: lengths of the sequences of words. A word is a run of letters and digits, any other
            visible character one by itself; case counts.
        characters: lengths of the sequences of characters; none by default.
        hashes: places of an n-gram. With 1, and few n-grams, vectors are sparse, and short texts
            may collide when `size` is small.
        seed: draws other places.

    Raises:
        TypeError, ValueError: when an argument is no whole number in its range, or there are no
            n-grams.
    """

    def __init__(
        self,
        size: int = 256,
        words: Sequence[int] = (1, 2, 3),
        *,
        characters: Sequence[int] = (),
        hashes: int = 4,
        seed: int = 0,
    ) -> None:
        self.size = whole_number("size", size)
        self.words = _lengths("words", words)
        self.characters = _lengths("characters", characters)
        if not self.words and not self.characters:
            raise ValueError("words and characters must not both be empty; set words=(1,)")
        self.hashes = whole_number("hashes", hashes)
        self.seed = whole_number("seed", seed, 0)
        # One row per hash function. A word of one letter and that letter are two n-grams, hence
        # the kinds.
        kinds = np.arange(2, dtype=np.uint64) + np.uint64(2 * (self.seed % 2**62))
        self._starts = _mix(kinds + np.uint64(1))
        self._both_signs = np.uint64(2 * self.size)
        self._salts = _mix(np.arange(1, self.hashes + 1, dtype=np.uint64))[:, np.newaxis]

    def __call__(self, prompt: str) -> NDArray[np.float32]:
        """Embed a text."""
        runs = []
        if self.words:
            found = _WORD.findall(prompt)
            ids = [_number(word.encode("utf-8", "surrogatepass")) for word in found]
            runs += _runs(np.array(ids, dtype=np.uint64), self.words, self._starts[0])
        if self.characters:
            points = np.frombuffer(prompt.encode("utf-32-le", "surrogatepass"), dtype="<u4")
            runs += _runs(points.astype(np.uint64), self.characters, self._starts[1])
        if not runs:
            return np.zeros(self.size, dtype=np.float32)
        mixed = _mix(np.concatenate(runs) ^ self._salts).ravel()
        # The upper half of the places counts what goes into the lower half with a minus.
        places = (mixed % self._both_signs).astype(np.intp)
        counts = np.bincount(places, minlength=2 * self.size)
        vector = (counts[: self.size] - counts[self.size :]).astype(np.float32)
        norm = math.sqrt(vector @ vector)
        return vector / np.float32(norm) if norm else vector


def _lengths(name: str, lengths: Any) -> tuple[int, ...]:
    if isinstance(lengths, str) or not isinstance(lengths, Iterable):
        raise TypeError(f"{name} ({lengths!r}) must be a list of lengths; set it to [{lengths!r}]")
    return tuple(whole_number(name, length) for length in lengths)


def _number(word: bytes) -> int:
    """64 bits of a word: two checksums, since words of one CRC-32 are easily found."""
    return zlib.adler32(word) << 32 | zlib.crc32(word)


_WORD = re.compile(r"\w+|[^\w\s]")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def _runs(
    ids: NDArray[np.uint64], lengths: Sequence[int], start: np.uint64
) -> list[NDArray[np.uint64]]:
    """A number for every run of ids, as one array per length of run: a polynomial in `_FACTOR`."""
    runs = []
    for length in lengths:
        count = len(ids) - length + 1
        if count > 0:
            run = ids[:count] + start
            for offset in range(1, length):
                run = run * _FACTOR + ids[offset : offset + count]
            runs.append(run)
    return runs


_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit numbers: the finaliser of splitmix64 (Steele et al. 2014)."""
    values = (values ^ (values >> _SHIFTS[0])) * _MULTIPLIERS[0]
    values = (values ^ (values >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return values ^ (values >> _SHIFTS[2])
