"""Clocks and memory of this process."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Meter:
    """Wall and CPU seconds by phase. Phases may nest; each counts what lies in it, inner ones
    included."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, with the time that it takes added to ``phase``."""

        def run(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), cpu_seconds()
            try:
                return function(*args, **kwargs)
            finally:
                self.wall[phase] = self.wall.get(phase, 0.0) + time.perf_counter() - wall
                self.cpu[phase] = self.cpu.get(phase, 0.0) + cpu_seconds() - cpu
                self.calls[phase] = self.calls.get(phase, 0) + 1

        return run

    def result(self) -> dict[str, dict[str, float]]:
        """CPU and wall seconds of: total, generation, rollout (collection less generation: scoring,
        reward, bookkeeping) and update."""
        return {clock: _split(getattr(self, clock)) for clock in ("cpu", "wall")}


def _split(seconds: dict[str, float]) -> dict[str, float]:
    generation = seconds.get("generation", 0.0)
    return {
        "total": seconds["total"],
        "generation": generation,
        "rollout": seconds.get("collection", generation) - generation,
        "update": seconds.get("update", 0.0),
    }


def cpu_seconds() -> float:
    """User and system time of the process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_memory() -> float:
    """Largest resident size of this process so far, in GB.

    Linux's ru_maxrss survives exec, so it may be that of the parent; VmHWM is the process's own.
    """
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def resident_memory() -> float:
    """Resident size of this process now, in GB; where the system does not tell, the largest so
    far."""
    now = _status("VmRSS")
    return peak_memory() if now is None else now


def _status(field: str) -> float | None:
    """GB of a field of Linux's /proc/self/status."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024 / 1e9
    return None
