"""Runs Python code that somebody else wrote, a model for instance, away from this process."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from marlogue.envs.sandbox_isolation import INSTEAD, Bubblewrap, Limited
from marlogue.envs.sandbox_process import (
    Isolation,
    Pipe,
    Process,
    SandboxUnavailable,
    Stopped,
    Watch,
    how_it_ended,
)

__all__ = ["Limits", "Result", "Sandbox", "SandboxUnavailable", "Snippet"]

Status = Literal["passed", "failed", "error", "timeout", "memory", "violation"]
STATUSES: dict[str, Status] = {
    "failed": "failed",
    "error": "error",
    "timeout": "timeout",
    "memory": "memory",
    "violation": "violation",
}
LEAST = {"memory_bytes": 64 * 2**20, "output_bytes": 0, "file_bytes": 4096}


@dataclass(frozen=True)
class Limits:
    """What a run may use. The code and its tests are a process each, with these limits for each.

    Args:
        cpu_seconds: CPU time, rounded up to whole seconds; the start takes about 0.02 of it.
        wall_seconds: time from when the interpreter is ready until the verdict, for both together.
        memory_bytes: address space, at least 64 MiB; an interpreter takes about 20 MiB.
        output_bytes: what is printed, stdout and stderr of both together.
        file_bytes: the size of a file, and with bubblewrap of all files together.
    """

    cpu_seconds: float = 10.0
    wall_seconds: float = 30.0
    memory_bytes: int = 512 * 2**20
    output_bytes: int = 1 * 2**20
    file_bytes: int = 16 * 2**20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.name in LEAST
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                kind = "an int" if whole else "a number"
                raise TypeError(f"{field.name} ({value!r}) must be {kind}")
            least = LEAST.get(field.name, 0)
            if whole and value < least:
                raise ValueError(f"{field.name} ({value}) must be at least {least}")
            if not whole and not 0 < value < math.inf:
                raise ValueError(f"{field.name} ({value}) must be positive and finite")


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Args:
        status: "passed": all tests held. "failed": an assertion of the tests did not. "error": the
            code or the tests raised something else, or did not parse. "timeout": over the limit of
            CPU or wall time. "memory": over that of memory. "violation": a forbidden system call,
            output or a file over the limit, or a value that is too large.
        message: why it did not pass, in a line; empty where it did.
        stdout: what was printed, first by the code, cut at the limit.
        stderr: the same of stderr.
        seconds: how long it took.
    """

    status: Status
    message: str
    stdout: str
    stderr: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all tests held."""
        return self.status == "passed"


@dataclass(frozen=True)
class Snippet:
    """The arguments of one `Sandbox.run`."""

    code: str
    tests: str = ""
    entry_point: str | None = None
    setup: str = ""


class Sandbox:
    """Runs code with tests, in processes that cannot reach anything of the user.

    The code and the tests run in two processes. The tests see the functions that the code defines
    at its top level, by name, and the one called `entry_point` also as `candidate`; each call goes
    through a pipe. Plain data goes through: None, bool, int, float, complex, str, bytes,
    bytearray, list, tuple, dict, set, frozenset, range, views of a dict, and iterators, whose
    items are asked for one by one. An exception of the code comes up in the tests as the nearest
    builtin type. A change that the code makes to an argument is not seen by the tests, nor are
    classes, constants and instances; a function that returns one ends the run with "error".

    `isolation="bubblewrap"`, the default, gives each process namespaces of its own (no network, no
    other processes), a root folder with nothing in it but the interpreter and the system's
    libraries to read and an empty `/tmp` to write, no environment variables, and a filter that ends
    the process when it starts another one, opens a socket, traces, mounts or the like.

    `isolation="rlimits"` is weaker: limits of CPU and wall time, memory, file size and output, no
    environment variables, an empty temporary folder, and an end of all processes that the code
    started. It does NOT keep the code from reading and writing whatever the user can, from the
    network, from other processes of the user, nor from the tests' process. Use it only for code
    that you trust, or in a container made for it.

    Args:
        limits: what a run may use.
        isolation: see above.
        workers: how many runs at once `run_many` makes; by default as many as there are CPUs.
        imports_from: folders that the code and the tests may also import from, read-only.

    Raises:
        SandboxUnavailable: it does not work here; says what is missing. Found out by a first run.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        isolation: Literal["bubblewrap", "rlimits"] = "bubblewrap",
        workers: int | None = None,
        imports_from: Sequence[Path] = (),
    ):
        if isolation not in ("bubblewrap", "rlimits"):
            raise ValueError(f"isolation ({isolation!r}) must be 'bubblewrap' or 'rlimits'")
        if workers is not None and workers < 1:
            raise ValueError(f"workers ({workers}) must be positive, or None")
        self.limits = Limits() if limits is None else limits
        self.workers = workers or len(os.sched_getaffinity(0))
        folders = [Path(folder).resolve() for folder in imports_from]
        for folder in folders:
            if not folder.is_dir():
                raise ValueError(f"imports_from ({folder}) must name folders; it is none")
        self._lock = threading.Lock()
        self._running: set[Watch] = set()
        kind = Bubblewrap if isolation == "bubblewrap" else Limited
        self._isolation: Isolation = kind(self.limits, folders)
        self._probe(isolation)

    def _probe(self, isolation: str) -> None:
        """Start it once: that the parts are there does not say that the kernel lets us."""
        try:
            result = self.run("def f():\n    return 1", "assert candidate() == 1", entry_point="f")
        except (OSError, SandboxUnavailable) as error:
            weaker = f". {INSTEAD}" if isolation == "bubblewrap" else ""
            raise SandboxUnavailable(f"the sandbox does not work here: {error}{weaker}") from error
        if not result.passed:
            raise SandboxUnavailable(f"the sandbox does not work here: {result}")

    def run(
        self, code: str, tests: str = "", *, entry_point: str | None = None, setup: str = ""
    ) -> Result:
        """Run one snippet.

        Args:
            code: the code, which is not trusted.
            tests: Python text. Where it defines `check` and does not call it, `check(candidate)` is
                called after it. Without tests, "passed" says that the code came to its end, and
                that it says so itself.
            entry_point: the function that the tests are about.
            setup: trusted text that runs before the tests, such as the prompt of a HumanEval row.
                A function that it defines goes before one of the code with that name, save
                `entry_point`.

        Raises:
            SandboxUnavailable: a process could not be started.
        """
        begin = time.monotonic()
        watch = Watch(self._isolation, self.limits.wall_seconds, self.limits.output_bytes)
        with self._lock:
            self._running.add(watch)
        try:
            status, message = self._judge(watch, Snippet(code, tests, entry_point, setup))
        except Stopped as stopped:
            status, message = stopped.status, stopped.message
        finally:
            with self._lock:
                self._running.discard(watch)
            watch.close()
        shown = {
            name: bytes(text[: self.limits.output_bytes]).decode("utf-8", "replace")
            for name, text in watch.output.items()
        }
        known: Status = "passed" if status == "passed" else STATUSES.get(status, "violation")
        return Result(known, message, **shown, seconds=time.monotonic() - begin)

    def run_many(self, snippets: Sequence[Snippet]) -> list[Result]:
        """Run many snippets, `workers` at once; the results are in the order of the snippets.

        Raises:
            SandboxUnavailable: a process could not be started; the others have come to their end.
        """
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox") as pool:
            futures = [pool.submit(self._run_snippet, snippet) for snippet in snippets]
            try:
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                with self._lock:
                    for watch in self._running:
                        watch.cancel()
                raise

    def _run_snippet(self, snippet: Snippet) -> Result:
        return self.run(
            snippet.code, snippet.tests, entry_point=snippet.entry_point, setup=snippet.setup
        )

    def _judge(self, watch: Watch, snippet: Snippet) -> tuple[str, str]:
        """Run the code, then the tests against it."""
        with Pipe() as calls, Pipe() as answers:
            job = {
                "role": "code",
                "code": snippet.code,
                "entry_point": snippet.entry_point,
                "requests": calls.read if snippet.tests else None,
                "answers": answers.write,
            }
            code = watch.start(job, [calls.read, answers.write])
            status, message = self._answer(watch, code, "the code")
            if status != "loaded":
                return status, message
            if not snippet.tests:
                return "passed", ""
            # From here only the code's process holds its ends, so that the tests notice its end.
            calls.close_read()
            answers.close_write()
            job = {
                "role": "tests",
                "tests": snippet.tests,
                "setup": snippet.setup,
                "entry_point": snippet.entry_point,
                "requests": calls.write,
                "answers": answers.read,
            }
            tests = watch.start(job, [calls.write, answers.read])
            status, message = self._answer(watch, tests, "the tests")
            # Where the code's process ended during the tests, it is asked why.
            return self._answer(watch, code, "the code") if status == "gone" else (status, message)

    def _answer(self, watch: Watch, process: Process, who: str) -> tuple[str, str]:
        """What a process says, or else how it ended."""
        text = watch.answer(process)
        if text is None:
            watch.end(process)
            return how_it_ended(process, who, self.limits.cpu_seconds)
        status, _, message = text.partition("\n")
        return status, message
