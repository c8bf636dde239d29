"""A function from texts to vectors, held to what it must return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from marlogue.envs.callbacks import callback_name, kind_of, noted, require_callable, require_result
from marlogue.envs.task import whole_number

PROBE = "text"
"""The text with which the size of an embedding is measured."""


class Embedder:
    """Calls the user's `embed`, and gives float32 vectors of one size.

    Args:
        embed: `embed(text) -> [D]`: a list, an array or a tensor of D numbers.
        size: D; None calls `embed` once to measure it.
        low, high: bounds of each number.

    Attributes:
        size: D.

    Raises:
        TypeError: when `embed` cannot be called, or `size` is no whole number.
        ValueError: when low and high are no bounds, or the first embedding is none.
    """

    def __init__(
        self,
        embed: Callable[[str], Any],
        *,
        size: int | None = None,
        low: float = -np.inf,
        high: float = np.inf,
    ) -> None:
        require_callable(embed, "embed")
        if not low < high:
            raise ValueError(f"low ({low}) and high ({high}) must be low < high")
        self.embed = embed
        self.low, self.high = float(low), float(high)
        self._bounded = bool(np.isfinite((low, high)).any())
        self._blamed = f"embed ({callback_name(embed)}) must return"
        self.size = whole_number("size", size) if size is not None else 0
        if size is None:
            with noted(f"measuring the size of embeddings on {PROBE!r}; set size to skip that"):
                self.size = self(PROBE, f"for {PROBE!r}").size

    @property
    def space(self) -> Box:
        """A space of the vectors, a new one at each call."""
        return Box(self.low, self.high, (self.size,), np.float32)

    def __call__(self, text: str, where: str) -> NDArray[np.float32]:
        """Embed a text.

        Args:
            text: the text.
            where: whose it is, for messages.

        Returns:
            A float32 array [D] of its own.

        Raises:
            ValueError: when `embed` returns no vector of D finite numbers within the bounds.
        """
        returned = self.embed(text)
        if isinstance(returned, np.ndarray) and returned.dtype == np.float32:
            vector = returned.copy()
        else:
            vector = self._converted(returned, where)
        if vector.ndim != 1 or vector.size != (self.size or max(1, vector.size)):
            raise ValueError(
                f"{self._blamed} a vector of {self.size or 'some'} numbers {where}, not "
                f"{kind_of(returned)} of shape {vector.shape}"
            )
        if not np.isfinite(vector).all():
            wrong = int(np.flatnonzero(~np.isfinite(vector))[0])
            raise ValueError(
                f"{self._blamed} finite numbers {where}; number {wrong} is {returned[wrong]}"
            )
        if self._bounded and ((vector < self.low).any() or (vector > self.high).any()):
            raise ValueError(
                f"{self._blamed} numbers from {self.low} to {self.high} {where}, not "
                f"{vector.min()} to {vector.max()}; set low and high"
            )
        return vector

    def _converted(self, returned: Any, where: str) -> NDArray[np.float32]:
        require_result(returned, "embed", self.embed)
        if hasattr(returned, "detach"):  # a tensor, on any device and of any dtype
            returned = returned.detach().cpu().float()
        try:
            # What is too large becomes infinite, which is told afterwards.
            with np.errstate(over="ignore"):
                numbers = np.asarray(returned)
                if numbers.dtype.kind not in "biuf":
                    raise TypeError(f"they are of dtype {numbers.dtype}")
                return numbers.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self._blamed} numbers {where}, not {kind_of(returned)}: {error}"
            ) from None
