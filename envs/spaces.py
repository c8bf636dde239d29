"""The text space: every Python string within a length, without a charset to carry around."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
from gymnasium.spaces import Text

SAMPLE_ALPHABET = string.ascii_letters + string.digits + string.punctuation + " "
"""The characters that `UnicodeText.sample` draws from: printable ASCII."""

SAMPLE_LENGTH = 32
"""`UnicodeText.sample` draws at most this many characters, unless `min_length` asks for more."""

NUM_CODE_POINTS = 0x110000


class CodePoints(Sequence[str]):
    """All Unicode code points in order, computed instead of stored.

    Stands in for the character tuple and the character set of `gymnasium.spaces.Text`, so that
    gymnasium's `flatten` and `unflatten` work on any text.
    """

    def __len__(self) -> int:
        return NUM_CODE_POINTS

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> str | Sequence[str]:
        picked = range(NUM_CODE_POINTS)[index]
        return chr(picked) if isinstance(picked, int) else [chr(i) for i in picked]

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and len(value) == 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CodePoints)

    def __hash__(self) -> int:
        return hash(CodePoints)


class UnicodeText(Text):
    """Any `str` of `min_length` to `max_length` characters, whatever its characters are.

    A stock `gymnasium.spaces.Text` lists the characters it allows: 62 of them by default, without
    so much as a space, and hundreds of megabytes if it is to allow what a language model may say.
    This space checks the length only, so that accents, emoji and U+FFFD (a completion that was cut
    inside a character) are contained, and it copies and pickles in constant size.

    `sample` is printable ASCII and short (at most `SAMPLE_LENGTH` characters, or `min_length`).
    Two spaces are equal when their bounds are; the random state does not count.

    Args:
        max_length: the longest text contained, in characters (code points).
        min_length: the shortest text contained. The default 0 contains the empty text.
        seed: seed of the private generator behind `sample`.

    Raises:
        ValueError: when the bounds are not 0 <= min_length <= max_length.
        TypeError: when a bound is not an integer.
    """

    def __init__(
        self,
        max_length: int,
        *,
        min_length: int = 0,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        for name, value in (("max_length", max_length), ("min_length", min_length)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} ({value!r}) must be an integer")
        if not 0 <= min_length <= max_length:
            raise ValueError(
                f"min_length ({min_length}) and max_length ({max_length}) must be "
                "0 <= min_length <= max_length"
            )
        super().__init__(int(max_length), min_length=int(min_length), charset="", seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a `str` within the length bounds."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a short printable text from the space's own generator.

        Args:
            mask: `(length, None)` fixes the length, as in `gymnasium.spaces.Text`.
            probability: the same; at most one of the two can be given.

        Raises:
            ValueError: when both are given, when a mask over characters is given (there is no
                charset to mask), or when the length is out of bounds.
        """
        if mask is not None and probability is not None:
            raise ValueError("only one of mask and probability can be given")
        length = self._masked_length(mask if mask is not None else probability)
        if length is None:
            longest = min(self.max_length, max(self.min_length, SAMPLE_LENGTH))
            length = int(self.np_random.integers(self.min_length, longest + 1))
        picks = self.np_random.integers(0, len(SAMPLE_ALPHABET), size=length)
        return "".join(SAMPLE_ALPHABET[pick] for pick in picks)

    def _masked_length(self, mask: Any | None) -> int | None:
        if mask is None:
            return None
        if not isinstance(mask, tuple) or len(mask) != 2 or mask[1] is not None:
            raise ValueError(
                f"the mask ({mask!r}) must be (length, None): a UnicodeText has no charset to mask"
            )
        length = mask[0]
        if length is not None and not self.min_length <= length <= self.max_length:
            raise ValueError(
                f"the mask's length ({length}) must be within {self.min_length} and "
                f"{self.max_length}"
            )
        return None if length is None else int(length)

    @property
    def character_set(self) -> Any:
        """All code points, as a lazy collection."""
        return CodePoints()

    @property
    def character_list(self) -> Any:
        """All code points in order, as a lazy sequence: `character_list[i] == chr(i)`."""
        return CodePoints()

    def character_index(self, char: str) -> np.int32:
        """The code point of `char`."""
        return np.int32(ord(char))

    @property
    def characters(self) -> str:
        """The characters that `sample` uses. The space contains every other one, too."""
        return SAMPLE_ALPHABET

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length}, min_length={self.min_length})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, UnicodeText)
            and self.min_length == other.min_length
            and self.max_length == other.max_length
        )

    def __hash__(self) -> int:
        return hash((UnicodeText, self.min_length, self.max_length))
