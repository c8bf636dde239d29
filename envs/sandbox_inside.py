"""How a process inside the sandbox starts: it limits itself, then runs code or tests.

This module runs inside the sandbox, as the last of those that `sandbox_worker` hands over.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from marlogue.envs.sandbox_code_side import run as run_code
from marlogue.envs.sandbox_codec import send
from marlogue.envs.sandbox_supervisor import PR_SET_SECCOMP, prctl, supervise
from marlogue.envs.sandbox_test_side import run as run_tests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROLES = {"code": run_code, "tests": run_tests}
SECCOMP_MODE_FILTER = 2
INSTRUCTION_BYTES = 8


def start(job: dict[str, Any]) -> None:
    """Set the limits, clear the traces of the start, and do the job. Does not return."""
    if job["supervise"]:
        supervise()
    # Python ignores it; by default a file over the limit ends the process, which tells us.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.environ.clear()
    sys.argv = [""]
    sys.path += job["imports_from"]
    for name, soft, hard in job["rlimits"]:
        kind = getattr(resource, name, None)  # not every system has every limit
        if kind is not None:
            resource.setrlimit(kind, (soft, hard))
    if job["uid"] is not None:
        become(job["uid"])
    if job["role"] == "code" and job["filter"] is not None:
        add_filter(job["filter"])
    send(job["status"], b"ready")
    ROLES[job["role"]](job)
    os._exit(0)


def become(uid: int) -> None:
    """Leave root for a user without a name, group or way back."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def add_filter(program: bytes) -> None:
    """Add a filter of system calls to the one that is there."""
    import ctypes

    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    described = Program(len(program) // INSTRUCTION_BYTES, ctypes.addressof(code))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(described))
