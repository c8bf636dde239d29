"""What the user's callbacks have in common: how they are named, checked, called and blamed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Signature = inspect.Signature
Parameter = inspect.Parameter

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
PASS_THROUGH = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}


def callback_name(func: Any) -> str:
    """A name for messages: the function's own, that of its class, or that of what it wraps."""
    if isinstance(func, functools.partial):
        return f"partial({callback_name(func.func)})"
    name = getattr(func, "__qualname__", None)
    return name if isinstance(name, str) else type(func).__qualname__


def require_callable(func: Any, argument: str, *, awaited: bool = False) -> None:
    """Refuse what cannot be called, and what would have to be awaited where nobody does.

    Raises:
        TypeError: names the argument and what it got.
    """
    if not callable(func):
        raise TypeError(f"{argument} ({func!r}) must be callable")
    if any(map(inspect.isasyncgenfunction, _called(func))):
        raise TypeError(
            f"{argument} ({callback_name(func)}) is an async generator; return the value instead "
            "of yielding it"
        )
    if not awaited and is_async(func):
        raise TypeError(
            f"{argument} ({callback_name(func)}) is an async function, which is not awaited "
            "here; pass a plain function (one that runs its own event loop, if need be)"
        )


def is_async(func: Any) -> bool:
    """Whether a function, what a partial wraps, or an object's `__call__` is `async def`."""
    return any(map(inspect.iscoroutinefunction, _called(func)))


def _called(func: Any) -> tuple[Any, Any]:
    while isinstance(func, functools.partial):
        func = func.func
    return func, getattr(type(func), "__call__", None)  # noqa: B004


def require_result(result: Any, argument: str, func: Any) -> None:
    """Refuse a coroutine that a plain-looking callback returned.

    Raises:
        ValueError: names the argument and the callback.
    """
    if not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()  # or Python warns later that it was never awaited
    raise ValueError(
        f"{argument} ({callback_name(func)}) returned an awaitable, which is not awaited here; "
        "return the value itself"
    )


def callback_signature(func: Callable[..., Any]) -> Signature | None:
    """The signature that a call has to fit, or None where Python knows none (some builtins).

    A decorated function is judged by its outermost layer, which is what is called; only where
    that layer takes just `*args, **kwargs` and passes them on does the wrapped function decide.
    """
    try:
        outer = inspect.signature(func, follow_wrapped=False)
        kinds = {parameter.kind for parameter in outer.parameters.values()}
        return inspect.signature(func) if kinds == PASS_THROUGH else outer
    except ValueError:
        return None


def takes_any_keyword(signature: Signature) -> bool:
    """Whether the signature has `**kwargs`."""
    return any(p.kind is Parameter.VAR_KEYWORD for p in signature.parameters.values())


def bound_keywords(func: Any) -> frozenset[str]:
    """The keywords that `functools.partial` has settled already, which we leave alone."""
    names: set[str] = set()
    while isinstance(func, functools.partial):
        names.update(func.keywords)
        func = func.func
    return frozenset(names)


def accepted_keywords(
    func: Callable[..., Any], signature: Signature, offered: Iterable[str]
) -> tuple[str, ...]:
    """Those of the offered keywords that a function names, or all where it takes `**kwargs`."""
    settled = bound_keywords(func)
    if takes_any_keyword(signature):
        return tuple(name for name in offered if name not in settled)
    by_keyword = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    return tuple(name for name in offered if name in by_keyword and name not in settled)


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Let an exception through as it is, with a note of what was going on."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {where}")
        raise


def place(row: int | None, turn: int) -> str:
    """Name a row and a turn in messages. Rows and turns are counted from 0."""
    return f"{'an item given in options' if row is None else f'row {row}'}, turn {turn}"


def shortened(value: Any, length: int = 80) -> str:
    """The representation of a value, no longer than a message should have it."""
    text = repr(value)
    return text if len(text) <= length else text[:length] + "..."


def kind_of(value: Any) -> str:
    """What a callback returned, in a few words for messages."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    shown = f" ({value[:40]!r})" if isinstance(value, str) else ""
    return f"{article} {name}{shown}"
