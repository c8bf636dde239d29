"""What runs in a worker process: it makes reward calls, and answers in JSON.

The parent writes pickles of its own making. The answers are JSON, so that nothing which comes out
of a process that runs somebody else's code is ever unpickled: numbers, and of an exception its
type's name, arguments, notes and traceback.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from marlogue.envs.callbacks import is_async
from marlogue.envs.reward_calls import Answer, Call, RewardWorkerError, attempt

Ask: TypeAlias = Callable[[Call], Answer]

CALLS_PER_WORKER = 1000
"""After so many calls a worker is replaced, whatever its function has left behind."""

MOST_GROWTH = 1 << 30
"""Bytes that a worker may grow by, from its third call on, before it is replaced."""

SETTLED = 3
LONGEST_TEXT = 20_000


class RemoteTracebackError(Exception):
    """Where an exception was raised in a worker process; the cause of the one raised here."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def main(channel: int, faults: int) -> None:
    """Serve until the parent says so, or is gone.

    Args:
        channel: file descriptor of the connection.
        faults: file descriptor to write to when the interpreter itself fails.
    """
    os.set_inheritable(channel, False)
    os.set_inheritable(faults, False)
    faulthandler.enable(faults, all_threads=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):  # where memory runs out, the training is not what has to go
        Path("/proc/self/oom_score_adj").write_text("500")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    connection = Connection(channel)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    try:
        scorer = pickle.loads(messages.get())
    except BaseException as error:
        _send(connection, {"failed": encoded(error)})
        return
    _send(connection, {"ready": True})
    if not is_async(scorer.func):
        _serve(connection, messages, scorer)
        return
    with asyncio.Runner() as runner:
        _serve(connection, messages, lambda call: runner.run(scorer.awaited(call)))


def _serve(connection: Connection, messages: queue.SimpleQueue[bytes], ask: Ask) -> None:
    calls, settled = 0, 0
    while message := messages.get():
        answer: dict[str, Any] = _answer(ask, message)
        calls += 1
        size = _resident()
        settled = size if calls <= SETTLED else settled
        answer["retire"] = calls >= CALLS_PER_WORKER or size - settled > MOST_GROWTH
        _send(connection, answer)


def _answer(ask: Ask, message: bytes) -> dict[str, Any]:
    try:
        outcome = attempt(ask, pickle.loads(message))
    except BaseException as error:  # KeyboardInterrupt and the like, raised by the function
        outcome = RuntimeError(f"reward_func raised {type(error).__name__}: {error}")
        outcome.__cause__ = error
    if isinstance(outcome, Exception):
        return {"error": encoded(outcome)}
    return {"answer": [encoded(x) if isinstance(x, ValueError) else x for x in outcome]}


def _listen(connection: Connection, messages: queue.SimpleQueue[bytes]) -> None:
    """Pass messages on. When the parent is gone, so is this process, and what it began."""
    try:
        while True:
            messages.put(connection.recv_bytes())
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _resident() -> int:
    """Bytes of memory in use; 0 where there is no telling."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def encoded(error: BaseException) -> dict[str, Any]:
    """An exception as JSON can express it."""
    try:
        says = str(error)
    except Exception as failed:  # a type with a text of its own
        says = f"(its text could not be made: {failed!r})"
    given = list(error.args)
    if isinstance(error, OSError) and error.filename is not None:
        given.append(error.filename)
    args = [arg if isinstance(arg, str | int | float | None) else None for arg in given]
    whole = all(one is kept for one, kept in zip(given, args, strict=True))
    return {
        "module": type(error).__module__,
        "name": type(error).__qualname__,
        "args": args if whole else None,
        "says": says[:LONGEST_TEXT],
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
        "traceback": "".join(traceback.format_exception(error))[-LONGEST_TEXT:],
    }


def decoded(about: dict[str, Any]) -> Exception:
    """The exception again, of its own type where this process knows that; its cause shows the
    traceback."""
    error = _of_its_type(about)
    if error is None:
        error = RewardWorkerError(f"{about['name']}: {about['says']}")
    for note in about["notes"]:
        error.add_note(note)
    error.__cause__ = RemoteTracebackError(about["traceback"])
    return error


def _of_its_type(about: dict[str, Any]) -> Exception | None:
    kind: Any = sys.modules.get(about["module"])
    for part in about["name"].split("."):
        kind = getattr(kind, part, None)
    if about["args"] is None or not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        error = kind.__new__(kind, *about["args"])
        same = str(error)[:LONGEST_TEXT] == about["says"]
    except Exception:  # a type with a constructor or a text of its own
        return None
    return error if same else None
