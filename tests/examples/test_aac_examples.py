"""The examples of actor-attention-critic run, with few steps, in this process: torch is there
already, and each takes a few seconds."""

import runpy
import sys
from pathlib import Path

import pytest
import yaml

from marlogue.cli import main
from tests.support.command_line import ROOT
from tests.support.libraries import needs

EXAMPLES = ROOT / "examples"
FEW = ["--learning_starts", "100", "--eval_episodes", "1"]
SCRIPTS: dict[str, tuple[str | None, list[str], str]] = {
    "aac_cloud_scheduling.py": (
        None,
        [
            *("--num_agents", "5", "--total_steps", "200", "--learning_starts", "100"),
            *("--max_steps", "40", "--episodes", "1"),
        ],
        "trained with guidance: cost before ",
    ),
    "aac_magent2.py": (
        "magent2",
        ["--total_steps", "200", *FEW, "--map_size", "12", "--max_cycles", "40"],
        "after:  mean return ",
    ),
    "aac_spread_curriculum.py": (
        None,
        ["--total_steps", "200", *FEW, "--num_queries", "4"],
        "30 agents: mean return of one -",
    ),
    "aac_tag.py": (
        "mpe2",
        ["--total_steps", "200", *FEW, "--logdir", "run"],
        "adversary_2 attended to adversary_",
    ),
}
CONFIGURATIONS: dict[str, tuple[str | None, list[str]]] = {
    "aac_cloud_scheduling.yaml": (None, ["--env.kwargs.max_steps", "40"]),
    "aac_multiwalker.yaml": ("Box2D", ["--env.kwargs.max_cycles", "30"]),
    "aac_pursuit.yaml": ("pygame", ["--env.kwargs.max_cycles", "20"]),
    "aac_spread.yaml": ("mpe2", []),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library, words, expected = SCRIPTS[name]
    if library is not None:
        needs(library)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library, words = CONFIGURATIONS[name]
    if library is not None:
        needs(library)
    monkeypatch.chdir(tmp_path)
    few = ["--total_steps", "200", *FEW, "--eval_interval", "0", "--attention_images", "false"]
    assert main(["train", "--config", str(EXAMPLES / name), *few, *words]) == 0
    assert "mean return after training: " in capsys.readouterr().out
    run = tmp_path / "runs" / Path(name).stem
    assert (run / "team/actors.safetensors").exists()
    kept = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert kept["algorithm"] == "aac"
