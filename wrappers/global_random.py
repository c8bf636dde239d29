"""Running code that draws from Python's and NumPy's global generators, without touching them."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.random import mtrand

MAX_SEED = 2**31 - 1

_ONE_AT_A_TIME = threading.RLock()  # there is one global state, whoever lends


class PrivateRandom:
    """States of the global generators of `random` and `numpy.random` that are one object's own.

    Games are often written with the global generators. Run within `lent`, such a game draws from
    states of its own and goes on where it stopped; outside, the global ones are as they were.
    Threads wait for each other: only one thread at a time is within any `lent`.

    Args:
        seed: where to begin; drawn from the system if None.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed(secrets.randbelow(MAX_SEED) if seed is None else seed)

    def seed(self, seed: int) -> None:
        """Begin anew."""
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.MT19937(seed)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Put these generators in the place of the global ones for a while."""
        with _ONE_AT_A_TIME:
            python, numpy = random.getstate(), mtrand.get_bit_generator()
            state = np.random.get_state(legacy=False)  # noqa: NPY002
            random.setstate(self._python)
            mtrand.set_bit_generator(self._numpy)  # costs a hundredth of what set_state does
            try:
                yield
            finally:
                self._python = random.getstate()
                random.setstate(python)
                mtrand.set_bit_generator(numpy)
                if state["has_gauss"]:  # the second of a pair of normal numbers is forgotten else
                    np.random.set_state(state)  # noqa: NPY002
