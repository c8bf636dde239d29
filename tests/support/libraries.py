"""Optional libraries in tests: skipped where they are missing, unless they were promised."""

import importlib
import importlib.util
import os
from typing import Any

import pytest

PROMISED = frozenset(os.environ.get("MARLOGUE_REQUIRED_LIBRARIES", "").split())


def needs(library: str) -> Any:
    """Import a library; skip the test module where it is missing, fail where it was promised.

    `MARLOGUE_REQUIRED_LIBRARIES` lists, separated by spaces, the import names that this
    environment must have: continuous integration sets it, so that nothing is skipped unnoticed.
    """
    if importlib.util.find_spec(library.split(".")[0]) is None and library not in PROMISED:
        pytest.skip(f"{library} is not installed", allow_module_level=True)
    return importlib.import_module(library)
