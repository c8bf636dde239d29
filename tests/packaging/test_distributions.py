"""Wheel, source distribution and editable installation hold the same modules, and nothing else.

Everything is built with the setuptools that is installed, so no package index is needed.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDERS = ("envs", "agents", "algorithms", "wrappers")
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "runs", "*.egg-info", "__pycache__", ".*_cache"
)
DATA = {".json", ".jsonl", ".yaml", ".txt", ".typed"}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return what it printed; its whole output is shown when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def copy_checkout(target: Path) -> Path:
    """Copy the checkout, so that building leaves nothing behind in it."""
    shutil.copytree(ROOT, target, symlinks=True, ignore=LEFT_OUT)
    return target


def expected_files() -> set[str]:
    """Return the files that belong into an installation, as `marlogue/...`."""
    places = {ROOT / "src/marlogue": "marlogue"}
    places |= {ROOT / folder: f"marlogue/{folder}" for folder in FOLDERS}
    return {
        f"{name}/{path.relative_to(source).as_posix()}"
        for source, name in places.items()
        for path in source.rglob("*")
        if path.suffix == ".py" or path.suffix in DATA
    }


def module_names() -> list[str]:
    """Return the import names of all modules."""
    names = [file.removesuffix(".py") for file in expected_files() if file.endswith(".py")]
    return sorted(name.removesuffix("/__init__").replace("/", ".") for name in names)


def wheel_files(wheel: Path) -> set[str]:
    """Return the files in a wheel but for its own metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def make_environment(folder: Path) -> Path:
    """Make an empty virtual environment that sees our dependencies; return its Python.

    The path of the outer environment comes last and its .pth files are not read, so an editable
    installation there plays no part.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    outer = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    inner = next(folder.glob("lib/python*/site-packages"))
    (inner / "outer.pth").write_text("\n".join(outer), encoding="utf-8")
    return folder / "bin/python"


def install(python: Path, *what: str | Path) -> None:
    """Install into the environment of `python`, without dependencies and offline."""
    flags = ["--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall"]
    cwd = python.parent
    run(sys.executable, "-m", "pip", "--python", python, "install", *flags, *what, cwd=cwd)


CHECK = """
import importlib, importlib.util, sys
home, names, folders = {home!r}, {names!r}, {folders!r}
for name in names:
    try:
        module = importlib.import_module(name)
    except ImportError as error:  # of an optional library; then it says how to install that
        assert name.startswith(("marlogue.wrappers.", "marlogue.algorithms.team_ray")), name
        assert 'pip install "marlogue[' in str(error), name
        continue
    assert module.__file__.startswith(home), (name, module.__file__)
for name in folders:
    assert name not in sys.modules, name
    spec = importlib.util.find_spec(name)
    assert spec is None or not (spec.origin or "").startswith(home), spec
print("imported", len(names))
"""


def check_imports(python: Path, home: Path, cwd: Path) -> None:
    """Import every module, away from the checkout; all must come from `home`."""
    names = module_names()
    code = CHECK.format(home=str(home.resolve()), names=names, folders=FOLDERS)
    assert f"imported {len(names)}" in run(python, "-I", "-c", code, cwd=cwd)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build a wheel from the checkout, a source distribution, and a wheel from that."""
    base = tmp_path_factory.mktemp("build")
    build = [sys.executable, "-m", "build", "--no-isolation"]
    run(*build, "--wheel", "--outdir", base / "direct", copy_checkout(base / "one"), cwd=base)
    run(*build, "--outdir", base / "by_way", copy_checkout(base / "two"), cwd=base)
    return {
        "wheel": next((base / "direct").glob("*.whl")),
        "sdist": next((base / "by_way").glob("*.tar.gz")),
        "wheel_from_sdist": next((base / "by_way").glob("*.whl")),
    }


@pytest.mark.parametrize("kind", ["wheel", "wheel_from_sdist"])
def test_wheel_holds_exactly_our_files(built: dict[str, Path], kind: str) -> None:
    assert wheel_files(built[kind]) == expected_files()


def test_source_distribution_holds_tests_and_no_links(
    built: dict[str, Path], tmp_path: Path
) -> None:
    shutil.unpack_archive(built["sdist"], tmp_path, filter="data")
    unpacked = next(tmp_path.iterdir())
    assert (unpacked / "tests/packaging/test_distributions.py").exists()
    assert (unpacked / "constraints.txt").exists()
    assert not [path for path in unpacked.rglob("*") if path.is_symlink()]
    assert not (unpacked / "typings").exists()


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installed_modules_are_importable(
    built: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "venv")
    install(python, built[kind])
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    ours = {path.name for path in site.iterdir() if path.name != "outer.pth"}
    assert {name for name in ours if not name.endswith(".dist-info")} == {"marlogue"}
    check_imports(python, home=site, cwd=tmp_path)


def test_editable_installation_follows_the_checkout(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    python = make_environment(tmp_path / "venv")
    install(python, "--editable", checkout)
    check_imports(python, home=checkout, cwd=tmp_path)
    (checkout / "envs/written_later.py").write_text("ANSWER = 42\n", encoding="utf-8")
    code = "from marlogue.envs.written_later import ANSWER; print(ANSWER)"
    assert run(python, "-I", "-c", code, cwd=tmp_path).strip() == "42"
