"""Runs Python code that somebody else wrote, a model for instance, away from this process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from marlogue.envs.sandbox_bubblewrap import Bubblewrap, find_bwrap
from marlogue.envs.sandbox_limited import Limited
from marlogue.envs.sandbox_process import (
    Isolation,
    Process,
    SandboxUnavailable,
    Stopped,
    how_it_ended,
)
from marlogue.envs.sandbox_types import Limits, Result, Snippet, Status
from marlogue.envs.sandbox_watch import Group, Pipe, Watch

__all__ = ["Limits", "Result", "Sandbox", "SandboxUnavailable", "Snippet"]

INSTEAD = (
    'isolation="rlimits" is the weaker mode: it limits what code uses up, but keeps it '
    "neither from your files nor from the network"
)
PROBE = Snippet("def f():\n    return 1", "assert candidate() == 1", entry_point="f")
# A process that was started before and now is not: the machine may be short of something.
PAUSES = (0.2, 1.0, 5.0)
# What a process may say of itself, and the status that stands for. The code's word is worth little:
# it cannot pass the tests by it.
CODE_SAYS: dict[str, Status] = {"error": "error", "memory": "memory", "violation": "violation"}
TESTS_SAY: dict[str, Status] = {**CODE_SAYS, "passed": "passed", "failed": "failed"}


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
        self.workers = workers or usable_cpus()
        folders = [Path(folder).resolve() for folder in imports_from]
        for folder in folders:
            if not folder.is_dir():
                raise ValueError(f"imports_from ({folder}) must name folders; this is none")
        if isolation == "rlimits":
            self._isolation = self._working(iter([Limited(self.limits, folders)]), "")
        else:
            self._isolation = self._working(bubblewraps(self.limits, folders), f" {INSTEAD}.")

    def _working(self, isolations: Iterator[Isolation], hint: str) -> Isolation:
        """The first that can be started: that its parts are there does not say the kernel lets us.

        Raises:
            SandboxUnavailable: none can.
        """
        reasons: list[str] = []
        try:
            for isolation in isolations:
                self._isolation = isolation
                try:
                    result = self._once(PROBE, Group())
                except SandboxUnavailable as error:
                    reasons.append(str(error))
                    continue
                if result.passed:
                    return isolation
                reasons.append(f"a first run ended with {result.status}: {result.message}")
        except ImportError as error:
            reasons.append(str(error))
        why = "; or: ".join(reasons)
        raise SandboxUnavailable(f"the sandbox does not work here: {why}.{hint}")

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
        return self._run(Snippet(code, tests, entry_point, setup), Group())

    def run_many(self, snippets: Sequence[Snippet]) -> list[Result]:
        """Run many snippets, `workers` at once; the results are in the order of the snippets.

        Raises:
            SandboxUnavailable: a process could not be started, though it was tried a few times.
        """
        group = Group()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox") as pool:
            futures = [pool.submit(self._run, snippet, group) for snippet in snippets]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                group.cancel()
                raise

    def _run(self, snippet: Snippet, group: Group) -> Result:
        """Run a snippet; where a process does not start, a few times."""
        for pause in PAUSES:
            try:
                return self._once(snippet, group)
            except SandboxUnavailable:
                time.sleep(pause)
        return self._once(snippet, group)

    def _once(self, snippet: Snippet, group: Group) -> Result:
        begin = time.monotonic()
        limits = self.limits
        watch = Watch(self._isolation, limits.wall_seconds, limits.output_bytes, group)
        try:
            with watch:
                status, message = judge(watch, snippet, limits.cpu_seconds)
        except Stopped as stopped:
            status, message = stopped.status, stopped.message
        shown = {
            name: bytes(text[: limits.output_bytes]).decode("utf-8", "replace")
            for name, text in watch.output.items()
        }
        return Result(status, message, **shown, seconds=time.monotonic() - begin)


def judge(watch: Watch, snippet: Snippet, cpu_seconds: float) -> tuple[Status, str]:
    """Run the code, then the tests against it: status and message."""
    with Pipe() as calls, Pipe() as answers:
        job = {
            "role": "code",
            "code": snippet.code,
            "entry_point": snippet.entry_point,
            "requests": calls.read if snippet.tests else None,
            "answers": answers.write,
        }
        code = watch.start(job, [calls.read, answers.write])
        status, message = said(watch, code, "the code", cpu_seconds)
        if status != "loaded":
            return CODE_SAYS.get(status, "violation"), message
        if not snippet.tests:
            return "passed", ""
        # From here only the code's process holds its ends, so that the tests notice its end.
        calls.close_end(calls.read)
        answers.close_end(answers.write)
        job = {
            "role": "tests",
            "tests": snippet.tests,
            "setup": snippet.setup,
            "entry_point": snippet.entry_point,
            "requests": calls.write,
            "answers": answers.read,
        }
        tests = watch.start(job, [calls.write, answers.read])
        status, message = said(watch, tests, "the tests", cpu_seconds)
        if status == "gone":  # the code's process, during the tests
            raise ended(watch, code, "the code", cpu_seconds)
        return TESTS_SAY.get(status, "violation"), message


def said(watch: Watch, process: Process, who: str, cpu_seconds: float) -> tuple[str, str]:
    """What a process says of itself: status and message.

    Raises:
        Stopped: it ended before that.
    """
    text = watch.answer(process)
    if text is None:
        raise ended(watch, process, who, cpu_seconds)
    status, _, message = text.partition("\n")
    return status, message


def ended(watch: Watch, process: Process, who: str, cpu_seconds: float) -> Stopped:
    """Wait for the end of a process, and say how that came."""
    watch.end(process)
    return Stopped(*how_it_ended(process, who, cpu_seconds))


def bubblewraps(limits: Limits, imports_from: Sequence[Path]) -> Iterator[Isolation]:
    """The ways to start bubblewrap, the best first.

    Raises:
        ImportError: a part is missing.
    """
    for bwrap in find_bwrap():
        if os.geteuid() == 0:
            yield Bubblewrap(limits, imports_from, bwrap, own_uid=True)
        yield Bubblewrap(limits, imports_from, bwrap, own_uid=False)


def usable_cpus() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
