"""Optional libraries in tests: skipped where they are missing, unless they were promised."""

import importlib
import os
from typing import Any

import pytest

PROMISED = frozenset(os.environ.get("MARLOGUE_REQUIRED_LIBRARIES", "").split())


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
