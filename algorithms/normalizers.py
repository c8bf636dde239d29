"""Running means and standard deviations of observations and rewards.

E environments, N agents, D observation size, K groups of agents that share statistics.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Floats = NDArray[np.float64]


class RunningMoments:
    """Mean and variance of rows that come in batches (Chan et al. 1979, pairwise update).

    Args:
        groups: K; rows of different groups are kept apart.
        size: D, numbers in a row.

    Attributes:
        count: [K] rows so far.
        mean: [K, D].
        variance: [K, D], population; 1 before the first row.
    """

    def __init__(self, groups: int, size: int) -> None:
        self.count = np.zeros(groups)
        self.mean = np.zeros((groups, size))
        self._squares = np.zeros((groups, size))  # sums of squared deviations

    @property
    def variance(self) -> Floats:
        """[K, D]."""
        count = self.count[:, None]
        return np.where(count > 0, self._squares / np.maximum(count, 1), 1.0)

    def update(self, rows: Array, groups: Array) -> None:
        """Take in ``rows`` [R, D] of the ``groups`` [R] (numbers below K)."""
        for group in np.unique(groups):
            batch = rows[groups == group].astype(np.float64)
            mean, new, old = batch.mean(0), len(batch), self.count[group]
            shift = mean - self.mean[group]
            total = old + new
            self.mean[group] += shift * new / total
            self._squares[group] += ((batch - mean) ** 2).sum(0) + shift**2 * old * new / total
            self.count[group] = total

    def state_dict(self) -> dict[str, Array]:
        """Copies of what is known."""
        return {
            "count": self.count.copy(),
            "mean": self.mean.copy(),
            "squares": self._squares.copy(),
        }

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Take over what :meth:`state_dict` gave.

        Raises:
            ValueError: when the sizes differ.
        """
        if state["mean"].shape != self.mean.shape:
            raise ValueError(
                f"the saved statistics have the shape {state['mean'].shape}, which must be "
                f"{self.mean.shape}; use the groups and the observation size of then."
            )
        self.count[:], self.mean[:], self._squares[:] = (
            state[name] for name in ("count", "mean", "squares")
        )


class ObservationNormalizer:
    """Observations minus their mean, divided by their standard deviation, then clipped.

    Hold raw observations in the replay buffer and normalise what is drawn: the statistics move.

    Args:
        groups: [N], the group of each agent; agents whose observations mean the same belong to one
            (with all agents alike: zeros).
        size: D. Padding stays 0, since its mean is 0.
        clip: the largest absolute result.
        epsilon: added to the variance.
        num_groups: K, where there are groups that none of these agents belongs to; None for as many
            as are named.

    Raises:
        ValueError: when ``clip`` or ``epsilon`` is not above 0.
    """

    def __init__(
        self,
        groups: Array,
        size: int,
        clip: float = 10.0,
        epsilon: float = 1e-8,
        num_groups: int | None = None,
    ) -> None:
        for name, value in (("clip", clip), ("epsilon", epsilon)):
            if not value > 0:
                raise ValueError(f"{name} ({value!r}) must be above 0.")
        self.groups = np.asarray(groups, np.int64)
        self.moments = RunningMoments(num_groups or int(self.groups.max()) + 1, size)
        self.clip = clip
        self.epsilon = epsilon
        self._cached: tuple[Array, Array] | None = None

    def update(self, observations: Array, present: Array) -> None:
        """Take in ``observations`` [E, N, D] of the agents that are ``present`` [E, N].

        Raises:
            ValueError: when one of theirs is not finite, naming which.
        """
        rows = observations[present]
        if not np.isfinite(rows).all():
            bad = ~np.isfinite(observations) & present[..., None]
            env, agent, component = np.argwhere(bad)[0].tolist()
            raise ValueError(
                f"observations of agent {agent} in environment {env}, component {component} "
                f"({observations[env, agent, component]}) must be a finite number; mend the "
                "environment, or replace the value there."
            )
        self.moments.update(rows, np.broadcast_to(self.groups, present.shape)[present])
        self._cached = None

    def __call__(self, observations: Array) -> NDArray[np.float32]:
        """Normalise ``observations`` [..., N, D]."""
        mean, scale = self._mean_and_scale()
        normal = np.clip((observations - mean) * scale, -self.clip, self.clip)
        return normal.astype(np.float32, copy=False)

    def tensor(self, observations: Tensor) -> Tensor:
        """Normalise ``observations`` [..., N, D] on their device."""
        mean, scale = (torch.from_numpy(a).to(observations) for a in self._mean_and_scale())
        return ((observations - mean) * scale).clamp(-self.clip, self.clip)

    def state_dict(self) -> dict[str, Array]:
        """Copies of what is known."""
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Take over what :meth:`state_dict` gave; a ValueError when the sizes differ."""
        self.moments.load_state_dict(state)
        self._cached = None

    def _mean_and_scale(self) -> tuple[Array, Array]:
        """Mean [N, D] and one over the standard deviation [N, D], float32."""
        if self._cached is None:
            scale = 1.0 / np.sqrt(self.moments.variance + self.epsilon)
            self._cached = (
                self.moments.mean[self.groups].astype(np.float32),
                scale[self.groups].astype(np.float32),
            )
        return self._cached


class RewardScaler:
    """Rewards divided by the standard deviation of the discounted sum of past rewards, as in
    Engstrom et al. 2020 ("reward scaling"): none is subtracted, so what is best stays so.

    One scale for the whole team, so that agents' rewards stay comparable. Hold raw rewards in the
    replay buffer and scale what is drawn; n-step sums scale alike.

    Args:
        num_envs: E.
        num_agents: N.
        discount: gamma.
        epsilon: added to the variance.

    Attributes:
        sums: [E, N], discounted sums of the episodes under way.

    Raises:
        ValueError: when ``discount`` is not between 0 and 1.
    """

    def __init__(
        self, num_envs: int, num_agents: int, discount: float = 0.99, epsilon: float = 1e-8
    ) -> None:
        if not 0 <= discount <= 1:
            raise ValueError(f"discount ({discount!r}) must be between 0 and 1.")
        self.discount = discount
        self.epsilon = epsilon
        self.moments = RunningMoments(1, 1)
        self.sums = np.zeros((num_envs, num_agents))

    @property
    def scale(self) -> float:
        """The standard deviation; 1 before two different sums have been seen."""
        variance = float(self.moments.variance[0, 0])
        return float(np.sqrt(variance + self.epsilon)) if variance > 0 else 1.0

    def update(
        self, rewards: Array, present: Array, over: Array, envs: Array | None = None
    ) -> None:
        """Take in ``rewards`` [E, N] of the agents ``present`` [E, N], in environments whose
        episode is ``over`` [E] after this step; ``envs`` [E'] when they are only some.

        Raises:
            ValueError: when a reward is not finite, naming which.
        """
        if not np.isfinite(rewards[present]).all():
            env, agent = np.argwhere(~np.isfinite(rewards) & present)[0].tolist()
            raise ValueError(
                f"rewards of agent {agent} in environment {env} ({rewards[env, agent]}) must be a "
                "finite number."
            )
        who = np.arange(len(self.sums)) if envs is None else np.asarray(envs)
        sums = self.sums[who] * self.discount + np.where(present, rewards, 0.0)
        self.moments.update(sums[present][:, None], np.zeros(int(present.sum()), np.int64))
        self.sums[who] = np.where(over[:, None], 0.0, sums)

    def forget(self, envs: Array | None = None) -> None:
        """Begin new episodes in some environments (None: all), whose last one broke off."""
        self.sums[slice(None) if envs is None else envs] = 0.0

    def __call__(self, rewards: Tensor) -> Tensor:
        """``rewards`` divided by the scale."""
        return rewards / self.scale

    def state_dict(self) -> dict[str, Array]:
        """Copies of what is known; nothing of the episodes that are under way."""
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.moments.load_state_dict(state)
