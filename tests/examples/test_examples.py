"""Every example runs, with few steps, as its docstring or first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

from marlogue.agents.smollm2 import smollm2_available
from tests.support.command_line import ROOT

EXAMPLES = ROOT / "examples"
needs_smollm2 = [
    pytest.mark.smollm2,
    pytest.mark.slow,
    pytest.mark.skipif(not smollm2_available(), reason="the weights of SmolLM2 are not installed"),
]

OFFLINE: dict[str, tuple[list[str], str]] = {
    "attention_critic_maac.py": (["--epochs", "1", "--hint", "0.9"], "mean reward before"),
    "bring_your_own_environment.py": (["--max_steps", "96"], "share of episodes"),
    "hand_written_loop.py": ([], "long answers:"),
    "heterogeneous_agents.py": (["--max_steps", "8"], "mean reward before"),
    "multi_turn.py": (["--epochs", "1"], "in the second"),
    "extending/callback.py": (["--max_steps", "8", "--output_dir", "best"], "has 2 agents"),
    "extending/critic.py": ([], "trunk unchanged: True"),
    "extending/environment.py": ([], "('cat', 'dog') earns 1.0"),
    "extending/generation_backend.py": ([], "the same as the built-in backend: True"),
}
FEW = ["--max_steps", "2", "--max_new_tokens", "4", "--eval_num_samples", "1"]
SMOLLM2: dict[str, list[str]] = {
    "story_length_maac.py": [*FEW, "--logdir", "run"],
    "story_length_iac.py": [*FEW, "--logdir", "run"],
}
FEW_IN_YAML = ["--num_generations", "1", "--rollout_buffer_size", "2", *FEW, "--logdir", "run"]


def run(words: list[str], cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(OFFLINE))
def test_script(name: str, tmp_path: Path) -> None:
    words, expected = OFFLINE[name]
    assert expected in run([str(EXAMPLES / name), *words], tmp_path)


def test_attention_critic_of_a_configuration(tmp_path: Path) -> None:
    file = str(EXAMPLES / "attention_critic.yaml")
    words = ["-m", "marlogue", "train", "--config", file, "--num_train_epochs", "1"]
    assert "mean reward after training" in run(words, tmp_path)


def test_the_joint_prompt_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="must fit the model's context of 24"):
        run([str(EXAMPLES / "attention_critic_maac.py"), "--architecture", "joint"], tmp_path)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_smollm2) for name in SMOLLM2])
def test_script_with_smollm2(name: str, tmp_path: Path) -> None:
    said = run([str(EXAMPLES / name), *SMOLLM2[name]], tmp_path)
    assert "mean reward before" in said
    assert (tmp_path / "run/progress.csv").exists()


def test_coordination(tmp_path: Path) -> None:
    file = str(EXAMPLES / "coordination.yaml")
    run(["-m", "marlogue", "train", "--config", file, "--num_train_epochs", "2"], tmp_path)
    said = run(["-m", "marlogue", "rollout", "--team", "runs/coordination/team"], tmp_path)
    assert "agent_0 is asked: dawn" in said
    pytest.importorskip("matplotlib")
    run([str(EXAMPLES / "plot_run.py"), "runs/coordination", "reward.png"], tmp_path)
    assert (tmp_path / "reward.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_smollm2)
        for name in (
            "code_pair.yaml",
            "quickstart.yaml",
            "story_length_iac.yaml",
            "story_length_maac.yaml",
        )
    ],
)
def test_configuration_with_smollm2(name: str, tmp_path: Path) -> None:
    words = ["-m", "marlogue", "train", "--config", str(EXAMPLES / name), *FEW_IN_YAML]
    said = run(words, tmp_path)
    assert "mean reward after training" in said


def test_every_example_is_run() -> None:
    scripts = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    elsewhere = {name for name in scripts if name.startswith(("plugging_in/", "aac_"))}
    assert scripts - elsewhere == {*OFFLINE, *SMOLLM2, "plot_run.py"}
    tests = [path.read_text(encoding="utf-8") for path in ROOT.glob("tests/*/*.py")]
    named = elsewhere | {path.name for path in EXAMPLES.glob("*.yaml")}
    missing = {name for name in named if not any(Path(name).name in test for test in tests)}
    assert not missing, f"{missing}: run them in tests/plugging_in or tests/examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_length(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert 40 <= lines <= 130, f"{lines} lines"
