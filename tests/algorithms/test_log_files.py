"""The files of a log outlive full disks, folders that are gone, and kills at any moment."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.logger import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marlogue.algorithms.append_file import AppendFile, Trouble
from marlogue.algorithms.log_files import CsvTable, JsonRows, PrintedTable, TensorBoardEvents
from marlogue.algorithms.run_log import RunLog
from tests.support.faults import Faults, as_nobody, disk_full, in_child, kill, small_disk

PIECES = [f"piece {k} of many\n".encode() for k in range(5)]


@pytest.fixture
def trouble(tmp_path):
    return Trouble(tmp_path)


@pytest.fixture
def file(tmp_path, trouble):
    return AppendFile(tmp_path / "file", trouble)


def half_written(at):
    """The disk is full after half of the piece that call number ``at`` writes; an act of Faults
    cannot do that, so os.write is replaced once."""
    write, calls = os.write, []

    def call(descriptor, data):
        calls.append(data)
        if len(calls) == at:
            return write(descriptor, bytes(data[: len(data) // 2]))
        if len(calls) == at + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    return call


class TestAppendFile:
    def test_pieces(self, file):
        for piece in PIECES:
            file.append(piece)
        assert file.path.read_bytes() == b"".join(PIECES)
        assert (file.waiting, file.lost) == (0, 0)

    def test_it_goes_on_in_a_file_that_is_there(self, file):
        file.path.write_bytes(b"before\n")
        file.append(b"after\n")
        assert file.path.read_bytes() == b"before\nafter\n"

    @pytest.mark.parametrize("at", [1, 3, 5])
    def test_a_full_disk_leaves_whole_pieces(self, at, file, monkeypatch):
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", half_written(at))
            for piece in PIECES[:at]:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    file.append(piece)
        assert file.path.read_bytes() == b"".join(PIECES[: at - 1])
        assert file.waiting == 1
        assert "free some space on its disk" in str(caught[0].message)
        for piece in PIECES[at:]:
            file.append(piece)
        file.catch_up()
        assert file.path.read_bytes() == b"".join(PIECES)

    def test_an_interrupt_leaves_whole_pieces(self, file, monkeypatch):
        def interrupted(descriptor, data):
            written(descriptor, bytes(data[:3]))
            raise KeyboardInterrupt

        written = os.write
        file.append(PIECES[0])
        monkeypatch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            file.append(PIECES[1])
        monkeypatch.undo()
        file.append(PIECES[2])
        assert file.path.read_bytes() == b"".join(PIECES[:3])

    def test_a_small_disk(self, tmp_path):
        def put(files):
            for k in range(40):
                for one in files:
                    one.append(b"%04d" % k * 250)

        with small_disk(tmp_path / "disk") as disk:
            ballast = disk / "ballast"
            ballast.write_bytes(b"x" * 40_000)
            files = [AppendFile(disk / name, Trouble(disk)) for name in "ab"]
            with pytest.warns(UserWarning, match="The training goes on"):
                put(files)
            assert all(one.waiting for one in files)
            for one in files:
                assert one.path.stat().st_size % 1000 == 0
            ballast.unlink()
            for one in files[:1]:
                one.catch_up()
            wanted = b"".join(b"%04d" % k * 250 for k in range(40))
            assert files[0].path.read_bytes() == wanted
            assert wanted.startswith(files[1].path.read_bytes())

    def test_trouble_is_said_once_until_it_is_over(self, tmp_path, trouble):
        one, two = (AppendFile(tmp_path / name, trouble) for name in "ab")
        full = Faults(disk_full, at=1, names=("write",), onwards=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with full.injected():
                for file in (one, two, one, two):
                    file.append(b"x")
            assert len(caught) == 1
            one.catch_up()
            two.catch_up()
            full.count = 0
            with full.injected():
                one.append(b"y")
            assert len(caught) == 2
        one.catch_up()
        assert (one.path.read_bytes(), two.path.read_bytes()) == (b"xxy", b"xx")

    def test_a_folder_that_was_removed(self, tmp_path):
        folder = tmp_path / "run"
        folder.mkdir()
        file = AppendFile(folder / "file", Trouble(folder))
        file.append(PIECES[0])
        shutil.rmtree(folder)
        with pytest.warns(UserWarning, match=f"make the folder {folder} again"):
            file.append(PIECES[1])
        assert not folder.exists()
        folder.mkdir()
        file.append(PIECES[2])
        assert file.path.read_bytes() == b"".join(PIECES[1:3])

    def test_a_file_that_may_not_be_written(self, tmp_path):
        def child():
            here = AppendFile(Path("file"), Trouble(tmp_path))
            with pytest.warns(UserWarning, match="make it writable"):
                here.append(PIECES[1])
            assert here.waiting == 1

        (tmp_path / "file").write_bytes(PIECES[0])
        (tmp_path / "file").chmod(0o444)
        tmp_path.chmod(0o755)
        assert as_nobody(tmp_path, child) == 0
        assert (tmp_path / "file").read_bytes() == PIECES[0]

    def test_memory_is_bounded(self, tmp_path, trouble):
        file = AppendFile(tmp_path / "none" / "file", trouble, room=10)
        with pytest.warns(UserWarning, match="cannot be written"):
            file.append(b"abcd")
        for _ in range(3):
            file.append(b"abcd")
        assert (file.waiting, file.lost) == (2, 2)
        file.path.parent.mkdir()
        for _ in range(2):
            file.append(b"efg")
        assert file.path.read_bytes() == b"abcdabcdefgefg"

    def test_its_state_holds_what_waits(self, tmp_path, trouble, file):
        file.append(PIECES[0])
        full = Faults(disk_full, at=1, names=("write",), onwards=True)
        with full.injected(), pytest.warns(UserWarning, match="cannot be written"):
            file.append(PIECES[1])
        with full.injected():
            state = json.loads(json.dumps(file.state_dict()))
        assert state["size"] == len(PIECES[0])
        other = AppendFile(file.path, trouble)
        other.load_state_dict(state)
        other.append(PIECES[2])
        assert file.path.read_bytes() == b"".join(PIECES[:3])


def log_of(folder, **settings):
    settings = {"verbose": False, "wandb_config": None, "config": {"a": 1}, **settings}
    return RunLog(folder, num_transcripts=0, **settings)


def fill(log, steps):
    for step in steps:
        log.add_step("team", {"loss": step / 2, f"every_{step % 3}": 1.0})
        log.write(step)


def rows_of(folder):
    return [json.loads(line) for line in (folder / "progress.json").read_text().splitlines()]


def table_of(folder):
    with open(folder / "progress.csv", newline="", encoding="utf-8") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def events_of(folder):
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0})
    return read.Reload()


def steps_of(folder, tag="team/loss"):
    read = events_of(folder)
    return [event.step for event in read.Scalars(tag)] if tag in read.Tags()["scalars"] else []


class TestFormats:
    def test_all_of_them_have_the_same(self, tmp_path):
        log = log_of(tmp_path)
        fill(log, range(1, 8))
        log.close()
        rows = rows_of(tmp_path)
        assert [row["team/loss"] for row in rows] == [k / 2 for k in range(1, 8)]
        assert rows[3] == {"team/loss": 2.0, "team/every_1": 1.0, "time/joint_actions": 4}
        assert table_of(tmp_path) == rows
        read = events_of(tmp_path)
        assert [(e.step, e.value) for e in read.Scalars("team/loss")] == [
            (k, k / 2) for k in range(1, 8)
        ]
        assert [e.step for e in read.Scalars("team/every_1")] == [1, 4, 7]
        assert "time/joint_actions" not in read.Tags()["scalars"]

    def test_texts_and_pictures(self, tmp_path, trouble):
        events = TensorBoardEvents(AppendFile(tmp_path / "events.out.tfevents.1", trouble))
        events.begin({"lr": 0.1, "layers": [1, 2]})
        picture = Image(np.zeros((3, 4, 3), dtype=np.uint8), "HWC")
        shown = {"a": "**text**", "b": picture, "c": np.float32(2)}
        events.write(shown, dict.fromkeys(shown, ("",)), 5)
        read = events_of(tmp_path)
        (text,) = read.Tensors("a/text_summary")
        assert (text.step, text.tensor_proto.string_val[0]) == (5, b"**text**")
        (drawn,) = read.Images("b")
        assert (drawn.step, drawn.height, drawn.width) == (5, 3, 4)
        assert read.Scalars("c")[0].value == 2
        assert "_hparams_/session_start_info" in read.summary_metadata

    def test_what_cannot_be_shown(self, tmp_path, trouble):
        events = TensorBoardEvents(AppendFile(tmp_path / "events.out.tfevents.1", trouble))
        with pytest.raises(TypeError, match=r"a \(list\) must be a number, text, or picture"):
            events.write({"a": [1]}, {"a": ("",)}, 5)

    def test_awkward_texts_in_the_table(self, tmp_path, trouble):
        rows = AppendFile(tmp_path / "progress.json", trouble)
        outputs = [JsonRows(rows), CsvTable(tmp_path / "progress.csv", rows, trouble)]
        for text in ('a "quoted", text\nof two lines', "é"):
            for output in outputs:
                output.write({"a,b": text, "n": float("nan")}, {"a,b": ("",), "n": ("",)}, 1)
        with open(tmp_path / "progress.csv", newline="", encoding="utf-8") as file:
            assert [row["a,b"] for row in csv.DictReader(file)] == [
                'a "quoted", text\nof two lines',
                "é",
            ]


class TestTroubleInARun:
    def test_what_was_not_written_comes_with_the_next_write_that_works(self, tmp_path):
        log = log_of(tmp_path)
        fill(log, [1, 2])
        full = Faults(disk_full, at=1, names=("write",), onwards=True)
        with full.injected(), pytest.warns(UserWarning, match="cannot be written") as caught:
            fill(log, [3, 4, 5])
        assert len(caught) == 1
        assert [row["time/joint_actions"] for row in rows_of(tmp_path)] == [1, 2]
        assert steps_of(tmp_path) == [1, 2]
        fill(log, [6])
        log.close()
        assert [row["time/joint_actions"] for row in rows_of(tmp_path)] == [1, 2, 3, 4, 5, 6]
        assert table_of(tmp_path) == rows_of(tmp_path)
        assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]

    def test_the_end_is_a_last_try(self, tmp_path):
        log = log_of(tmp_path)
        full = Faults(disk_full, at=1, names=("write",), onwards=True)
        with full.injected(), pytest.warns(UserWarning, match="cannot be written"):
            fill(log, [1, 2])
        log.close()
        assert table_of(tmp_path) == rows_of(tmp_path)
        assert steps_of(tmp_path) == [1, 2]

    def test_an_incomplete_log_is_said_at_the_end(self, tmp_path):
        folder = tmp_path / "run"
        log = log_of(folder)
        fill(log, [1, 2])
        shutil.rmtree(folder)
        with pytest.warns(UserWarning, match="make the folder"):
            fill(log, [3])
        with pytest.warns(UserWarning, match=r"is incomplete.*1 of progress.json"):
            log.close()

    def test_on_a_small_disk(self, tmp_path):
        """Until it is full, and after somebody has made room."""
        with small_disk(tmp_path / "disk") as disk:
            log = log_of(disk / "run")
            ballast = disk / "ballast"
            ballast.write_bytes(b"x" * 50_000)
            with pytest.warns(UserWarning, match="cannot be written") as caught:
                fill(log, range(1, 150))
            assert len(caught) < 5
            written = rows_of(disk / "run")
            assert 0 < len(written) < 149
            assert steps_of(disk / "run") == list(range(1, len(steps_of(disk / "run")) + 1))
            table_of(disk / "run")
            ballast.unlink()
            fill(log, [150])
            log.close()
            assert [row["time/joint_actions"] for row in rows_of(disk / "run")] == [*range(1, 151)]
            assert table_of(disk / "run") == rows_of(disk / "run")
            assert steps_of(disk / "run") == [*range(1, 151)]

    def test_killed_at_any_call(self, tmp_path):
        """What is on disk can be read, whenever it happens; the table, too."""

        def child(folder):
            log = log_of(folder)
            with faults.injected():
                fill(log, range(1, 7))

        for number in range(1, 100):
            folder = tmp_path / str(number)
            faults = Faults(kill, at=number)
            code = in_child(lambda folder=folder: child(folder))
            rows = rows_of(folder) if (folder / "progress.json").exists() else []
            assert [row["time/joint_actions"] for row in rows] == [*range(1, len(rows) + 1)]
            if (folder / "progress.csv").exists():
                assert table_of(folder) in (rows, rows[:-1])
            if rows:
                assert len(rows) - len(steps_of(folder)) in (0, 1)
            if code == 0:
                break
        assert number > 15

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="file"):
            log_of(tmp_path / "file" / "run")

    def test_a_reader_that_went_away(self, tmp_path):
        """As with ``marlogue train | head``."""
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            table = PrintedTable(stream)
            with pytest.warns(UserWarning, match="no more tables are printed"):
                table.write({"a": 1.0}, {"a": ("",)}, 1)
            table.write({"a": 1.0}, {"a": ("",)}, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # so that it can be closed


def test_no_thread_and_no_file_stays_open(tmp_path):
    """TensorBoard's own writer has a thread, and every writer of a file one that is open."""
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    log = log_of(tmp_path)
    fill(log, range(1, 5))
    assert before == (len(os.listdir("/proc/self/fd")), threading.active_count())
