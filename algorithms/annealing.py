"""Numbers that change over a training: exploration, guidance weights, importance exponents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Literal

from marlogue.agents.rules import check_fields, check_range, converted, one_of, real


@dataclass(frozen=True)
class Anneal:
    """A number that goes from ``start`` to ``end`` over the first part of a training, then stays.

    Calling it with the progress, in [0, 1], gives the number.

    Args:
        start: the number at progress 0.
        end: the number from progress ``until`` on.
        until: share of the training after which ``end`` is reached; 0 for ``end`` from the start.
        shape: "linear"; "cosine" leaves and arrives slowly; "exponential" changes by a constant
            factor, for which both ends must be above 0.

    Raises:
        ValueError: when a field has a wrong type or range.
    """

    start: float = real(1.0)
    end: float = real(1.0)
    until: float = real(1.0, at_least=0, at_most=1)
    shape: Literal["linear", "cosine", "exponential"] = one_of(
        "linear", ("linear", "cosine", "exponential")
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.shape == "exponential" and min(self.start, self.end) <= 0:
            raise ValueError(
                f"start ({self.start}) and end ({self.end}) must be above 0 when shape is "
                "'exponential'; set shape='linear' to reach 0."
            )

    def __call__(self, progress: float) -> float:
        """The number at a progress.

        Raises:
            ValueError: when ``progress`` is no number of at least 0.
        """
        if not progress >= 0:
            raise ValueError(f"progress ({progress!r}) must be a number of at least 0.")
        if progress >= self.until:
            return self.end
        share = progress / self.until
        if self.shape == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** share
        return self.start + (self.end - self.start) * share


#: How a configuration's field of a number that changes is annotated. A mapping will do as well,
#: and from YAML it is the only way to write one.
AnnealLike = float | Anneal


def as_anneal(
    value: float | Mapping[str, Any] | Anneal, *, name: str = "value", default: Anneal | None = None
) -> Anneal:
    """A number that changes, from the ways to write one.

    Args:
        value: a number that stays what it is, an :class:`Anneal`, or a mapping of its fields.
        name: of the field, for messages.
        default: has what a mapping leaves out.

    Raises:
        ValueError: when it is none of them, or the mapping has an unknown or unfit entry.
    """
    if isinstance(value, Anneal):
        return value
    if isinstance(value, Mapping):
        known = [entry.name for entry in fields(Anneal)]
        unknown = [str(key) for key in value if key not in known]
        if unknown:
            raise ValueError(
                f"{name} has the unknown key {unknown[0]!r}; known are {', '.join(known)}."
            )
        return _noted(name, replace, default or Anneal(), **value)
    if isinstance(value, Real) and not isinstance(value, bool):
        return _noted(name, Anneal, start=value, end=value)
    raise ValueError(
        f"{name} ({value!r}) must be a number, an Anneal, or a mapping such as "
        "{start: 0.9, end: 0.2}."
    )


def annealed(
    default: float | Anneal | None,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    optional: bool = False,
) -> Any:
    """A field of a number that changes, for :func:`marlogue.agents.rules.check_fields`: given as
    :func:`as_anneal` takes it, kept as an :class:`Anneal`; with ``optional`` it may be None.

    Annotate it ``AnnealLike`` (or ``AnnealLike | None``): the command line then takes a number or a
    mapping, and what a mapping leaves out is as in the default.
    """
    first = None if default is None else as_anneal(default)

    def convert(name: str, value: Any) -> Anneal | None:
        if optional and value is None:
            return None
        return as_anneal(value, name=name, default=first)

    def rule(name: str, value: Anneal | None) -> None:
        if value is None:
            return
        for end in ("start", "end"):
            check_range(f"{name}.{end}", getattr(value, end), at_least=at_least, at_most=at_most)

    return converted(first, convert, rule)


def _noted(name: str, make: Any, *arguments: Any, **entries: Any) -> Anneal:
    """What ``make`` makes of them, or an error that names the field as well."""
    try:
        made: Anneal = make(*arguments, **entries)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return made
