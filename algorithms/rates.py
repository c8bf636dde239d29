"""What changes over a run by a schedule: learning rates, and the weight of guidance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marlogue.algorithms.annealing import as_anneal
from marlogue.algorithms.config import ActorCriticConfig
from marlogue.algorithms.optimizer import Optimizer, make_schedule


class Rates:
    """Learning rates and the guidance's weight, by the items that were learnt from.

    Args:
        args: the configuration.
        total: items of the whole run; None when it is not known.
        guided: there is a guidance.

    Attributes:
        guidance_weight: as of the latest :meth:`next`.

    Raises:
        ValueError: when something is to change over a run of unknown length.
    """

    def __init__(self, args: ActorCriticConfig, total: int | None, guided: bool) -> None:
        self.total = total
        self.guidance_weight = 0.0
        self._schedule = make_schedule(args.lr_scheduler_type, args.warmup_steps, total)
        self._weight = as_anneal(args.guidance_weight) if guided else None
        self._learnt = 0
        weight = self._weight
        if weight is not None and total is None and weight.start != weight.end:
            raise ValueError(
                f"guidance_weight ({weight}) changes over a run of known length; set max_steps, "
                "or a number."
            )

    def next(
        self, items: int, actors: Sequence[Optimizer], critics: Sequence[Optimizer]
    ) -> dict[str, float]:
        """Set them for an update after so many items; the first one's are those of item 0.

        Returns:
            Figures for the log.
        """
        factor = self._schedule(self._learnt)
        figures = {}
        if self._weight is not None:
            self.guidance_weight = self._weight(self._learnt / (self.total or 1))
            figures["train/guidance_weight"] = self.guidance_weight
        self._learnt = items
        for optimizer in (*actors, *critics):
            optimizer.set_progress(factor)
        figures["train/agent_learning_rate"] = actors[0].learning_rate
        if critics:
            figures["train/critic_learning_rate"] = critics[0].learning_rate
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {"learnt": self._learnt, "guidance_weight": self.guidance_weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._learnt = state["learnt"]
        self.guidance_weight = state["guidance_weight"]
