"""A folder belongs to one run, and to one process at a time; real processes try."""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from pathlib import Path

import pytest

from marlogue.algorithms.run_description import ResumeError
from marlogue.algorithms.run_folder import RunFolder, RunFolderError, fresh_folder, holds_run
from tests.support.faults import Faults, as_nobody, disk_full, in_child, kill, small_disk

ABOUT = {"trained": {"agents": ["a", "b"]}, "settings": {"lr": 1.0}, "versions": {}}


def enter(folder, about=ABOUT, resume=None):
    with RunFolder(folder, about, resume):
        pass


class TestWhoseItIs:
    def test_a_new_one(self, tmp_path):
        enter(tmp_path / "runs" / "a")
        assert json.loads((tmp_path / "runs" / "a" / "run.json").read_text()) == ABOUT

    def test_without_a_folder(self):
        enter(None)

    def test_files_of_other_kinds_are_no_run(self, tmp_path):
        (tmp_path / "config.yaml").write_text("")
        (tmp_path / "team").mkdir()
        enter(tmp_path)

    @pytest.mark.parametrize(
        "left", ["progress.csv", "progress.json", "transcripts.jsonl", "events.out.tfevents.1.a"]
    )
    @pytest.mark.parametrize("resume", [None, "auto"])
    def test_the_log_of_something_else_is_not_touched(self, left, resume, tmp_path):
        (tmp_path / left).write_text("precious")
        with pytest.raises(RunFolderError, match="name another folder"):
            enter(tmp_path, resume=resume)
        assert (tmp_path / left).read_text() == "precious"
        assert not (tmp_path / "run.json").exists()

    def test_another_run_is_refused(self, tmp_path):
        enter(tmp_path)
        assert holds_run(tmp_path)
        with pytest.raises(RunFolderError, match=r"holds a run already; set resume='auto'"):
            enter(tmp_path)

    def test_the_same_run_goes_on(self, tmp_path):
        enter(tmp_path)
        changed = {**ABOUT, "settings": {"lr": 2.0}}
        enter(tmp_path, changed, resume="auto")
        assert json.loads((tmp_path / "run.json").read_text()) == changed

    def test_another_training_does_not_go_on_in_it(self, tmp_path):
        """Also where there is no checkpoint yet that would say so."""
        enter(tmp_path)
        with pytest.raises(ResumeError, match="agents"):
            enter(tmp_path, {**ABOUT, "trained": {"agents": ["a", "c"]}}, resume="auto")
        assert json.loads((tmp_path / "run.json").read_text()) == ABOUT

    def test_a_checkpoint_from_elsewhere_is_not_mixed_in(self, tmp_path):
        enter(tmp_path / "a")
        with pytest.raises(RunFolderError, match="holds another run than the checkpoint"):
            enter(tmp_path / "a", resume=str(tmp_path / "b" / "checkpoints" / "step_000000001"))
        enter(tmp_path / "c", resume=str(tmp_path / "b" / "checkpoints" / "step_000000001"))

    def test_its_own_checkpoints(self, tmp_path, monkeypatch):
        enter(tmp_path / "a")
        enter(tmp_path / "a", resume=str(tmp_path / "a" / "checkpoints" / "step_000000001"))
        enter(tmp_path / "a", resume=str(tmp_path / "a"))
        monkeypatch.chdir(tmp_path)
        enter(tmp_path / "a", resume="a/checkpoints/step_000000001")

    def test_a_damaged_description(self, tmp_path):
        (tmp_path / "run.json").write_text("{")
        with pytest.raises(RunFolderError, match="is damaged"):
            enter(tmp_path, resume="auto")


def test_a_fresh_folder_is_one_without_a_run(tmp_path):
    assert fresh_folder(str(tmp_path / "run")) == tmp_path / "run"
    for expected in ("run", "run-2", "run-3"):
        folder = fresh_folder(tmp_path / "run")
        assert folder.name == expected
        enter(folder)


class TestOneProcess:
    def test_two_at_once(self, tmp_path):
        def child():
            with pytest.raises(RunFolderError, match="in use by another process"):
                enter(tmp_path, resume="auto")

        with RunFolder(tmp_path, ABOUT, None):
            assert in_child(child) == 0
        assert in_child(lambda: enter(tmp_path, resume="auto")) == 0

    def test_twice_in_one_process(self, tmp_path):
        with RunFolder(tmp_path, ABOUT, None), pytest.raises(RunFolderError, match="in use"):
            enter(tmp_path, resume="auto")

    def test_a_killed_process_leaves_it_free(self, tmp_path):
        def child():
            with RunFolder(tmp_path, ABOUT, None):
                kill()

        assert in_child(child) == -signal.SIGKILL
        enter(tmp_path, resume="auto")

    def test_also_one_whose_workers_live_on(self, tmp_path):
        """A forked process has its parent's files, and with them its locks."""

        def parent():
            with RunFolder(tmp_path, ABOUT, None):
                worker = os.fork()
                if not worker:
                    time.sleep(60)
                    os._exit(0)
                (tmp_path / "worker").write_text(str(worker))
                kill()

        assert in_child(parent) == -signal.SIGKILL
        worker = int((tmp_path / "worker").read_text())
        try:
            enter(tmp_path, resume="auto")
        finally:
            os.kill(worker, signal.SIGKILL)

    def test_an_error_leaves_it_free(self, tmp_path):
        with pytest.raises(KeyError), RunFolder(tmp_path, ABOUT, None):
            raise KeyError
        enter(tmp_path, resume="auto")

    def test_a_refusal_leaves_it_free(self, tmp_path):
        enter(tmp_path)
        with pytest.raises(RunFolderError):
            enter(tmp_path)
        enter(tmp_path, resume="auto")


class TestFolderThatCannotBeUsed:
    def test_a_file_is_in_the_way(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="file") as caught:
            enter(tmp_path / "file" / "run")
        assert "name another one" in caught.value.__notes__[0]

    def test_without_rights(self, tmp_path):
        def child():
            for folder in (Path("a"), Path("a/b")):
                with pytest.raises(PermissionError) as caught:
                    enter(folder)
                assert "name another one" in caught.value.__notes__[0]

        (tmp_path / "a").mkdir(mode=0o755)
        tmp_path.chmod(0o755)
        assert as_nobody(tmp_path, child) == 0

    def test_a_full_disk(self, tmp_path):
        with small_disk(tmp_path / "disk") as disk:
            (disk / "ballast").write_bytes(b"x" * 65536)
            with pytest.raises(OSError, match="No space left") as caught:
                enter(disk / "run")
            assert "free some space" in caught.value.__notes__[0]

    def test_the_description_is_whole_or_the_old_one(self, tmp_path):
        enter(tmp_path)
        changed = {**ABOUT, "settings": {"lr": 2.0}}
        for number in range(1, 50):
            with Faults(kill, at=number).injected(), warnings.catch_warnings():
                code = in_child(lambda: enter(tmp_path, changed, "auto"))
            assert json.loads((tmp_path / "run.json").read_text()) in (ABOUT, changed)
            if code == 0:
                break
        assert number > 3
        with (
            Faults(disk_full, at=1, names=("fsync",)).injected(),
            pytest.raises(OSError, match="No space"),
        ):
            enter(tmp_path, ABOUT, "auto")
        assert json.loads((tmp_path / "run.json").read_text()) == changed
