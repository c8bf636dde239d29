"""What goes into a sandbox and what comes out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

Status = Literal["passed", "failed", "error", "timeout", "memory", "violation"]
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, str) or (value is None and field.name == "entry_point")):
                raise TypeError(f"{field.name} ({value!r:.100}) must be a string")
        if self.entry_point is not None and not self.entry_point.isidentifier():
            raise ValueError(f"entry_point ({self.entry_point!r}) must be the name of a function")
