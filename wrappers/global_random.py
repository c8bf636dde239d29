"""Running code that draws from Python's and NumPy's global generators, without touching them."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

MAX_SEED = 2**31 - 1


class PrivateRandom:
    """States of the global generators of `random` and `numpy.random` that are one object's own.

    Games are often written with the global generators. Run within `lent`, such a game draws from
    states of its own and goes on where it stopped; outside, the global ones are as they were. Not
    for several threads at once.

    Args:
        seed: where to begin; drawn from the system if None.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed(secrets.randbelow(MAX_SEED) if seed is None else seed)

    def seed(self, seed: int) -> None:
        """Begin anew."""
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Put these states in the place of the global ones for a while."""
        saved = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        try:
            yield
        finally:
            self._python = random.getstate()
            self._numpy = np.random.get_state()  # noqa: NPY002
            random.setstate(saved[0])
            np.random.set_state(saved[1])  # noqa: NPY002
