"""Runs from the command line that are stopped or killed, run out of disk, and go on."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak import differences, start
from marlogue.algorithms.checkpoints import CheckpointStore
from tests.support.command_line import ROOT, TINY, Run
from tests.support.faults import small_disk

# The file "signals" says at which item which signals come.
SIGNALLED = """\
import os
from pathlib import Path
from marlogue.algorithms import Callback

class Signals(Callback):
    def on_item(self, trainer, samples):
        at, *signals = Path("signals").read_text().split() if Path("signals").exists() else ["-1"]
        if samples[0].item_idx == int(at):
            for number in signals:
                os.kill(os.getpid(), int(number))
"""
CONFIG = TINY.replace("max_steps: 8", "max_steps: 8\n  save_steps: 2\n  train_batch_size: 2")
CONFIG = CONFIG.replace("rollout_buffer_size: 8", "rollout_buffer_size: 4")
WORDS = ("train", "--config", "signalled.yaml")


def prepared(folder: Path) -> Path:
    """The folder, with what a run needs in it."""
    (folder / "signalled.py").write_text(SIGNALLED)
    (folder / "signalled.yaml").write_text(CONFIG + "callbacks: [signalled.Signals]\n")
    return folder


@pytest.fixture
def place(here: Path) -> Path:
    """The current directory, with what a run needs in it."""
    return prepared(here)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed."""
    folder = prepared(tmp_path_factory.mktemp("undisturbed"))
    assert in_process(folder, *WORDS, "--logdir", "run") == 0
    return folder / "run"


def command(folder: Path, words: tuple[str, ...]) -> None:
    """The command line, in a process that has imported all that it needs."""
    os.chdir(folder)
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(said, number)
    from marlogue.cli import main

    sys.exit(main(list(words)))


def in_process(folder: Path, *words: str) -> int | None:
    """Run it.

    Returns:
        The exit code; minus the signal that ended it.
    """
    process = start(command, folder, words)
    process.join()
    code: int | None = process.exitcode
    return code


def assert_same(one: Path, other: Path) -> None:
    """See that two runs ended alike; nobody seeded the generators outside of them."""
    assert [name for name in differences(one, other) if name != "outside"] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_and_the_rest_of_the_run(
    number: signal.Signals, place: Path, undisturbed: Path
) -> None:
    """`python -m marlogue train`, as people start it, and another process that goes on."""
    (place / "signals").write_text(f"5 {number:d}")
    words = [sys.executable, "-m", "marlogue", *WORDS, "--logdir", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        words, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 75, ran.stderr
    assert f"{number.name}: the run stops at the next safe point" in ran.stderr
    assert re.search("to go on, train again with resume='auto' and logdir='.*run'", ran.stderr)
    assert "Traceback" not in ran.stderr
    newest = CheckpointStore(place / "run" / "checkpoints", None).newest()
    assert newest is not None
    assert str(newest.relative_to(place)) in ran.stderr
    (place / "signals").unlink()
    assert in_process(place, *WORDS, "--logdir", "run", "--resume", "auto") == 0
    assert_same(undisturbed, place / "run")
    said = (place / "said").read_text()
    assert "before training" not in said
    assert re.search(rf"going on from .*{newest.name}: \d+ items are done", said)


@pytest.mark.parametrize(
    ("at", "signals", "code"),
    [
        (1, (signal.SIGKILL,), -signal.SIGKILL),
        (6, (signal.SIGKILL,), -signal.SIGKILL),
        (1, (signal.SIGTERM, signal.SIGINT), -signal.SIGINT),
        (6, (signal.SIGTERM, signal.SIGTERM), -signal.SIGTERM),
        (6, (signal.SIGINT, signal.SIGINT), -signal.SIGINT),
    ],
)
def test_a_run_that_is_ended_at_once(
    at: int, signals: tuple[int, ...], code: int, place: Path, undisturbed: Path
) -> None:
    """Before the first checkpoint and after some; what is saved is the run's state before."""
    (place / "signals").write_text(" ".join(map(str, map(int, (at, *signals)))))
    assert in_process(place, *WORDS, "--logdir", "run") == code
    (place / "signals").unlink()
    assert in_process(place, *WORDS, "--logdir", "run", "--resume", "auto") == 0
    assert_same(undisturbed, place / "run")


def test_a_run_folder_is_not_mixed_with_another_training(run: Run, place: Path) -> None:
    assert run(*WORDS, "--max_steps", "2", "--logdir", "run").status == 0
    before = (place / "run" / "config.yaml").read_text()
    ran = run(*WORDS, "--seed", "3", "--logdir", "run", "--resume", "auto")
    assert ran.status == 2
    assert "seed" in ran.err
    assert (place / "run" / "config.yaml").read_text() == before


def test_a_finished_run_can_be_prolonged(run: Run, place: Path) -> None:
    assert run(*WORDS, "--max_steps", "4", "--logdir", "run").status == 0
    ran = run(*WORDS, "--max_steps", "8", "--logdir", "run", "--resume", "auto")
    assert ran.status == 0
    assert "with other settings than before: max_steps" in ran.err
    assert "max_steps: 8" in (place / "run" / "config.yaml").read_text()
    lines = (place / "run" / "transcripts.jsonl").read_text().splitlines()
    assert len(lines) == 8 * 2 * 2  # items, generations, agents


class TestFullDisk:
    """The disk of the run's folder has room for one checkpoint and a half."""

    def room(self, undisturbed: Path) -> str:
        newest = CheckpointStore(undisturbed / "checkpoints", None).newest()
        assert newest is not None
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
        return f"{size * 3 // 2 // 1024 + 200}k"

    def test_the_training_goes_on(self, run: Run, place: Path, undisturbed: Path) -> None:
        with small_disk(place / "disk", self.room(undisturbed)) as disk:
            ran = run(*WORDS, "--logdir", "disk/run")
            assert ran.status == 0
            assert "no checkpoint could be saved after 4" in ran.err
            assert "free some space" in ran.err
            newest = CheckpointStore(disk / "run" / "checkpoints", None).newest()
            assert newest is not None
            assert newest.name == "step_000000004"  # two items of two answers
            shutil.copytree(disk / "run", place / "run")
        assert in_process(place, *WORDS, "--logdir", "run", "--resume", "auto") == 0
        assert_same(undisturbed, place / "run")

    def test_a_signal_at_that_time(self, place: Path, undisturbed: Path) -> None:
        (place / "signals").write_text("6 15")
        with small_disk(place / "disk", self.room(undisturbed)) as disk:
            assert in_process(place, *WORDS, "--logdir", "disk/run") == 75
            said = (place / "said").read_text()
            assert "its state could not be saved" in said
            assert re.search("That will be from .*disk/run/checkpoints/step_000000004 on", said)
            shutil.copytree(disk / "run", place / "run")
        (place / "signals").unlink()
        assert in_process(place, *WORDS, "--logdir", "run", "--resume", "auto") == 0
        assert_same(undisturbed, place / "run")
