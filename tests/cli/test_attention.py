"""Who attends to whom, from the command line."""

import os
import sys
from pathlib import Path

import pytest

from marlogue.algorithms.attention_trace import trace_path
from tests.support.command_line import Run
from tests.support.traces import episode

pytest.importorskip("matplotlib")
from PIL import Image


@pytest.fixture
def traced(here: Path) -> Path:
    """A folder with two traces: of three agents, and a newer one of four, of whom one leaves."""
    folder = here / "runs/chase"
    episode(3).save(trace_path(folder, 2000))
    episode(4, leaves=2).save(trace_path(folder, 12345))
    return folder


def test_table_and_picture_of_the_newest(run: Run, traced: Path) -> None:
    ran = run("attention", "runs/chase")
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "runs/chase/attention/step_00012345.npz"
    assert lines[1] == "a chase: 4 agents, 2 heads, mean over 10 steps"
    mean = episode(4, leaves=2).mean_weights()
    best = [(mean[0, other], f"hunter_{other}") for other in (1, 2, 3)]
    said = ", ".join(f"{name} {weight:.2f}" for weight, name in sorted(best, reverse=True))
    assert f"hunter_0  {said}" in lines
    nats, shares = episode(4, leaves=2).entropies()
    assert f"   1  {nats[1]:8.3f}  {shares[1]:10.1%}" in lines
    assert lines[-1] == "the picture is in runs/chase/attention/step_00012345.png"
    with Image.open(traced / "attention/step_00012345.png") as picture:
        assert min(picture.size) > 300


def test_another_step_and_file(run: Run, traced: Path) -> None:
    ran = run("attention", "runs/chase", "--step", "2000", "--at", "0,9", "--output", "new/who.png")
    assert ran.out.splitlines()[1].startswith("a chase: 3 agents")
    assert ran.out.endswith("the picture is in new/who.png\n")
    with Image.open("new/who.png") as few:
        narrow = few.size
    run("attention", "runs/chase", "--step", "2000", "--output", "new/who.png")
    with Image.open("new/who.png") as all_of_them:
        assert narrow[0] < all_of_them.size[0]  # two steps, not four


def test_head_by_head_of_one_file(run: Run, traced: Path) -> None:
    file = "runs/chase/attention/step_00002000.npz"
    ran = run("attention", file, "--heads", "--output", "heads.svg")
    assert ran.out.splitlines()[0] == file
    assert Path("heads.svg").read_text(encoding="utf-8").count("head 1") == 1


def test_agents_without_company(run: Run, here: Path) -> None:
    episode(2, leaves=0).save(trace_path("lonely", 1))
    ran = run("attention", "lonely")
    assert ran.status == 0, ran.err
    assert "hunter_0  nobody: never in company" in ran.out
    assert "entropies say nothing" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "run (nowhere) must be the folder of a run; there is none"),
        (["."], "run (.) holds no attention traces; a trainer with an attention critic leaves one"),
        (["runs/chase", "--step", "7"], "step (7) must be one of 2000, 12345"),
        (["runs/chase", "--at", "10"], "at (10) must be steps of the episode, from 0 to 9"),
        (["runs/chase", "--at", "x"], "at (x) must be steps of the episode, as in 0,10,24"),
        (["runs/chase", "--output", "who.zzz"], "output (who.zzz) cannot be written: Format 'zzz'"),
        (["runs/chase", "--colour"], "unrecognized arguments: --colour"),
        (["tiny.yaml"], "tiny.yaml is no attention trace (no .npz file)"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_what_cannot_be_used(run: Run, traced: Path, words: list[str], said: str) -> None:
    ran = run("attention", *words)
    assert ran.status == 2
    assert ran.err.startswith(f"marlogue attention: error: {said}")
    assert len(ran.err.splitlines()) == 1


def test_a_torn_file(run: Run, traced: Path) -> None:
    os.truncate(trace_path(traced, 12345), 500)
    ran = run("attention", "runs/chase")
    assert ran.status == 2
    assert "step_00012345.npz is not a whole attention trace" in ran.err


def test_without_matplotlib(run: Run, traced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run("attention", "runs/chase")
    assert ran.status == 0, ran.err
    assert ran.out.endswith('for a picture: pip install "marlogue[plot]"\n')
    ran = run("attention", "runs/chase", "--output", "who.png")
    assert ran.status == 2
    assert 'install it with: pip install "marlogue[plot]"' in ran.err
