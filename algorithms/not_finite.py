"""Finding out that a number is not finite, and whose it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from marlogue.algorithms.sample import Sample

_NAMED = 5  # parameters in a message


class NotFinite(FloatingPointError):  # noqa: N818 (it is what a number is)
    """A number of an optimiser step is not finite; the step was not made.

    Args:
        number: what it is: "log_prob", "actor_loss", "value_loss", "gradient norm", ...
        value: what it was.
        samples: those at which it was seen, where that is known.
    """

    def __init__(self, number: str, value: float, samples: Sequence[Sample] = ()) -> None:
        super().__init__(
            f"the {number} is {value}, and this model was not stepped; look for NaN or infinity in "
            "rewards and weights, lower the learning rate, or use float32."
        )
        self.number = number
        self.value = value
        self.samples = list(samples)


class BadWeightsError(FloatingPointError):
    """A model's weights have become such that nothing can be sampled from it any more."""


def require_finite(number: str, values: Sequence[float], samples: Sequence[Sample] = ()) -> None:
    """See that all values are finite.

    Args:
        number: what they are.
        values: B numbers.
        samples: B samples that they belong to, or none.

    Raises:
        NotFinite: with the samples whose value is not.
    """
    bad = [row for row, value in enumerate(values) if not math.isfinite(value)]
    if bad:
        raise NotFinite(number, values[bad[0]], [samples[row] for row in bad] if samples else ())


def traced(error: NotFinite, **numbers: Tensor) -> NotFinite:
    """The error about the first of these numbers that is not finite; ``error`` where all are."""
    for name, tensor in numbers.items():
        bad = tensor.detach()[~torch.isfinite(tensor)]
        if bad.numel():
            return NotFinite(name, float(bad.flatten()[0]))
    return error


def bad_weights(name: str, module: nn.Module) -> list[str]:
    """Which weights of a model are not finite, by the names of its parameters."""
    lines = []
    for parameter, weights in module.named_parameters():
        bad = int((~torch.isfinite(weights)).sum())
        if bad:
            lines.append(f"{name}: {parameter}: {bad} of {weights.numel()} are not finite")
    return lines


@contextmanager
def weights_named(agent: str, model: nn.Module) -> Iterator[None]:
    """Say of an error about numbers whose model it was, and which of its weights are the cause.

    Raises:
        BadWeightsError: in the place of the error.
    """
    try:
        yield
    except FloatingPointError as error:
        found = bad_weights(agent, model)[:_NAMED]
        raised = BadWeightsError(str(error))
        raised.add_note("\n".join(found or [f"{agent}: all weights are finite: they have grown"]))
        raise raised from error
