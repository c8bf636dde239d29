"""Attention traces whose numbers are known."""

from __future__ import annotations

import numpy as np

from marlogue.algorithms.attention_recorder import AttentionRecorder
from marlogue.algorithms.attention_trace import AttentionTrace


def softmax_weights(count: int, heads: int, seed: int = 0) -> np.ndarray:
    """[H, N, N] rows that add up to 1, nothing for an agent itself."""
    scores = np.random.default_rng(seed).normal(0.0, 1.5, (heads, count, count))
    scores[:, np.arange(count), np.arange(count)] = -np.inf
    raised = np.exp(scores)
    return (raised / raised.sum(-1, keepdims=True)).astype(np.float32)


def episode(
    count: int = 3,
    steps: int = 10,
    heads: int = 2,
    *,
    placed: bool = True,
    leaves: int | None = None,
) -> AttentionTrace:
    """Agents ``hunter_i`` around a ``prey``; the last of them is gone from step ``leaves`` on."""
    names = [f"hunter_{i}" for i in range(count)]
    recorder = AttentionRecorder(names, landmark_names=["prey"] if placed else [], about="a chase")
    for step in range(steps):
        present = np.ones(count, bool)
        present[-1] = leaves is None or step < leaves
        weights = softmax_weights(count, heads, step) * present[:, None] * present
        weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
        angles = 2 * np.pi * np.arange(count) / count + 0.1 * step
        recorder.add(
            weights,
            present,
            np.full(count, float(step)),
            positions=np.stack([np.cos(angles), np.sin(angles)], -1) if placed else None,
            landmarks=np.array([[0.05 * step, 0.0]]) if placed else None,
        )
    return recorder.trace()
