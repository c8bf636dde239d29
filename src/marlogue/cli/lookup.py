"""Objects by name: dotted paths to functions, classes and factories."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from marlogue.cli.errors import UsageError, unknown


@dataclass
class Named:
    """What calling something gives.

    Args:
        name: dotted path to a function or class.
        kwargs: the arguments it is called with.
    """

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)


def search_here(*folders: Path) -> None:
    """Let modules in the current directory, and last those in ``folders``, be found."""
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)  # as with python -m
    for folder in folders:
        place = str(folder.resolve())
        if place not in sys.path and place != here:
            sys.path.append(place)


def find(path: str, key: str) -> Any:
    """The object at a dotted path.

    Args:
        path: as in "package.module.function"; "module.Class.method" will do too.
        key: the configuration's key, for messages.

    Raises:
        UsageError: when there is no such object.
        Exception: whatever a module raises when it is imported.
    """
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{key} ({path}) must be a dotted path, as in my_rewards.by_length")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            found: Any = import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")):
                continue  # it is no module, or not there
            raise
        for position, part in enumerate(parts[length:], length):
            if not hasattr(found, part):
                where = ".".join(parts[:position])
                raise unknown(f"{key} ({path}): in {where}", part, _names(found))
            found = getattr(found, part)
        return found
    raise UsageError(
        f"{key} ({path}): no module {parts[0]} was found; it must be installed, or lie in the "
        "current directory or beside the configuration file"
    )


def call(factory: Callable[..., Any], kwargs: Mapping[str, Any], key: str) -> Any:
    """Call a factory with arguments from a configuration.

    Raises:
        UsageError: when it takes no such arguments.
    """
    if not callable(factory):
        raise UsageError(f"{key} ({factory!r}) must be something that can be called")
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some builtins have none
        return factory(**kwargs)
    parameters = signature.parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for name in kwargs:
            if name not in signature.parameters:
                raise unknown(f"{key}.kwargs: the argument", name, signature.parameters)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise UsageError(f"{key}.kwargs: {error}") from None
    return factory(**kwargs)


def resolve(value: str | Named | None, key: str) -> Any:
    """A string is the object at that path; a :class:`Named` is what calling it gives."""
    if value is None:
        return None
    if isinstance(value, str):
        return find(value, key)
    return call(find(value.name, f"{key}.name"), value.kwargs, key)


def _names(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]
