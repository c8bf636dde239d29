"""Numbers that are not finite: steps that are skipped, samples that are left out, runs that stop.

Two things are kept apart. A *sample* of which a fixed number (reward, penalty, value, target) is
not finite is left out of what its agent and its critic learn, before anything is normalised over
its group. A *step* in which a number goes bad (log-probability, loss, gradient) is not made: that
model and its optimiser stay as they were, bit for bit, the other models' steps go on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from marlogue.algorithms.not_finite import NotFinite
from marlogue.algorithms.sample import Sample

#: So many warnings of each kind; further ones would say nothing new, and are counted.
MOST_WARNINGS = 10
_NAMED = 5  # items in a message


def first_bad(sample: Sample) -> tuple[str, float] | None:
    """The first of a sample's fixed numbers that is not finite, in the order in which they are
    computed, and what it is; None when all are."""
    if not math.isfinite(sample.reward):
        return "reward", sample.reward
    if not math.isfinite(sample.penalty):
        return "reference_kl", sample.reference_kl
    if sample.next is not None and not math.isfinite(sample.next.value):
        return "value of what followed", sample.next.value
    for name in ("target", "value", "advantage"):
        value: float = getattr(sample, name)
        if not math.isfinite(value):
            return name, value
    return None


def place_of(samples: Sequence[Sample]) -> str:
    """``AGENT/turn_T`` of samples of one turn, ``team/turn_T`` where they are several agents'."""
    agents = {sample.agent for sample in samples}
    agent = agents.pop() if len(agents) == 1 else "team"
    return f"{agent}/turn_{samples[0].turn_idx + 1}"


@dataclass(frozen=True)
class BadStep:
    """A step that was not made.

    Attributes:
        model: "agent_I" or "critic_I", as in the folder of a saved team (AAC: "actors", "critic").
        place: what it is counted under in the log.
        number: what was not finite first.
        value: what it was.
        where: where it was seen, for messages; may be empty.
        batch: what was to be learnt from: samples (AAC: a batch of replay).
        count: how many steps of the run have been skipped, this one included.
        in_a_row: how many of this model, this one included.
    """

    model: str
    place: str
    number: str
    value: float
    where: str
    batch: Any
    count: int
    in_a_row: int

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.model}: the {self.number} is {self.value}{where}"


#: Keeps the batch of a step for inspection, with the whole team where that is asked for; gives
#: back where it lies, or None where it was not kept.
Keep = Callable[[BadStep, bool], Path | None]


class SkippedSteps:
    """Counts steps that are not made, and stops a run that goes on like that.

    Args:
        max_in_a_row: the run stops after so many skipped steps in a row of one model.
        keep: saves a batch; None for nothing.
    """

    def __init__(self, max_in_a_row: int = 3, keep: Keep | None = None) -> None:
        self.max_in_a_row = max_in_a_row
        self.keep = keep
        self.in_a_row: dict[str, int] = {}
        self.steps: dict[str, int] = {}
        self._warnings: dict[str, int] = {}

    def made(self, model: str) -> None:
        """A model's step was made."""
        self.in_a_row.pop(model, None)

    def skip(self, model: str, place: str, error: NotFinite, batch: Any, where: str = "") -> None:
        """A model's step was not made; the arguments are as in :class:`BadStep`.

        Raises:
            FloatingPointError: when it was the last of too many in a row.
        """
        self.in_a_row[model] = self.in_a_row.get(model, 0) + 1
        self.steps[place] = self.steps.get(place, 0) + 1
        count, in_a_row = sum(self.steps.values()), self.in_a_row[model]
        step = BadStep(model, place, error.number, error.value, where, batch, count, in_a_row)
        last = in_a_row >= self.max_in_a_row
        kept, trouble = self._kept(step, last)
        if last:
            raise _stopped(step, kept, trouble) from error
        looked_at = "" if kept is None else f" The batch is in {kept}."
        self._warn("steps", f"a step was skipped, {step}.{looked_at}{trouble}")

    def figures(self) -> dict[str, float]:
        """How many there have been so far in the run."""
        told = {"train/bad_steps": float(sum(self.steps.values()))}
        return told | {f"{place}/bad_steps": float(count) for place, count in self.steps.items()}

    def state_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "in_a_row": dict(self.in_a_row),
            "steps": dict(self.steps),
            "warnings": dict(self._warnings),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.in_a_row = dict(state["in_a_row"])
        self.steps = dict(state["steps"])
        self._warnings = dict(state["warnings"])

    def _kept(self, step: BadStep, whole_team: bool) -> tuple[Path | None, str]:
        """Where the batch is; what the disk says must not hide what went wrong."""
        if self.keep is None:
            return None, ""
        try:
            return self.keep(step, whole_team), ""
        except OSError as error:
            return None, f" The batch could not be saved: {error}."

    def _warn(self, kind: str, message: str) -> None:
        self._warnings[kind] = self._warnings.get(kind, 0) + 1
        if self._warnings[kind] > MOST_WARNINGS:
            return
        if self._warnings[kind] == MOST_WARNINGS:
            message += f" Further ones are only counted, in train/bad_{kind}."
        warnings.warn(message, stacklevel=3)


class BadNumbers(SkippedSteps):
    """The same for learners of samples, which may be left out of a step."""

    def __init__(self, max_in_a_row: int = 3, keep: Keep | None = None) -> None:
        super().__init__(max_in_a_row, keep)
        self.samples: dict[str, int] = {}

    def attempt(
        self,
        model: str,
        samples: Sequence[Sample],
        needs: str,
        step: Callable[[list[Sample]], dict[str, float]],
    ) -> dict[str, float]:
        """Make a model's optimiser step, or leave it out.

        Args:
            model: whose step it is; see :class:`BadStep`.
            samples: the minibatch.
            needs: the number that must be finite for a sample to be learnt from.
            step: makes the step with the samples for which it is, and gives its figures. What it
                raises must leave the model and its optimiser as they were, gradients freed.

        Returns:
            The step's figures; none of a step that was skipped.

        Raises:
            FloatingPointError: when it was the last of too many in a row.
        """
        usable = [sample for sample in samples if math.isfinite(getattr(sample, needs))]
        try:
            if not usable:
                raise NotFinite(*(first_bad(samples[0]) or (needs, math.nan)), samples)
            figures = step(usable)
        except NotFinite as error:
            place = place_of(samples)
            where = f"{_said(place)}, {items(error.samples or samples)}"
            self.skip(model, place, error, list(samples), where)
            return {}
        self.made(model)
        return figures

    def leave_out(self, samples: Sequence[Sample]) -> None:
        """Count those of an agent's samples of one turn that are not learnt from, and say so."""
        found = [(sample, first_bad(sample)) for sample in samples]
        bad = [(sample, what) for sample, what in found if what is not None]
        if not bad:
            return
        place = place_of(samples)
        self.samples[place] = self.samples.get(place, 0) + len(bad)
        number, value = bad[0][1]
        self._warn(
            "samples",
            f"{len(bad)} of {len(samples)} samples of {_said(place)} are left out of the update: "
            f"the {number} is {value} ({items([sample for sample, _ in bad])}).",
        )

    @override
    def figures(self) -> dict[str, float]:
        """How many steps and samples there have been so far in the run."""
        told = super().figures()
        told["train/bad_samples"] = float(sum(self.samples.values()))
        return told | {f"{place}/bad_samples": float(n) for place, n in self.samples.items()}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "samples": dict(self.samples)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.samples = dict(state["samples"])


def items(samples: Sequence[Sample]) -> str:
    """The items that samples are of, for a message."""
    numbers = list(dict.fromkeys(sample.item_idx for sample in samples))
    named = ", ".join(map(str, numbers[:_NAMED]))
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"item {named}" if len(numbers) == 1 else f"items {named}{more}"


def _said(place: str) -> str:
    """``AGENT/turn_T`` as it is said."""
    agent, _, turn = place.rpartition("/")
    return f"{agent}, {turn.replace('_', ' ')}"


def _stopped(step: BadStep, kept: Path | None, trouble: str) -> FloatingPointError:
    times = "once" if step.in_a_row == 1 else f"{step.in_a_row} times in a row"
    look = f"look at the batch with: python -m marlogue inspect {kept}"
    if kept is None:
        look = trouble.strip() or "with a logdir the batch would be saved there for inspection."
    return FloatingPointError(
        f"a step was skipped {times}, and the run stops (max_bad_steps). {step}. Look for NaN or "
        "infinity in rewards and weights, lower the learning rate, set max_grad_norm, or use "
        f"float32; {look}"
    )
