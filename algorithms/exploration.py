"""Exploration beside what a policy draws itself.

E environments, N agents, A actions (discrete) or size of an action (continuous).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlogue.algorithms.annealing import Anneal

Array = NDArray[Any]


class EpsilonGreedy:
    """With probability epsilon, each agent for itself, a uniformly random available action.

    Args:
        epsilon: by the training's progress; both ends between 0 and 1.
        seed: seed of the draws.

    Raises:
        ValueError: when epsilon leaves [0, 1].
    """

    def __init__(self, epsilon: Anneal, seed: int = 0) -> None:
        for value in (epsilon.start, epsilon.end):
            if not 0 <= value <= 1:
                raise ValueError(f"epsilon ({value!r}) must be between 0 and 1.")
        self.epsilon = epsilon
        self.rng = np.random.default_rng(seed)

    def __call__(self, actions: Array, available: Array, progress: float) -> Array:
        """Explore.

        Args:
            actions: [E, N] indices that the policies chose.
            available: bool, broadcasts to [E, N, A], actions that may be taken.
            progress: share of the training that is done.

        Returns:
            [E, N] indices. Where no action is available (an absent agent) the given one stays.

        Raises:
            ValueError: when ``available`` has no room for the actions' shape.
        """
        shape = (*actions.shape, available.shape[-1])
        if available.ndim > len(shape):
            raise ValueError(f"available has the shape {available.shape}, which must fit {shape}.")
        allowed = np.broadcast_to(available, shape)
        random = np.where(allowed, self.rng.random(shape), -1.0).argmax(-1)
        explore = self.rng.random(actions.shape) < self.epsilon(progress)
        return np.where(explore & allowed.any(-1), random, actions)


class GaussianNoise:
    """Normal noise on continuous actions, which stay in [-1, 1].

    Args:
        scale: standard deviation by the training's progress; both ends at least 0.
        seed: seed of the draws.

    Raises:
        ValueError: when the scale is below 0.
    """

    def __init__(self, scale: Anneal, seed: int = 0) -> None:
        for value in (scale.start, scale.end):
            if value < 0:
                raise ValueError(f"scale ({value!r}) of the noise must be at least 0.")
        self.scale = scale
        self.rng = np.random.default_rng(seed)

    def __call__(self, actions: Array, exists: Array, progress: float) -> Array:
        """Explore.

        Args:
            actions: [E, N, A] in [-1, 1].
            exists: bool, broadcasts to [E, N, A]: components that actions have; padding stays 0.
            progress: share of the training that is done.

        Returns:
            [E, N, A] in [-1, 1], in the dtype of ``actions``.
        """
        noise = self.rng.normal(0.0, self.scale(progress), actions.shape)
        noisy = np.clip(actions + noise, -1.0, 1.0)
        return np.where(exists, noisy, actions).astype(actions.dtype)
