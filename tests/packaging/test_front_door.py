"""What ``import marlogue`` gives, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import marlogue

ROOT = Path(__file__).parents[2]
PUBLIC = sorted(set(marlogue.__all__) - {"__version__"})


def run_python(code: str, cwd: Path) -> str:
    """Run `code` in a fresh interpreter, away from the checkout, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light(tmp_path: Path) -> None:
    code = (
        "import sys, marlogue; dir(marlogue); "
        "print(sorted({'torch', 'transformers', 'datasets', 'gymnasium'} & set(sys.modules)))"
    )
    assert run_python(code, tmp_path) == "[]"


def test_import_brings_no_bare_folder(tmp_path: Path) -> None:
    folders = ["envs", "agents", "algorithms", "wrappers"]
    code = (
        "import sys, importlib.util, marlogue\n"
        f"for name in {folders}:\n"
        "    getattr(marlogue, name)\n"
        f"print([n for n in {folders} if n in sys.modules or importlib.util.find_spec(n)])"
    )
    assert run_python(code, tmp_path) == "[]"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_found(name: str) -> None:
    assert getattr(marlogue, name) is not None
    assert name in dir(marlogue)


def test_names_for_type_checkers_are_the_lazy_names() -> None:
    tree = ast.parse((ROOT / "src/marlogue/__init__.py").read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname or alias.name
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(imported) == PUBLIC
    assert sorted({*marlogue._HOMES, *marlogue._FOLDERS}) == PUBLIC


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'marlogue' has no attribute 'TextEnvv'"):
        marlogue.TextEnvv  # noqa: B018


def test_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", "import marlogue; marlogue.MAACTrainr"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "Did you mean: 'MAACTrainer'?" in done.stderr
