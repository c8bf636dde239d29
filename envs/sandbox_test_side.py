"""The process of the tests: calls the code in another process and tells the verdict.

This module runs inside the sandbox. It takes nothing from the code's process but plain data, by
way of `sandbox_codec`, so that the code reaches neither the tests nor the verdict. What is wrong
with an answer is remembered: tests that catch every exception do not pass after it.
"""

from __future__ import annotations

import builtins
import os
import sys
from _thread import allocate_lock

from marlogue.envs.sandbox_code_side import describe, flush, status_of, where
from marlogue.envs.sandbox_codec import BrokenError, NotPlainError, decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "<tests>"
SETUP_FILE = "<setup>"
FROM_CODE = "_from_code"  # marks an exception that the code raised


class Fault(BaseException):
    """An answer that ends the tests; not an Exception, so that tests rarely catch it."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status, self.message = status, message


class Session:
    """The calls of one run of tests."""

    def __init__(self, requests: int, answers: int):
        self.requests, self.answers = requests, answers
        self.fault: Fault | None = None
        self.calls = 0
        self._lock = allocate_lock()

    def fail(self, status: str, message: str) -> Fault:
        """Remember what went wrong first."""
        if self.fault is None:
            self.fault = Fault(status, message)
        return self.fault

    def receive(self) -> Any:
        """The next message, decoded."""
        try:
            data = receive(self.answers)
            if data is None:
                raise self.fail("gone", "the code's process ended during the tests")
            return decode(data, lambda number: RemoteIterator(self, number))
        except BrokenError as error:
            raise self.fail("violation", f"the code broke the protocol: {error}") from None

    def names(self) -> list[str]:
        """The names of the code's functions, which it tells at first."""
        names = self.receive()
        if type(names) is list and all(is_name(name) for name in names):
            return names
        raise self.fail("violation", "the code broke the protocol: no list of functions")

    def ask(self, *question: Any) -> tuple[Any, ...]:
        """Send a call and wait for its answer; tests may do so in several threads."""
        with self._lock:
            return self._ask(question)

    def _ask(self, question: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.fault is not None:
            raise self.fault
        nonce = os.urandom(16)  # an answer that was written beforehand does not have it
        try:
            request = encode((nonce, *question))
        except NotPlainError as error:
            raise self.fail("error", f"the tests pass {error}") from None
        try:
            send(self.requests, request)
        except BrokenPipeError:
            raise self.fail("gone", "the code's process ended during the tests") from None
        answer = self.receive()
        if type(answer) is not tuple or len(answer) < 2 or answer[0] != nonce:
            raise self.fail("violation", "the code broke the protocol: answered what was not asked")
        return answer[1:]

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the code."""
        self.calls += 1
        return self.take(*self.ask("call", name, args, kwargs))

    def take(self, kind: Any, *rest: Any) -> Any:
        """Return the value of an answer, or raise its exception."""
        match kind, rest:
            case "value", (value,):
                return value
            case "raise", (str(name), list(args), str(text)):
                error = make_exception(name, args, text)
                setattr(error, FROM_CODE, text)
                raise error
            case "too large", (str(text),):
                raise self.fail("violation", f"the code returned {text}")
            case "not plain", (str(text),):
                raise self.fail("error", f"the code returned {text}")
        raise self.fail("violation", "the code broke the protocol: no such answer")

    def proxy(self, name: str) -> Any:
        """A function that calls the code's function of that name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(name, args, kwargs)

        call.__name__ = call.__qualname__ = name
        return call


def is_name(name: Any) -> bool:
    """Whether a function may be called so: no name that means something to Python itself."""
    return type(name) is str and name.isidentifier() and not name.startswith("__")


class RemoteIterator:
    """An iterator that the code returned; its items are asked for one by one."""

    def __init__(self, session: Session, number: int):
        self._session, self._number = session, number

    def __iter__(self) -> RemoteIterator:
        return self

    def __next__(self) -> Any:
        answer = self._session.ask("next", self._number)
        if answer == ("end",):
            raise StopIteration
        return self._session.take(*answer)


def make_exception(name: str, args: list[Any], text: str) -> BaseException:
    """A builtin exception by its name.

    StopIteration becomes a RuntimeError, as within a generator: passed on by `map`, it would end
    `all(map(...))` in the tests as if every case had held.
    """
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return RuntimeError(text)
    if issubclass(kind, (StopIteration, StopAsyncIteration, GeneratorExit)):
        return RuntimeError(text)
    try:
        return kind(*args)
    except Exception:
        return RuntimeError(text)


def run(job: dict[str, Any]) -> None:
    """Run `job["tests"]` and write the verdict to the pipe `job["status"]`."""
    session = Session(job["requests"], job["answers"])
    error: BaseException | None = None
    try:
        run_tests(session, job)
    except BaseException as raised:
        error = raised
    status, message = verdict(session, error, job)
    flush()
    answer = f"{status}\n{message}".encode("utf-8", "replace")
    send(job["status"], answer[: job["status_bytes"]])
    os._exit(0)


def run_tests(session: Session, job: dict[str, Any]) -> None:
    """Run the tests as the main module, with the code's functions in it by name.

    A name that the code gives to a function must not mean something else to the tests than it does
    to whoever wrote them. So the builtins stay what they are, and what the trusted set-up defines
    goes before what the code defines, save the entry point: a test that computes an expected value
    with a helper of the set-up must not compute it with the code's version.
    """
    module, solution = type(sys)("__main__"), type(sys)("solution")
    sys.modules.update(__main__=module, solution=solution)
    sys.argv = ["tests"]
    space = module.__dict__
    entry = job["entry_point"]
    proxies = {name: session.proxy(name) for name in session.names()}
    solution.__dict__.update(proxies)
    space.update((name, proxy) for name, proxy in proxies.items() if not hasattr(builtins, name))
    exec(compile(job["setup"], SETUP_FILE, "exec", dont_inherit=True), space)
    if entry is not None:
        space[entry] = space["candidate"] = session.proxy(entry)
    exec(compile(job["tests"], FILE, "exec", dont_inherit=True), space)
    for name, function in list(space.items()):
        if is_left_to_call(name, function, job["tests"]):
            function(*(space["candidate"],) * function.__code__.co_argcount)


def is_left_to_call(name: str, function: Any, tests: str) -> bool:
    """Whether it is a `check(candidate)` or `test_...()` that the tests define and do not call."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename != FILE or code.co_kwonlyargcount:
        return False
    fits = (name == "check", 1) if code.co_argcount else (name.startswith("test"), 0)
    if fits != (True, code.co_argcount):
        return False
    return not any(line.startswith(f"{name}(") for line in tests.splitlines())


def verdict(session: Session, error: BaseException | None, job: dict[str, Any]) -> tuple[str, str]:
    """Status and message of a finished run of tests."""
    if session.fault is not None:
        return session.fault.status, session.fault.message
    line = "" if error is None else source_line(error, job["tests"])
    if error is not None and hasattr(error, FROM_CODE):
        return status_of(error), f"the code raised {getattr(error, FROM_CODE)}{line}"
    # unittest.main() ends by SystemExit, too.
    if error is None or (isinstance(error, SystemExit) and not error.code):
        if job["entry_point"] is None or session.calls > 0:
            return "passed", ""
        return "error", "the tests never called the code; call the functions in which they do"
    if isinstance(error, SystemExit):
        return "failed", f"the tests ended with exit code {error.code}"
    status = "failed" if isinstance(error, AssertionError) else status_of(error)
    return status, f"the tests: {describe(error, FILE)}{line}"


def source_line(error: BaseException, tests: str) -> str:
    """The line of the tests that an exception passed through, to append to a message."""
    line = where(error, FILE)
    lines = tests.splitlines()
    return f" [{lines[line - 1].strip()}]" if line and line <= len(lines) else ""
