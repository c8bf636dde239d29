"""The process of a snippet: runs the code, then answers calls to its functions.

This module runs inside the sandbox. Everything here is in the hands of the code that it runs, so
nothing that it says about itself is believed: see `sandbox_test_side`.
"""

from __future__ import annotations

import errno
import os
import sys

from marlogue.envs.sandbox_codec import NotPlainError, TooLargeError, decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "solution"
FILE = "<code>"


def where(error: BaseException, file: str) -> int | None:
    """The line of a source at which an exception came up, or None."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def describe(error: BaseException, file: str) -> str:
    """An exception in a few words: `line 3: ZeroDivisionError: division by zero`."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # a number with more digits than may be written out, for instance
        text = ""
    line = where(error, file)
    name = type(error).__name__
    return (f"line {line}: " if line else "") + (f"{name}: {text}" if text else name)


def status_of(error: BaseException) -> str:
    """Which status an exception that nobody caught stands for."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "memory"
    return "violation" if number in (errno.ENOSPC, errno.EFBIG) else "error"


def run(job: dict[str, Any]) -> None:
    """Run `job["code"]`, tell how it went on the pipe `job["status"]`, then serve calls."""
    module = type(sys)(NAME)
    sys.modules[NAME] = module
    try:
        exec(compile(job["code"], FILE, "exec", dont_inherit=True), module.__dict__)
        names = function_names(module.__dict__)
        entry = job["entry_point"]
        if entry is not None and entry not in names:
            raise NameError(f"the code defines no function {entry}")
        answer = "loaded\n"
    except BaseException as error:
        answer = f"{status_of(error)}\n{describe(error, FILE)}"
    flush()
    send(job["status"], answer.encode("utf-8", "replace")[: job["status_bytes"]])
    if not answer.startswith("loaded") or job["requests"] is None:
        os._exit(0)
    Server(module.__dict__, job["requests"], job["answers"]).serve(names)


def flush() -> None:
    """What the code printed has to be out before it is over."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def function_names(namespace: dict[str, Any]) -> list[str]:
    """The names of what can be called, but is no class."""
    return [
        name
        for name, value in namespace.items()
        if name.isidentifier()
        and not name.startswith("__")
        and callable(value)
        and not isinstance(value, type)
    ]


class Server:
    """Answers the calls that come through a pipe."""

    def __init__(self, namespace: dict[str, Any], requests: int, answers: int):
        self.namespace, self.requests, self.answers = namespace, requests, answers
        self.iterators: list[Any] = []

    def keep(self, iterator: Any) -> int:
        """Remember an iterator; the tests ask for its items one by one."""
        self.iterators.append(iterator)
        return len(self.iterators) - 1

    def serve(self, names: list[str]) -> None:
        """Answer until the pipe is closed."""
        send(self.answers, encode(names))
        while (data := receive(self.requests)) is not None:
            nonce, what, *arguments = decode(data)
            answer = self.answer(nonce, what, arguments)
            flush()
            send(self.answers, answer)
        os._exit(0)

    def answer(self, nonce: bytes, what: str, arguments: list[Any]) -> bytes:
        """What a call gave: its value, or its exception."""
        try:
            value = self.call(what, arguments)
        except BaseException as error:
            if what == "next" and isinstance(error, StopIteration):
                return encode((nonce, "end"))
            return exception_answer(nonce, error)
        try:
            return encode((nonce, "value", value), self.keep)
        except TooLargeError as error:
            return encode((nonce, "too large", str(error)))
        except Exception as error:
            return encode((nonce, "not plain", str(error)))

    def call(self, what: str, arguments: list[Any]) -> Any:
        """Call a function, or ask an iterator that one returned for its next item."""
        if what == "next":
            (number,) = arguments
            return next(self.iterators[number])
        name, args, kwargs = arguments
        return self.namespace[name](*args, **kwargs)


def exception_answer(nonce: bytes, error: BaseException) -> bytes:
    """An exception: the nearest builtin type, its arguments, and a line that describes it."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    text = describe(error, FILE)
    try:
        return encode((nonce, "raise", names[0], list(error.args), text))
    except NotPlainError:
        return encode((nonce, "raise", names[0], [str(error)], text))
