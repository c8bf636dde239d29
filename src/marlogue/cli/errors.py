"""What the user is told when something cannot be used."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from typing_extensions import override


class UsageError(Exception):
    """A command line or a configuration that cannot be used. Its message is all there is to say."""


class WordParser(argparse.ArgumentParser):
    """A parser of a command's words that says what is wrong with them as other errors are said."""

    @override
    def error(self, message: str) -> NoReturn:
        """Refuse the words.

        Raises:
            UsageError: with the message.
        """
        raise UsageError(message)


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error about a name that is not known, with the nearest known one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not near and "." not in name:  # as with a field that was put beside args, not in it
        by_last = {full.rpartition(".")[2]: full for full in names}
        near = [by_last[last] for last in difflib.get_close_matches(name, by_last, n=1)]
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
    return UsageError(f"{what} {name} is unknown; {hint}")


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Turn what the library refuses into usage errors; what other code raises passes through.

    For the time in which a run is put together. Whose exception it is, the innermost frame tells:
    a callback or a factory of the user's that fails keeps its traceback.
    """
    try:
        yield
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        if not _is_ours(error):
            raise
        raise UsageError(describe(error)) from error


def describe(error: BaseException) -> str:
    """The message of an exception, with its notes and what caused it."""
    lines = [str(error), *getattr(error, "__notes__", [])]
    cause = error.__cause__
    if cause is not None:
        first = str(cause).strip().splitlines()
        lines.append(f"cause: {type(cause).__name__}: {first[0] if first else ''}")
    return "\n  ".join(lines)


def _is_ours(error: BaseException) -> bool:
    trace = error.__traceback__
    module = ""
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return module == "marlogue" or module.startswith("marlogue.")
