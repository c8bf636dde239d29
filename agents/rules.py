"""Rules for the fields of a dataclass: type and range, checked when it is built.

A field states its rule where it is declared::

    rollout_buffer_size: int = whole(8, at_least=1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import Field, field, fields
from numbers import Integral, Real
from typing import Any

import torch

Rule = Callable[[str, Any], None]
Conversion = Callable[[str, Any], Any]


def check_fields(config: Any) -> None:
    """Apply the rule of every field of a dataclass instance, after the field's conversion where
    it has one (it may be given as one thing and kept as another).

    Raises:
        ValueError: naming the field, its value and what it must be.
    """
    for entry in fields(config):
        convert: Conversion | None = entry.metadata.get("convert")
        if convert is not None:
            object.__setattr__(config, entry.name, convert(entry.name, getattr(config, entry.name)))
        rule: Rule | None = entry.metadata.get("rule")
        if rule is not None:
            rule(entry.name, getattr(config, entry.name))


def whole(default: int | None, *, at_least: int, optional: bool = False) -> Any:
    """An integer field; with ``optional`` it may be None."""

    def rule(name: str, value: Any) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
            wanted = f"an integer of at least {at_least}" + (" or None" if optional else "")
            raise ValueError(f"{name} ({value!r}) must be {wanted}.")

    return _with(default, rule)


def real(
    default: float | None,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    optional: bool = False,
) -> Any:
    """A field of a finite number; with ``optional`` it may be None."""

    def rule(name: str, value: Any) -> None:
        if optional and value is None:
            return
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise ValueError(f"{name} ({value!r}) must be a finite number.{_hint(value)}")
        check_range(name, value, at_least=at_least, at_most=at_most, above=above)

    return _with(default, rule)


def truth(default: bool) -> Any:
    """A field that is True or False."""

    def rule(name: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise ValueError(f"{name} ({value!r}) must be True or False.")

    return _with(default, rule)


def one_of(default: str | None, choices: Sequence[str]) -> Any:
    """A field with a few possible strings; it may be None where the default is."""

    def rule(name: str, value: Any) -> None:
        if value not in choices and not (value is None and default is None):
            listed = ", ".join(map(repr, choices)) + (" or None" if default is None else "")
            raise ValueError(f"{name} ({value!r}) must be one of {listed}.")

    return _with(default, rule)


def wholes(default: Sequence[int] | None, *, at_least: int, optional: bool = False) -> Any:
    """A field of a list of integers, at least one; with ``optional`` it may be None."""

    def rule(name: str, value: Any) -> None:
        if optional and value is None:
            return
        listed = list(value) if isinstance(value, list | tuple) else []
        if not listed or any(
            isinstance(number, bool) or not isinstance(number, Integral) or number < at_least
            for number in listed
        ):
            wanted = f"a list of integers of at least {at_least}" + (" or None" if optional else "")
            raise ValueError(f"{name} ({value!r}) must be {wanted}.")

    return _with(default, rule)


def device() -> Any:
    """A field of one torch device, or None."""

    def rule(name: str, value: Any) -> None:
        if value is not None and not _is_device(value):
            raise ValueError(
                f"{name} ({value!r}) must be a device such as 'cpu' or 'cuda:0', or None."
            )

    return _with(None, rule)


def devices() -> Any:
    """A field of torch devices: None, one for all, or a list."""

    def rule(name: str, value: Any) -> None:
        listed = [value] if isinstance(value, str) else value
        if value is None:
            return
        if not isinstance(listed, list | tuple) or not listed or not all(map(_is_device, listed)):
            raise ValueError(
                f"{name} ({value!r}) must be a device such as 'cpu' or 'cuda:0', a list of them, "
                "or None."
            )

    return _with(None, rule)


def converted(default: Any, convert: Conversion, rule: Rule) -> Any:
    """A field that is kept as ``convert(name, value)``, to which the rule then applies."""
    made: Field[Any] = field(default=default, metadata={"convert": convert, "rule": rule})
    return made


def check_range(
    name: str,
    value: float,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
) -> None:
    """See that a number lies in a range.

    Raises:
        ValueError: naming it, its value and the range.
    """
    if not (at_least <= value <= at_most and value > above):
        raise ValueError(f"{name} ({value!r}) must be {_range(at_least, at_most, above)}.")


def _is_device(name: Any) -> bool:
    try:
        torch.device(name)
    except (RuntimeError, TypeError):
        return False
    return isinstance(name, str)


def _with(default: Any, rule: Rule) -> Field[Any]:
    made: Field[Any] = field(default=default, metadata={"rule": rule})
    return made


def _hint(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    try:
        return f" It is a string; write {float(value)!r}."
    except ValueError:
        return ""


def _range(at_least: float, at_most: float, above: float) -> str:
    parts = []
    if above > -math.inf:
        parts.append(f"above {above:g}")
    if at_least > -math.inf:
        parts.append(f"at least {at_least:g}")
    if at_most < math.inf:
        parts.append(f"at most {at_most:g}")
    return " and ".join(parts)
