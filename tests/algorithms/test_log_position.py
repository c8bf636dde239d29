"""A log that is resumed shows one curve, whatever had been written after the checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import pytest

from marlogue.agents import Completion
from marlogue.algorithms.checkpoints import CheckpointStore
from marlogue.algorithms.log_position import go_back
from marlogue.algorithms.reporter import Reporter
from marlogue.algorithms.sample import Joint, Sample
from marlogue.algorithms.sample_table import SampleTable
from tests.algorithms.test_log_files import events_of, rows_of, steps_of, table_of
from tests.support.faults import CALLS, Faults, disk_full, in_child, kill

CONFIG = {"verbose": False, "num_transcripts": 1}


def sample_of(item: int) -> Sample:
    action = Completion((1,), (2, 3), f"answer {item} é", False)
    joint = Joint((f"question {item}",), (action.text,), (action,))
    return Sample(
        agent="agent_0",
        agent_idx=0,
        turn_idx=0,
        generation_idx=0,
        item_idx=item,
        item={},
        joint=joint,
        action=action,
        reward=float(item),
        value=item / 3,
        target=item / 7,
    )


def reporter_of(folder, logging_steps=3):
    return Reporter(
        logdir=folder,
        wandb_config=None,
        metrics_callback=lambda samples: {"seen": float(samples[0].item_idx)},
        logging_steps=logging_steps,
    )


def tell(reporter, items):
    """One item each: one step of the x-axis; a figure that comes late, and evaluations."""
    for item in items:
        sample = sample_of(item)
        reporter.collected([sample])
        reporter.learnt([sample])
        reporter.step({"loss": item / 4, **({"late": 1.0} if item > 6 else {})}, "team")
        reporter.latest({"train/rate": float(item)})
        if item % 5 == 4:
            reporter.evaluated({"eval/team/reward": float(item)})
        reporter.report([])


def state_of(reporter, checkpoints):
    """Its state, through JSON; with a checkpoint of its step."""
    table = SampleTable()
    state = reporter.state_dict(table)
    state["samples"] = table.state_dict()
    CheckpointStore(checkpoints, None).save(reporter.env_step, lambda folder: None, {})
    return json.loads(json.dumps(state))


def run(folder, items, *, state=None, save_at=None):
    """A run, which ends as a killed one does: nothing that waits is written."""
    reporter, saved = reporter_of(folder), None
    if state is not None:
        reporter.load_state_dict(state, SampleTable.load(state["samples"]))
    with reporter.run(CONFIG, 100):
        for item in items:
            tell(reporter, [item])
            if item == save_at:
                saved = state_of(reporter, folder / "checkpoints")
        reporter._log.drop_window()
    return saved


def whole(folder, items):
    """The same, undisturbed."""
    reporter = reporter_of(folder)
    with reporter.run(CONFIG, 100):
        tell(reporter, items)


def finish(folder, items, state):
    reporter = reporter_of(folder)
    if state is not None:
        reporter.load_state_dict(state, SampleTable.load(state["samples"]))
    with reporter.run(CONFIG, 100):
        tell(reporter, items)


def scalars_of(folder):
    read = events_of(folder)
    return {t: [(e.step, e.value) for e in read.Scalars(t)] for t in read.Tags()["scalars"]}


def texts_of(folder):
    read = events_of(folder)
    return {t: [e.step for e in read.Tensors(t)] for t in read.Tags()["tensors"]}


def assert_same_logs(one, other):
    for name in ("progress.json", "transcripts.jsonl", "progress.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert table_of(one) == rows_of(one)
    assert scalars_of(one) == scalars_of(other)
    assert texts_of(one) == texts_of(other)
    assert events_of(one).summary_metadata.keys() == events_of(other).summary_metadata.keys()


def log_files_of(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    whole(folder, range(14))
    return folder


class TestOneCurve:
    @pytest.mark.parametrize("saved", [0, 3, 4, 5, 8, 13])
    @pytest.mark.parametrize("more", [0, 1, 4])
    def test_whenever_it_was_saved_and_killed(self, saved, more, undisturbed, tmp_path):
        """At a write and between two (the window is in the checkpoint), before and after figures
        that are new, and evaluations."""
        state = run(tmp_path, range(min(14, saved + 1 + more)), save_at=saved)
        finish(tmp_path, range(saved + 1, 14), state)
        assert_same_logs(tmp_path, undisturbed)
        assert len(list(tmp_path.glob("events*"))) == 1
        assert not list(tmp_path.glob("superseded*"))

    def test_many_times(self, undisturbed, tmp_path):
        state = None
        for item in range(13):
            state = run(tmp_path, range(item, item + 2), state=state, save_at=item)
        finish(tmp_path, range(13, 14), state)
        assert_same_logs(tmp_path, undisturbed)

    def test_torn_lines(self, undisturbed, tmp_path):
        state = run(tmp_path, range(9), save_at=5)
        for name in log_files_of(tmp_path):
            with open(tmp_path / name, "ab") as file:
                file.write(b'{"torn": 1, "li')
        finish(tmp_path, range(6, 14), state)
        assert_same_logs(tmp_path, undisturbed)

    def test_a_table_that_was_lost(self, undisturbed, tmp_path):
        state = run(tmp_path, range(9), save_at=5)
        (tmp_path / "progress.csv").unlink()
        finish(tmp_path, range(6, 14), state)
        assert_same_logs(tmp_path, undisturbed)

    def test_a_full_disk_at_the_checkpoint(self, undisturbed, tmp_path):
        """What waits in memory is in the checkpoint."""
        reporter = reporter_of(tmp_path)
        full = Faults(disk_full, at=1, names=("write",), onwards=True)
        with reporter.run(CONFIG, 100):
            tell(reporter, range(5))
            with full.injected(), pytest.warns(UserWarning, match="cannot be written"):
                tell(reporter, range(5, 9))
            with full.injected():
                table = SampleTable()
                state = reporter.state_dict(table) | {"samples": table.state_dict()}
            reporter._log.drop_window()
        finish(tmp_path, range(9, 14), json.loads(json.dumps(state)))
        assert_same_logs(tmp_path, undisturbed)

    def test_what_is_saved_is_on_disk(self, tmp_path, monkeypatch):
        """Or after a power cut the log would be shorter than its checkpoint knows it."""
        flushed, fsync = set(), os.fsync

        def watched(descriptor):
            flushed.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
            fsync(descriptor)

        reporter = reporter_of(tmp_path)
        with reporter.run(CONFIG, 100):
            tell(reporter, range(5))
            monkeypatch.setattr(os, "fsync", watched)
            reporter.state_dict(SampleTable())
        assert {"progress.json", "transcripts.jsonl"} < flushed
        assert len(flushed) == 3


class TestAnEarlierCheckpoint:
    def test_what_came_later_is_kept_aside(self, undisturbed, tmp_path):
        state = run(tmp_path, range(6), save_at=3)
        later = run(tmp_path, range(4, 6), state=state, save_at=5)
        run(tmp_path, range(6, 10), state=later, save_at=8)
        rows = rows_of(tmp_path)
        (tmp_path / "attention").mkdir()
        for step in (2, 9):
            (tmp_path / "attention" / f"step_{step:08d}.npz").write_text("")
        with pytest.warns(UserWarning, match=r"held from after step 4 .* is now in .*superseded_1"):
            finish(tmp_path, range(4, 14), state)
        assert_same_logs(tmp_path, undisturbed)
        kept = tmp_path / "superseded_1"
        assert rows_of(kept) == [row for row in rows if row["time/joint_actions"] > 4]
        names = [path.name for path in sorted((kept / "checkpoints").iterdir())]
        assert names == ["step_000000006", "step_000000009"]
        assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_000000004"]
        assert [p.name for p in (kept / "attention").iterdir()] == ["step_00000009.npz"]
        assert min(steps_of(kept)) > 4  # TensorBoard reads it, as another run

    def test_each_has_its_own_place(self, tmp_path):
        state = run(tmp_path, range(6), save_at=3)
        for number in (1, 2):
            run(tmp_path, range(4, 10), state=state, save_at=8)
            with pytest.warns(UserWarning, match=f"superseded_{number}"):
                run(tmp_path, range(4, 5), state=state)

    def test_damaged_ones_make_way_too(self, tmp_path):
        """Or a checkpoint of the same step could not be saved again."""
        state = run(tmp_path, range(6), save_at=3)
        (tmp_path / "checkpoints" / "step_000000007").mkdir()
        with pytest.warns(UserWarning, match="superseded_1"):
            finish(tmp_path, range(4, 14), state)
        assert (tmp_path / "superseded_1" / "checkpoints" / "step_000000007").is_dir()

    def test_from_the_beginning(self, undisturbed, tmp_path):
        """A run that was killed before its first checkpoint."""
        run(tmp_path, range(6))
        rows = (tmp_path / "progress.json").read_bytes()
        with pytest.warns(UserWarning, match="superseded_1"):
            finish(tmp_path, range(14), None)
        assert_same_logs(tmp_path, undisturbed)
        assert (tmp_path / "superseded_1" / "progress.json").read_bytes() == rows

    def test_killed_on_the_way(self, undisturbed, tmp_path):
        """Whenever going back is killed, going back again has the same end; and until the later
        checkpoints are away, so are the logs that belong to them."""
        prepared = tmp_path / "prepared"
        state = run(prepared, range(6), save_at=3)
        run(prepared, range(4, 10), state=state, save_at=8)
        sizes = {name: file["size"] for name, file in state["log"]["files"].items()}
        names = (*CALLS, "truncate")
        for number in range(1, 100):
            folder = tmp_path / str(number)
            shutil.copytree(prepared, folder)
            before = {name: (folder / name).stat().st_size for name in sizes}
            with Faults(kill, at=number, names=names).injected(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                code = in_child(lambda folder=folder: go_back(folder, sizes, 4))
            if (folder / "checkpoints" / "step_000000009").exists():
                assert before == {name: (folder / name).stat().st_size for name in sizes}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                finish(folder, range(4, 14), state)
            assert_same_logs(folder, undisturbed)
            if code == 0:
                break
        assert number > 5


class TestOtherPlaces:
    def test_a_branch_in_a_new_folder_begins_there(self, undisturbed, tmp_path):
        state = run(tmp_path / "old", range(9), save_at=5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            finish(tmp_path / "new", range(6, 14), state)
        assert rows_of(tmp_path / "new") == [
            row for row in rows_of(undisturbed) if row["time/joint_actions"] > 6
        ]
        assert table_of(tmp_path / "new") == rows_of(tmp_path / "new")
        wanted = {tag: [e for e in v if e[0] > 6] for tag, v in scalars_of(undisturbed).items()}
        assert scalars_of(tmp_path / "new") == {tag: v for tag, v in wanted.items() if v}

    def test_a_folder_that_was_moved(self, undisturbed, tmp_path):
        state = run(tmp_path / "old", range(9), save_at=5)
        os.rename(tmp_path / "old", tmp_path / "new")
        finish(tmp_path / "new", range(6, 14), state)
        assert_same_logs(tmp_path / "new", undisturbed)

    def test_a_log_that_is_shorter_than_it_was(self, tmp_path):
        state = run(tmp_path, range(9), save_at=8)
        os.truncate(tmp_path / "progress.json", 10)
        with pytest.warns(UserWarning, match=r"progress.json was longer at the checkpoint"):
            finish(tmp_path, range(9, 14), state)


def test_samples_that_wait_are_shown_once(tmp_path):
    """Items of which a sample waits in a buffer are shown to the callback later."""
    table = SampleTable()
    reporter = reporter_of(tmp_path, logging_steps=1)
    with reporter.run(CONFIG, 100):
        first, second = sample_of(1), sample_of(2)
        reporter.collected([first])
        reporter.collected([second])
        reporter.report([[second]])
        waiting = table.add([second])
        state = reporter.state_dict(table) | {"samples": table.state_dict()}
        state = json.loads(json.dumps(state))
        reporter._log.drop_window()
    other = reporter_of(tmp_path, logging_steps=1)
    table = SampleTable.load(state["samples"])
    other.load_state_dict(state, table)
    with other.run(CONFIG, 100):
        other.report([table.get(waiting)])
        other.collected([sample_of(3)])
        other.report([])
    assert [row["seen"] for row in rows_of(tmp_path)] == [1.0, 2.5]
