"""Warnings of what goes wrong in silence, each once per run; and the bound on the reference KL."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from marlogue.algorithms.config import ActorCriticConfig
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.sample import Sample
from marlogue.algorithms.update_figures import Returns, UpdateFigures, figures_of
from marlogue.algorithms.watchers import (
    AlwaysCut,
    EntropyCollapse,
    EqualReturns,
    ReferenceRunaway,
    Watcher,
    WorseThanAConstant,
    is_silent,
)

#: Share of a model's weights that a step must be able to move.
_LOST = 0.5
# Weights of a parameter that are looked at: all of them would take seconds, on a GPU copies.
_WEIGHTS = 4096
_MEND = (
    "Raise the learning rate, or train in float32 (dtype='bfloat16' computes in half precision "
    "with float32 weights)."
)


class ReferenceKLError(RuntimeError):
    """The policy is further from its reference than ``max_reference_kl`` allows."""


class Watch:
    """Looks at every update of a run.

    Args:
        args: the configuration.
        guided: a guidance gives signal where the returns give none.
    """

    def __init__(self, args: ActorCriticConfig, *, guided: bool = False) -> None:
        self.max_reference_kl = args.max_reference_kl
        self.returns = Returns()
        self.watchers: list[Watcher] = [
            WorseThanAConstant(),
            EntropyCollapse(),
            AlwaysCut(args.max_new_tokens),
            ReferenceRunaway(),
        ]
        if not guided:
            self.watchers.append(EqualReturns())
        self.said: list[str] = []
        self._too_far = ""

    def updated(
        self, learnt: Sequence[Sample], optimizers: Mapping[str, Optimizer]
    ) -> dict[str, float]:
        """Look at an update.

        Args:
            learnt: the samples that it learnt from.
            optimizers: of all models, by name.

        Returns:
            Figures for the log.
        """
        update = figures_of(learnt)
        self.returns.see(group for group in update.groups if math.isfinite(group.mean))
        for watcher in self.watchers:
            message = watcher.see(update, self.returns)
            if message is not None:
                self._say(watcher.name, message)
        for name, optimizer in optimizers.items():
            self._look_at(name, optimizer)
        limit = self.max_reference_kl
        self._too_far = ""
        if limit is not None and update.reference_kl > limit:
            self._too_far = _too_far(update, limit)
        several = [is_silent(group) for group in update.groups if group.size > 1]
        return {"train/equal_return_groups": sum(several) / len(several)} if several else {}

    def check(self) -> None:
        """Stop a run whose latest update was too far from the reference; to be called where the
        state is whole, so that it can be saved.

        Raises:
            ReferenceKLError: when it was.
        """
        if self._too_far:
            raise ReferenceKLError(self._too_far)

    def state_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "said": list(self.said),
            "returns": dict(self.returns.ranges),
            "watchers": {watcher.name: watcher.state_dict() for watcher in self.watchers},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.said = list(state["said"])
        self.returns.ranges = dict(state["returns"])
        for watcher in self.watchers:
            if watcher.name in state["watchers"]:
                watcher.load_state_dict(state["watchers"][watcher.name])

    def _look_at(self, name: str, optimizer: Optimizer) -> None:
        """Whether the learning rate moves a model's weights."""
        if optimizer.unmoved:
            self._say(
                f"unmoved {name}",
                f"a step of {name} with a learning rate of {optimizer.learning_rate:g} left all "
                "its weights as they were, bit for bit, though its gradient was not 0: the step is "
                f"lost in rounding. {_MEND}",
            )
        rate = optimizer.base_learning_rate
        if optimizer.learning_rate <= 0 or f"rate {name}" in self.said:
            return
        self.said.append(f"rate {name}")  # once is enough: precision and size of weights stay
        lost, typical, kinds = rounding(optimizer.parameters, rate)
        if lost > _LOST:
            self._tell(
                f"{lost:.0%} of the weights of {name} ({kinds}) do not move at its learning rate "
                f"of {rate:g}: numbers of their size lie {typical:.2g} apart. {_MEND}"
            )

    def _say(self, name: str, message: str) -> None:
        if name not in self.said:
            self.said.append(name)
            self._tell(message)

    def _tell(self, message: str) -> None:
        warnings.warn(message, stacklevel=4)


@torch.no_grad()
def rounding(parameters: Sequence[nn.Parameter], rate: float) -> tuple[float, float, str]:
    """Whether steps of AdamW, of about ``rate`` each, are lost in the rounding of the weights: one
    is where it is below half the distance from a weight to the next number.

    Of a large parameter some weights stand for all.

    Returns:
        The share of weights that do not move (a 0 does), the distance at the median weight of the
        largest parameter, and the dtypes.
    """
    lost, count = 0.0, 0
    largest, typical = 0, math.nan
    for weights in parameters:
        if not weights.numel():
            continue
        some = weights.detach().flatten()[:: weights.numel() // _WEIGHTS + 1].float()
        # w = m 2^e with m in [1/2, 1): the next number is eps 2^(e - 1) away.
        exponents = torch.frexp(some).exponent
        eps = torch.full_like(some, torch.finfo(weights.dtype).eps / 2)
        distances = torch.where(some == 0, 0.0, torch.ldexp(eps, exponents))
        lost += weights.numel() * float((distances / 2 > rate).float().mean())
        count += weights.numel()
        if weights.numel() > largest:
            largest, typical = weights.numel(), float(distances.median())
    kinds = sorted({str(weights.dtype).removeprefix("torch.") for weights in parameters})
    return lost / max(count, 1), typical, ", ".join(kinds)


def _too_far(update: UpdateFigures, limit: float) -> str:
    return (
        f"the KL of {update.furthest} to its reference was {update.reference_kl:.4g} per "
        f"completion in the latest update, and max_reference_kl is {limit:g}: the run stops. Raise "
        "reference_kl_coef or lower agent_learning_rate and go on from an earlier checkpoint, or "
        "raise max_reference_kl."
    )
