"""A missing library is told with the line that installs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from marlogue.envs.optional import require

LIBRARIES = {
    "torchrl": "torchrl",
    "benchmarl": "benchmarl",
    "rllib": "ray",
    "agilerl": "agilerl",
    "trl": "trl",
    "verifiers": "verifiers",
    "openenv": "openenv",
    "textarena": "textarena",
    "gem": "gem",
}
"""Module of `marlogue.wrappers`, which is also the name of the extra, to what it imports."""


@pytest.mark.parametrize(("module", "library"), LIBRARIES.items())
def test_a_missing_library_is_told_with_the_mend(module: str, library: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"  # as if it were not there
        "try:\n"
        f"    import marlogue.wrappers.{module}\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, cwd=tmp_path
    )
    assert f'install it with: pip install "marlogue[{module}]"' in done.stdout, done.stderr
    assert library in done.stdout


def test_what_is_wrong_inside_the_library_stays_visible() -> None:
    with (
        pytest.raises(ImportError, match=r"cannot import name 'nothing'") as caught,
        require("json", extra="json"),
    ):
        from json import nothing  # noqa: F401
    assert isinstance(caught.value.__cause__, ImportError)


def test_views_bring_no_heavy_library(tmp_path: Path) -> None:
    code = (
        "import sys, marlogue.wrappers\n"
        "heavy = {'torch', 'transformers', 'datasets', 'stable_baselines3'} | "
        f"{set(LIBRARIES.values())}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]", done.stderr
