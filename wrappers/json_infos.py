"""Infos as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_SIMPLE = (str, bool, int, float)


def json_infos(facts: Mapping[Any, Any], where: str, *, drop: bool = False) -> dict[str, Any]:
    """An agent's info with arrays as lists, numpy's numbers as Python's, and texts as keys.

    Args:
        facts: the info.
        where: what to call it in messages.
        drop: leave out what JSON cannot express, instead of raising.

    Raises:
        TypeError: when there is something that JSON cannot express, NaN and infinity included.
    """
    kept = {}
    for name, value in facts.items():
        try:
            kept[str(name)] = _plain(value, f"{where}[{name!r}]")
        except TypeError:
            if not drop:
                raise
    return kept


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, f"{where}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{where}[{k}]") for k, entry in enumerate(value)]
    if value is None or (
        isinstance(value, _SIMPLE) and not (isinstance(value, float) and not math.isfinite(value))
    ):
        return value
    raise TypeError(
        f"{where} ({value!r}) must be something that JSON can express; leave it out of the "
        "environment's infos"
    )
