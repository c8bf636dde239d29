"""Checkpoints are on disk whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from marlogue.algorithms.checkpoints import (
    CheckpointError,
    CheckpointStore,
    check_folder,
    read_about,
    step_of,
    write_folder,
)
from tests.support.faults import Faults, as_nobody, disk_full, in_child, kill, put, small_disk

SIZE = 4000  # bytes of the weights in these checkpoints, about


def fill(value, folder, *, size=SIZE):
    """A checkpoint's usual parts: weights, a folder, JSON."""
    save_file({"weights": torch.full((size // 4,), float(value))}, folder / "model.safetensors")
    (folder / "agent_0").mkdir()
    put(folder / "agent_0" / "state.json", json.dumps({"value": value}).encode())


def value_of(place):
    """What is in a checkpoint; its parts agree."""
    about = check_folder(place)
    (value,) = set(load_file(place / "model.safetensors")["weights"].tolist())
    assert json.loads((place / "agent_0" / "state.json").read_text()) == {"value": int(value)}
    assert about == {"value": int(value)}
    return int(value)


def save(store, value, step=None, **settings):
    step = value if step is None else step
    return store.save(step, partial(fill, value, **settings), {"value": value})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", None)


class TestStore:
    def test_the_newest_is_found_with_what_was_said_about_it(self, store):
        assert store.newest() is None
        assert [value_of(save(store, value)) for value in (2, 100, 11)] == [2, 100, 11]
        assert store.newest() == store.folder / "step_000000100"
        assert value_of(store.newest()) == 100
        assert [step_of(place) for place in store.places()] == [100, 11, 2]
        assert names(store.folder) == [f"step_{n:09d}" for n in (2, 11, 100)]

    def test_the_same_step_again_replaces_it(self, store):
        save(store, 1, step=7)
        place = save(store, 2, step=7)
        assert value_of(place) == 2
        assert names(store.folder) == ["step_000000007"]

    def test_the_limit(self, tmp_path):
        store = CheckpointStore(tmp_path, 2)
        for value in (1, 2, 3, 4):
            save(store, value)
        assert names(tmp_path) == ["step_000000003", "step_000000004"]

    def test_the_limit_is_checked(self, tmp_path):
        with pytest.raises(ValueError, match=r"total_limit \(0\) must be at least 1"):
            CheckpointStore(tmp_path, 0)

    def test_what_is_damaged_does_not_count_for_the_limit(self, tmp_path):
        """Or the only intact one would go when a damaged one is newer."""
        store = CheckpointStore(tmp_path, 2)
        save(store, 1)
        damaged = save(store, 2)
        with open(damaged / "model.safetensors", "ab") as file:
            file.write(b"x")
        save(store, 3)
        assert names(tmp_path) == ["step_000000001", "step_000000003"]

    def test_what_was_saved_last_stays_though_others_have_later_steps(self, tmp_path):
        store = CheckpointStore(tmp_path, 1)
        save(store, 9)
        save(store, 4)
        assert names(tmp_path) == ["step_000000004"]

    def test_what_is_not_ours_is_never_removed(self, tmp_path):
        store = CheckpointStore(tmp_path, 1)
        (tmp_path / "step_000000001").mkdir()
        (tmp_path / "step_000000001" / "thesis.txt").write_text("years of work")
        save(store, 2)
        save(store, 3)
        assert names(tmp_path) == ["step_000000001", "step_000000003"]

    def test_old_ones_go_only_when_the_new_one_is_there(self, tmp_path):
        store = CheckpointStore(tmp_path, 1)
        save(store, 1)
        with pytest.raises(ZeroDivisionError):
            store.save(2, lambda folder: 1 / 0, {})
        assert value_of(store.newest()) == 1
        assert names(tmp_path) == ["step_000000001"]

    def test_one_that_cannot_be_removed_is_a_warning(self, tmp_path):
        store = CheckpointStore(tmp_path, 1)
        save(store, 1)
        removing = Faults(disk_full, at=1, names=("rmdir",))
        with removing.injected(), pytest.warns(UserWarning, match="could not be removed"):
            save(store, 2)
        assert value_of(store.newest()) == 2
        assert names(tmp_path) == ["step_000000002"]

    def test_a_name_without_a_step(self, tmp_path):
        with pytest.raises(CheckpointError, match="not named as a checkpoint"):
            step_of(tmp_path)


def truncate(place):
    file = place / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)


def flip(name):
    def harm(place):
        content = bytearray((place / name).read_bytes())
        content[len(content) // 2] ^= 1
        (place / name).write_bytes(content)

    return harm


def remove(name):
    return lambda place: (place / name).unlink()


def empty(place):
    shutil.rmtree(place)
    place.mkdir()


def file_instead(place):
    shutil.rmtree(place)
    place.write_text("a note")


def foreign(place):
    empty(place)
    (place / "trainer_state.json").write_text("{}")


def other_manifest(content):
    return lambda place: (place / "manifest.json").write_text(content)


HARMS = {
    "truncated": (truncate, "model.safetensors is damaged: it has"),
    "a flipped bit in the weights": (
        flip("model.safetensors"),
        "model.safetensors is damaged",
    ),
    "a flipped bit in the state": (
        flip("agent_0/state.json"),
        "state.json is damaged",
    ),
    "a flipped bit in the manifest": (flip("manifest.json"), "manifest.json is damaged"),
    "a file is missing": (remove("agent_0/state.json"), "state.json is missing"),
    "the manifest is missing": (remove("manifest.json"), "has no manifest.json"),
    "empty": (empty, "it is empty"),
    "a file instead of a folder": (file_instead, "is a file, not a folder"),
    "another program's": (foreign, "has no manifest.json"),
    "another program's manifest": (other_manifest('{"kind": "app"}'), "written by something else"),
    "a list": (other_manifest("[1]"), "written by something else"),
    "nested without end": (other_manifest("[" * 100_000), "manifest.json is damaged"),
    "no text": (
        lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"),
        "manifest.json is damaged",
    ),
    "a later format": (
        other_manifest('{"kind": "marlogue folder", "format": 9}'),
        "has format 9, but this version of marlogue reads format 1",
    ),
}


class TestDamage:
    @pytest.mark.parametrize(("harm", "message"), HARMS.values(), ids=HARMS)
    def test_it_is_named_and_skipped(self, harm, message, store):
        save(store, 1)
        place = save(store, 2)
        harm(place)
        with pytest.raises(CheckpointError, match=message):
            check_folder(place)
        with pytest.warns(UserWarning, match=message) as caught:
            assert value_of(store.newest()) == 1
        assert str(place) in str(caught[0].message)
        assert place.exists()

    def test_every_bit_of_a_checkpoint_is_watched(self, store):
        """Of a small one, each byte in turn."""
        place = store.save(1, lambda folder: (folder / "a").write_bytes(b"weights"), {"step": 1})
        for file in (place / "a", place / "manifest.json"):
            content = file.read_bytes()
            for index in range(len(content)):
                if chr(content[index]).isspace():  # between the words of JSON
                    continue
                file.write_bytes(
                    content[:index] + bytes([content[index] ^ 2]) + content[index + 1 :]
                )
                with pytest.raises(CheckpointError):
                    check_folder(place)
            file.write_bytes(content)
        assert check_folder(place) == read_about(place) == {"step": 1}

    def test_a_manifest_cannot_reach_out_of_its_folder(self, store, tmp_path):
        """Nor can one that somebody made up."""
        place = save(store, 1)
        told = {"about": {}, "files": {"../../secret": {"size": 1, "sha256": "0"}}}
        checksum = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        manifest = {"kind": "marlogue folder", "format": 1, "sha256": checksum, **told}
        (place / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match=r"manifest.json is damaged"):
            check_folder(place)

    def test_all_are_damaged(self, store):
        truncate(save(store, 1))
        empty(save(store, 2))
        with pytest.warns(UserWarning, match="Skipped") as caught:
            assert store.newest() is None
        assert len(caught) == 2

    def test_other_things_beside_them_are_named(self, store):
        save(store, 1)
        (store.folder / "checkpoint-500").mkdir()
        (store.folder / ".DS_Store").write_text("")
        with pytest.warns(UserWarning, match="checkpoint-500 is no checkpoint") as caught:
            assert value_of(store.newest()) == 1
        assert len(caught) == 1

    def test_a_note_in_the_folder_does_no_harm(self, store):
        place = save(store, 1)
        (place / "note.txt").write_text("the good one")
        assert value_of(store.newest()) == 1


class TestKilled:
    """A process that is killed before its k-th call, for every k."""

    @pytest.mark.parametrize("step", [2, 1], ids=["a new step", "the same step again"])
    def test_the_old_or_the_new_one_is_there(self, step, tmp_path):
        reached = 0
        for number in range(1, 1000):
            store = CheckpointStore(tmp_path / str(number), 1)
            save(store, 1)
            faults = Faults(kill, at=number)
            with faults.injected():
                code = in_child(lambda store=store: save(store, 2, step=step))
            assert code in (0, -9)
            after = CheckpointStore(store.folder, 1)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                value = value_of(after.newest())
            assert value in (1, 2)
            assert value >= reached, "once there, it stays"
            reached = value
            assert not [name for name in names(store.folder) if name.startswith(".")]
            save(after, 3)
            assert names(store.folder) == ["step_000000003"]
            if code == 0:
                break
        assert reached == 2
        assert number > 10

    def test_a_save_tidies_up_after_the_one_that_was_killed(self, tmp_path):
        store = CheckpointStore(tmp_path, None)
        with Faults(kill, at=5).injected():
            assert in_child(lambda: save(store, 1)) == -9
        assert names(tmp_path) == [".step_000000001.marlogue-partial"]
        save(store, 1)
        assert names(tmp_path) == ["step_000000001"]

    def test_a_reader_leaves_a_save_that_is_under_way_alone(self, store):
        """A run can be resumed, in another folder, from one that goes on."""

        def write(folder):
            fill(2, folder)
            assert value_of(store.newest(tidy=False)) == 1

        save(store, 1)
        assert value_of(store.save(2, write, {"value": 2})) == 2

    def test_all_is_flushed_before_it_has_its_name(self, store, monkeypatch):
        """Or a power cut could leave a checkpoint's name without its content."""
        flushed, fsync, rename = [], os.fsync, os.rename

        def watched_fsync(descriptor):
            flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        def watched_rename(source, target):
            if str(target).endswith("step_000000001"):
                inside = {str(path) for path in source.rglob("*")} | {str(source)}
                assert inside <= set(flushed)
                assert str(store.folder) not in flushed
            rename(source, target)

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "rename", watched_rename)
        save(store, 1)
        assert flushed[-1] == str(store.folder)
        assert len(flushed) == 6


def refused(store, value, **settings):
    """Save; whether the disk was found full, which is then said."""
    error = None
    try:
        save(store, value, **settings)
    except OSError as raised:
        error = raised
    if error is not None:
        assert error.errno == errno.ENOSPC
        assert any("free some space" in note for note in error.__notes__)
    return error is not None


class TestFullDisk:
    @pytest.mark.parametrize("step", [2, 1], ids=["a new step", "the same step again"])
    def test_at_any_call(self, step, tmp_path):
        """What fails is said, and what there was stays, whichever call finds the disk full."""
        for number in range(1, 1000):
            store = CheckpointStore(tmp_path / str(number), None)
            save(store, 1)
            faults = Faults(disk_full, at=number)
            with faults.injected():
                refused(store, 2, step=step)
            if faults.count < number:
                break
            assert value_of(store.newest()) in (1, 2)
            assert not [name for name in names(store.folder) if name.startswith(".")]
        assert value_of(store.newest()) == 2
        assert number > 10

    def test_a_small_disk(self, tmp_path):
        """Weights of each size until they do not fit: then JSON or the manifest do not either."""
        failed = 0
        with small_disk(tmp_path / "disk") as disk:
            store = CheckpointStore(disk / "checkpoints", None)
            save(store, 1)
            for size in range(30_000, 70_000, 1000):
                if refused(store, 2, size=size):
                    failed += 1
                    assert value_of(store.newest()) == 1
                    assert names(store.folder) == ["step_000000001"]
                else:
                    assert not failed
                    shutil.rmtree(store.newest())
        assert failed > 5

    def test_a_limit_on_the_size_of_files(self, store, capfd):
        """A full quota, as far as every user can have it."""

        def limited():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            save(store, 2, size=40_000)

        save(store, 1)
        assert in_child(limited) == 1
        assert "step_000000002 was not saved: the disk" in capfd.readouterr().err
        assert value_of(store.newest()) == 1
        assert names(store.folder) == ["step_000000001"]


class TestFolderThatCannotBeWritten:
    def test_a_read_only_folder(self, store, capfd):
        save(store, 1)
        store.folder.chmod(0o555)
        here = CheckpointStore(Path(), None)
        assert as_nobody(store.folder, lambda: save(here, 2)) == 1
        assert "make it writable, or choose another folder" in capfd.readouterr().err
        store.folder.chmod(0o755)
        assert value_of(store.newest()) == 1
        assert names(store.folder) == ["step_000000001"]

    def test_a_file_is_in_the_way(self, tmp_path):
        (tmp_path / "checkpoints").write_text("")
        with pytest.raises(OSError, match="checkpoints") as caught:
            save(CheckpointStore(tmp_path / "checkpoints", None), 1)
        assert "choose another folder" in caught.value.__notes__[0]

    def test_something_else_of_that_name_is_not_replaced(self, tmp_path):
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis.txt").write_text("years of work")
        with pytest.raises(FileExistsError, match="not replaced") as caught:
            write_folder(tmp_path / "home", partial(fill, 1), {})
        assert "move what is there away" in caught.value.__notes__[0]
        assert (tmp_path / "home" / "thesis.txt").read_text() == "years of work"
        assert names(tmp_path) == ["home"]

    def test_an_empty_folder_is(self, tmp_path):
        (tmp_path / "new").mkdir()
        write_folder(tmp_path / "new", partial(fill, 1), {"value": 1})
        assert value_of(tmp_path / "new") == 1

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
    def test_whatever_ends_it(self, error, store):
        def write(folder):
            fill(2, folder)
            raise error

        save(store, 1)
        with pytest.raises(error):
            store.save(2, write, {})
        assert names(store.folder) == ["step_000000001"]

    def test_about_must_be_json(self, store):
        with pytest.raises(TypeError, match="not JSON serializable"):
            store.save(1, partial(fill, 1), {"a": object()})
        assert names(store.folder) == []


def test_large_files_are_not_read_whole(tmp_path):
    """256 MB are hashed with little memory (a sparse file: the disk holds none of it)."""

    def write(folder):
        with open(folder / "large", "wb") as file:
            file.truncate(2**28)

    def child():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        write_folder(tmp_path / "folder", write, {})
        check_folder(tmp_path / "folder")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**15  # kB

    assert in_child(child) == 0
