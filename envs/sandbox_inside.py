"""How a process inside the sandbox starts: it limits itself, then runs code or tests.

This module runs inside the sandbox, as the last of those that `sandbox_process` hands over.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from marlogue.envs.sandbox_code_side import run as run_code
from marlogue.envs.sandbox_codec import send
from marlogue.envs.sandbox_test_side import run as run_tests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROLES = {"code": run_code, "tests": run_tests}


def start(job: dict[str, Any]) -> None:
    """Set the limits, clear the traces of the start, and do the job. Does not return."""
    limit(job)
    # Python ignores it; by default a file over the limit ends the process, which tells us.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.environ.clear()
    sys.argv = [""]
    sys.path += job["imports_from"]
    send(job["status"], b"ready")
    ROLES[job["role"]](job)
    os._exit(0)


def limit(job: dict[str, Any]) -> None:
    """Set the limits of this process, which it cannot lift again."""
    for name, soft, hard in job["rlimits"]:
        kind = getattr(resource, name, None)
        if kind is not None:
            resource.setrlimit(kind, (soft, hard))
