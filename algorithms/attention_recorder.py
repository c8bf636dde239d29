"""Recording who attends to whom while an episode is played, within a given memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from marlogue.algorithms.attention_trace import AttentionTrace

Array = NDArray[Any]

#: Memory of the weights of one episode: all of 1,000 steps of 30 agents with 4 heads in float32.
MAX_BYTES = 16 * 2**20

#: Steps that should fit before anything is made coarser than it must be.
ENOUGH_STEPS = 16


class _Form(NamedTuple):
    """How weights are kept."""

    dtype: DTypeLike
    heads_averaged: bool


# From the finest on; the first that leaves room for enough steps is taken.
_FORMS = (_Form(np.float32, False), _Form(np.float16, False), _Form(np.float16, True))


class AttentionRecorder:
    """Takes down an episode step by step, and gives an `AttentionTrace`.

    T steps of N agents with H heads have T H N N weights: of 1,000 agents some megabytes a step.
    Where they would take more than ``max_bytes``, first half precision, then the mean over heads
    is kept, and then fewer steps: whenever the memory is full, every second one is dropped. The
    trace says so (``stride``, ``heads_averaged``, ``kept``).

    Args:
        names: [N] agents.
        landmark_names: [L] other things whose places are recorded.
        max_bytes: memory of the weights; None for ``MAX_BYTES``, or what two steps of very many
            agents take.
        about: what is played, for titles.

    Raises:
        ValueError: when not even two steps' weights fit into ``max_bytes``.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        landmark_names: Sequence[str] = (),
        max_bytes: int | None = None,
        about: str = "",
    ) -> None:
        self.names, self.landmark_names = tuple(names), tuple(landmark_names)
        least = 2 * np.dtype(_FORMS[-1].dtype).itemsize * len(self.names) ** 2
        self.max_bytes = max(MAX_BYTES, least) if max_bytes is None else max_bytes
        self.about = about
        self.stride = 1
        self._num_heads = 0
        self._form = _FORMS[-1]
        self._most = self._capacity(1, self._form)
        if self._most < 2:
            raise ValueError(
                f"max_bytes ({max_bytes}) must be at least {least}, for two steps' mean attention "
                f"among {len(self.names)} agents in half precision; set max_bytes={least} or more."
            )
        self._weights: list[Array] = []
        self._rows: list[tuple[Array | None, ...]] = []

    @property
    def wants_weights(self) -> bool:
        """Whether the weights of the next step are kept; where not, they need not be computed."""
        return len(self._rows) % self.stride == 0

    def add(
        self,
        weights: ArrayLike | None,
        present: ArrayLike,
        rewards: ArrayLike,
        *,
        actions: ArrayLike | None = None,
        positions: ArrayLike | None = None,
        landmarks: ArrayLike | None = None,
    ) -> None:
        """Take down a step.

        Args:
            weights: [H, N, N] before the step; None where they are not wanted.
            present: [N] bool, who acted.
            rewards: [N] of the step.
            actions: [N] or [N, A].
            positions: [N, 2] before the step.
            landmarks: [L, 2] before the step.

        Raises:
            ValueError: when weights are wanted and not given.
        """
        if self.wants_weights:
            if weights is None:
                raise ValueError(
                    f"weights (None) must be given for step {len(self._rows)}; compute them "
                    "whenever wants_weights is True."
                )
            self._keep(np.asarray(weights))
        given = (present, rewards, actions, positions, landmarks)
        self._rows.append(tuple(None if one is None else np.array(one) for one in given))

    def trace(self) -> AttentionTrace:
        """What was recorded so far.

        Raises:
            ValueError: when nothing was, or steps differ in their shapes.
        """
        if not self._rows:
            raise ValueError("there is no trace before a step was recorded; call add first.")
        present, rewards, actions, positions, landmarks = zip(*self._rows, strict=True)
        return AttentionTrace(
            names=self.names,
            weights=np.stack(self._weights),
            present=np.stack(present).astype(bool),
            rewards=np.stack(rewards).astype(np.float32),
            actions=_stacked(actions),
            positions=_stacked(positions, np.float32),
            landmarks=_stacked(landmarks, np.float32),
            landmark_names=self.landmark_names,
            stride=self.stride,
            num_heads=self._num_heads,
            heads_averaged=self._form.heads_averaged,
            about=self.about,
        )

    def _keep(self, weights: Array) -> None:
        if not self._weights:
            self._choose_form(len(weights))
        if self._form.heads_averaged:
            weights = weights.mean(0, keepdims=True, dtype=np.float32)
        self._weights.append(weights.astype(self._form.dtype))
        if len(self._weights) == self._most:
            self._weights = self._weights[::2]
            self.stride *= 2

    def _choose_form(self, heads: int) -> None:
        self._num_heads = heads
        roomy = (form for form in _FORMS if self._capacity(heads, form) >= ENOUGH_STEPS)
        self._form = next(roomy, _FORMS[-1])
        self._most = self._capacity(heads, self._form)

    def _capacity(self, heads: int, form: _Form) -> int:
        kept = 1 if form.heads_averaged else heads
        return self.max_bytes // (kept * len(self.names) ** 2 * np.dtype(form.dtype).itemsize)


def _stacked(rows: Sequence[Array | None], dtype: DTypeLike | None = None) -> Array | None:
    """Rows of all steps as one array; None where any is missing."""
    known = [row for row in rows if row is not None]
    return np.stack(known).astype(dtype or known[0].dtype) if len(known) == len(rows) else None
