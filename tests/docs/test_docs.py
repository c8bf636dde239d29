"""The documents agree with the code: every field with its default, every figure, every key."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from marlogue import (
    AACConfig,
    AACTrainer,
    IACConfig,
    IACTrainer,
    MAACConfig,
    MAACTrainer,
    tiny_model,
    wrappers,
)
from marlogue.cli import COMMANDS
from marlogue.cli.keys import KEYS
from marlogue.envs import NUMERIC_TASKS, TASKS, coordination_v0
from marlogue.envs.transitions import EXTRAS, STANDARD
from tests.support.command_line import ROOT
from tests.support.games import Cues, Targets

DOCS = ROOT / "docs"
WORDS = coordination_v0.VOCABULARY


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of all tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("document", "kinds"),
    [("algorithms.md", (MAACConfig, IACConfig)), ("aac.md", (AACConfig,))],
)
def test_every_field_is_described_with_its_default(document: str, kinds: tuple[Any, ...]) -> None:
    table = {row[0].strip("`"): row[1] for row in rows(read(document).partition("## Config")[2])}
    described = {name: default for name, default in table.items() if name.isidentifier()}
    described.pop("field")
    expected = {entry.name: entry.default for kind in kinds for entry in fields(kind)}
    assert described.keys() == expected.keys()
    for name, default in expected.items():
        shown = described[name].strip('"')
        assert shown == str(default) or float(shown) == default, name


def logged(folder: Path) -> set[str]:
    """Names in the header of a run's CSV file."""
    header = (folder / "progress.csv").read_text(encoding="utf-8").partition("\n")[0]
    return set(re.findall(r"[^,\"]+", header))


def abstain_once(first: list[str], second: list[str], batch_items: list[dict]) -> list:
    rewards: list = list(coordination_v0.reward(first, second, batch_items=batch_items))
    return [None if batch_items[0]["prompt"] == "noon" else reward for reward in rewards]


def run(kind: str, folder: Path, **fields_of_config: Any) -> None:
    models = [tiny_model(WORDS, seed=seed, n_layer=1) for seed in range(3)]
    settings: dict[str, Any] = dict(
        num_generations=4, rollout_buffer_size=8, max_new_tokens=2, reference_kl_enabled=True,
        agent_learning_rate=1e-3, eval_interval=2, verbose=False, **fields_of_config,
    )  # fmt: skip
    given: dict[str, Any] = {
        "agents": [models[0][0], models[1][0]],
        "tokenizer": models[0][1],
        "logdir": folder,
        "train_dataset": coordination_v0.dataset(),
        "eval_dataset": coordination_v0.dataset(),
        "reward_func": abstain_once,
    }
    if kind == "maac":
        trainer = MAACTrainer(args=MAACConfig(**settings), critic_model=models[2][0], **given)
    else:
        trainer = IACTrainer(args=IACConfig(use_separate_critic=False, **settings), **given)
    trainer.train()


@pytest.mark.parametrize(
    ("kind", "settings"), [("maac", {}), ("maac", {"critic_update": "joint"}), ("iac", {})]
)
def test_every_figure_is_described(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    run(kind, tmp_path, **settings)
    text = read("algorithms.md").partition("## What is logged")[2].partition("## Configuration")[0]
    described = set(re.findall(r"`([^`\s]+)`", text))
    names = {re.sub(r"^(eval/)?(agent_\d+|team)/turn_\d+/", "", name) for name in logged(tmp_path)}
    assert len(names) > 15
    assert names <= described, names - described


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (Cues, {"replay": "prioritized", "consistency_coef": 0.1}),
        (lambda: Cues(num_agents=17), {}),
        (Targets, {}),
    ],
)
def test_every_figure_of_aac_is_described(
    env: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    args = AACConfig(
        total_steps=60, learning_starts=20, batch_size=8, hidden_size=8, actor_hidden_sizes=[8],
        eval_episodes=2, attention_images=False, verbose=False, **settings,
    )  # fmt: skip
    guidance = True if env is Cues else None
    AACTrainer(args=args, env=env, guidance=guidance, logdir=tmp_path).train()
    text = read("aac.md").partition("## What is logged")[2].partition("## Who attends")[0]
    described = set(re.findall(r"`([^`\s]+)`", text))
    names = {re.sub(r"agent_\d+/", "AGENT/", name) for name in logged(tmp_path)}
    names = {re.sub(r"_head_\d", "_head_0", name) for name in names}
    names = {re.sub(r"actor/\w+_(min|max)$", r"actor/entropy_\1", name) for name in names}
    assert len(names) > 25
    assert names <= described, names - described


def test_every_key_and_command_is_described() -> None:
    described = set(re.findall(r"`([^`\s]+)`", read("command_line.md")))
    assert {*KEYS, *COMMANDS, "algorithm", "args"} <= described


def test_every_task_and_transition_keyword_is_described() -> None:
    described = set(re.findall(r"`([^`\s]+)`", read("environments.md")))
    assert {*TASKS, *NUMERIC_TASKS, *STANDARD, *EXTRAS} <= described


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, anchor = re.sub(r"\s+", "", target).partition("#")
        place = (path.parent / file) if file else path
        assert place.exists(), target
        headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
        }
        assert not anchor or anchor in anchors, target


def test_python_of_the_environments_document_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", read("environments.md"), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "environments.md", "exec"), names)
    assert len(names["results"]) == 8


PINS = {
    "Stable-Baselines3": ("together", "stable_baselines3"),
    "MaskablePPO": ("together", "sb3_contrib"),
    "TorchRL": ("together", "torchrl"),
    "BenchMARL": ("benchmarl", "benchmarl"),
    "RLlib": ("rllib", "ray"),
    "AgileRL": ("agilerl", "agilerl"),
    "TRL": ("together", "trl"),
    "verifiers": ("together", "verifiers"),
    "OpenEnv": ("together", "openenv-core"),
    "TextArena": ("together", "TextArena"),
    "gem": ("together", "gem-llm"),
}


@pytest.mark.parametrize("path", ["README.md", "docs/plugging_in.md"])
def test_tables_of_libraries_name_every_script_and_the_tested_version(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for script in (ROOT / "examples/plugging_in").glob("*.py"):
        assert script.name in text, f"{path} lacks {script.name}"
    table = [row for row in rows(text) if len(row) in (4, 6)]
    for library, (group, distribution) in PINS.items():
        pins = (ROOT / "constraints" / f"{group}.txt").read_text(encoding="utf-8")
        version = re.search(rf"^{distribution}==([\d.]+)$", pins, re.MULTILINE)
        assert version is not None, distribution
        named = [row for row in table if library in row[0]]
        assert named, f"{path} lacks a row of {library}"
        shown = re.search(r"\d+(\.\d+)+", named[0][1])
        assert shown is not None, named[0]
        assert version[1].startswith(shown[0]), f"{path}: {library} is tested with {version[1]}"


def test_views_are_described() -> None:
    """Every view that is exported has a row."""
    described = read("plugging_in.md")
    for name in wrappers.__all__:
        entry = getattr(wrappers, name)
        if (
            isinstance(entry, type)
            and issubclass(entry, wrappers.View)
            and entry is not wrappers.View
        ):
            assert f"| `{name}(" in described, name


def test_every_fault_names_a_test_that_is_there() -> None:
    """`resume::TestSaving` is a class or function in some tests/**/test_resume.py."""
    table = read("reliability.md").partition("## Faults")[2].partition("## Costs")[0]
    lines = [row for row in rows(table) if len(row) == 4 and "`" in row[3]]
    assert len(lines) > 20
    for fault, _, _, named in lines:
        tests = re.findall(r"`(\w+)::(?:\w+::)?(\w+)`", named)
        assert tests, fault
        for stem, name in tests:
            (file,) = (ROOT / "tests").rglob(f"test_{stem}.py")
            assert re.search(rf"^ *(?:def|class) {name}\b", file.read_text("utf-8"), re.M), name
