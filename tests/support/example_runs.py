"""Run an example that trains, and read what it prints."""

import re
import subprocess
import sys
from pathlib import Path


def returns_of(script: Path, *words: str, timeout: float = 280) -> tuple[float, float]:
    """Run an example; returns the mean returns before and after training that it prints."""
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    found = [
        re.search(rf"mean return {when}:\s+(-?[\d.]+)", done.stdout) for when in ("before", "after")
    ]
    before, after = (float(match[1]) for match in found if match)
    return before, after
