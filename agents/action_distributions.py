"""Distributions over the actions of padded teams."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# Stands for minus infinity: far below any logit, and 0 x this is 0 rather than NaN.
_NEVER = -1e9
# The nearest to 1 that an action is taken to be when its pre-image is asked for.
_EDGE = 1e-6


class ActionDistribution(Protocol):
    """What actors return: one distribution per agent [..., N]."""

    def sample(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Actions and their log-probabilities [..., N]."""

    def mode(self) -> Tensor:
        """The greedy actions."""

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probabilities [..., N] of given actions."""


@dataclass(frozen=True)
class DiscreteActions:
    """Categorical distributions.

    Attributes:
        logits: [..., N, A], those of actions that are not available far below all others.
    """

    logits: Tensor

    @classmethod
    def of(cls, logits: Tensor, available: Tensor) -> DiscreteActions:
        """With actions ruled out where ``available`` (bool, broadcast to the logits) is False."""
        return cls(logits.masked_fill(~available, _NEVER))

    @property
    def log_probs(self) -> Tensor:
        """[..., N, A], log pi(a); finite also for actions that are ruled out."""
        return F.log_softmax(self.logits, -1)

    @property
    def probs(self) -> Tensor:
        """[..., N, A], pi(a); exactly 0 for actions that are ruled out."""
        return F.softmax(self.logits, -1)

    def sample(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Indices [..., N], long, and their log-probabilities [..., N], differentiable.

        The first action at which the summed probabilities reach u times their total, u uniform in
        (0, 1]: never one of probability 0, which adds nothing to the sum before it.
        """
        log_probs = self.log_probs
        with torch.no_grad():
            sums = log_probs.exp().cumsum(-1)
            drawn = torch.empty_like(sums[..., :1]).uniform_(generator=generator)
            actions = (sums < (1 - drawn) * sums[..., -1:]).sum(-1)
        return actions, _taken(log_probs, actions)

    def mode(self) -> Tensor:
        """The most probable actions [..., N], long."""
        return self.logits.argmax(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probabilities [..., N] of indices [..., N]."""
        return _taken(self.log_probs, actions)

    def entropy(self) -> Tensor:
        """[..., N], in nats."""
        log_probs = self.log_probs
        return -(log_probs.exp() * log_probs).sum(-1)


@dataclass(frozen=True)
class TanhGaussian:
    """tanh(u), u from N(mean, std^2), for each number of an action (Haarnoja et al. 2018).

    Attributes:
        mean: [..., N, A], of u.
        log_std: [..., N, A].
        exists: [N, A] bool; numbers that an agent's action has not are 0 and count for nothing.
    """

    mean: Tensor
    log_std: Tensor
    exists: Tensor

    def sample(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Actions [..., N, A] in [-1, 1] and their log-densities [..., N]; the gradient goes
        through both to mean and log_std (reparameterised)."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        raw = self.mean + self.log_std.exp() * noise
        return torch.tanh(raw) * self.exists, self._density(raw, noise)

    def mode(self) -> Tensor:
        """tanh(mean) [..., N, A], with the gradient to the mean: the deterministic policy."""
        return torch.tanh(self.mean) * self.exists

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-densities [..., N] of actions [..., N, A]; those at the edges are taken to be
        just inside."""
        raw = torch.atanh(actions.clamp(-1 + _EDGE, 1 - _EDGE))
        return self._density(raw, (raw - self.mean) * (-self.log_std).exp())

    def _density(self, raw: Tensor, noise: Tensor) -> Tensor:
        """log N(u) - log(1 - tanh(u)^2), the last as 2 (log 2 - u - softplus(-2u)), which loses
        no digits at large u (Haarnoja et al. 2018, appendix C)."""
        normal = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        stretch = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return ((normal - stretch) * self.exists).sum(-1)


def _taken(table: Tensor, actions: Tensor) -> Tensor:
    return table.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
