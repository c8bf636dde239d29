"""Traces of attention: means that leave absent agents out, files, and recording within limits."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from marlogue.algorithms.attention_recorder import AttentionRecorder
from marlogue.algorithms.attention_trace import (
    AttentionTrace,
    list_traces,
    partners,
    trace_path,
)

NAMES = ("hunter", "gatherer", "ghost")


def three_steps() -> AttentionTrace:
    """Two heads; the ghost is there in step 0 alone, after which the other two have no choice."""
    weights = np.zeros((3, 2, 3, 3), np.float32)
    weights[0, 0] = [[0, 0.5, 0.5], [0.5, 0, 0.5], [1, 0, 0]]
    weights[0, 1] = [[0, 0.25, 0.75], [1, 0, 0], [1, 0, 0]]
    weights[1:, :, 0, 1] = weights[1:, :, 1, 0] = 1.0
    weights[1:, :, 2] = np.nan  # whatever stands there must not count
    weights[1:, :, :, 2] = np.nan
    present = np.array([[True, True, True], [True, True, False], [True, True, False]])
    return AttentionTrace(
        NAMES, weights, present, np.ones((3, 3), np.float32), num_heads=2, about="a test"
    )


def recorded(steps: int, count: int, heads: int, **kwargs) -> AttentionTrace:
    """Weights of step t are all t (which no softmax gives, but tells steps apart)."""
    recorder = AttentionRecorder([f"a{i}" for i in range(count)], **kwargs)
    for step in range(steps):
        head = np.arange(heads, dtype=np.float32)[:, None, None]
        weights = np.full((heads, count, count), step, np.float32) + head
        wanted = recorder.wants_weights
        recorder.add(weights if wanted else None, np.ones(count, bool), np.full(count, step))
    return recorder.trace()


class TestMeans:
    def test_absent_agents_are_left_out(self):
        """hunter to gatherer: 0.375, 1, 1; to the ghost, seen once: 0.625."""
        mean = three_steps().mean_weights()
        assert mean[0, 1] == pytest.approx((0.375 + 1 + 1) / 3)
        assert mean[0, 2] == pytest.approx(0.625)
        assert mean[2].tolist()[:2] == [1.0, 0.0]
        assert np.isnan(np.diagonal(mean)).all()

    def test_one_head(self):
        assert three_steps().mean_weights(1)[0, 2] == pytest.approx(0.75)
        assert three_steps().mean_weights(0)[1, 2] == pytest.approx(0.5)

    def test_of_a_step(self):
        first, last = three_steps().weights_at(0), three_steps().weights_at(2)
        assert first[0, 1] == pytest.approx(0.375)
        assert last[0, 1] == 1.0
        assert np.isnan(last[0, 2])
        assert np.isnan(last[2, 0])

    def test_who_never_met(self):
        trace = AttentionTrace(
            ("a", "b"),
            np.zeros((2, 1, 2, 2), np.float32),
            np.array([[True, False], [False, True]]),
            np.zeros((2, 2)),
        )
        assert np.isnan(trace.mean_weights()).all()
        assert trace.entropies() == ([], [])
        assert math.isnan(trace.uniform())
        assert partners(trace.mean_weights(), 3) == [[], []]

    def test_entropies_of_those_with_a_choice(self):
        """Step 0 alone offers two others: head 0 ln 2, ln 2, 0; head 1 0.562335, 0, 0."""
        nats, shares = three_steps().entropies()
        entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
        assert nats == pytest.approx([2 * math.log(2) / 3, entropy / 3])
        assert shares == pytest.approx([2 / 3, entropy / 3 / math.log(2)])

    def test_uniform_level(self):
        """Three agents at 1/2 and twice two agents at 1."""
        assert three_steps().uniform() == pytest.approx((3 * 0.5 + 2 * 1 + 2 * 1) / 7)

    def test_partners_from_the_strongest_on(self):
        assert partners(three_steps().mean_weights(), 1) == [[1], [0], [0]]
        assert partners(three_steps().mean_weights(), 9) == [[1, 2], [0, 2], [0, 1]]


class TestFiles:
    def test_all_comes_back(self, tmp_path: Path):
        trace = AttentionTrace(
            ("Ünï", "b"),
            np.random.default_rng(0).random((2, 1, 2, 2)).astype(np.float16),
            np.array([[True, True], [True, True], [True, False]]),
            np.arange(6, dtype=np.float32).reshape(3, 2),
            actions=np.arange(6).reshape(3, 2),
            positions=np.zeros((3, 2, 2), np.float32),
            landmarks=np.ones((3, 1, 2), np.float32),
            landmark_names=("prey",),
            stride=2,
            num_heads=4,
            heads_averaged=True,
            about="none",
        )
        trace.save(tmp_path / "new" / "trace.npz")
        read = AttentionTrace.load(tmp_path / "new" / "trace.npz")
        for name, value in vars(trace).items():
            again = getattr(read, name)
            if isinstance(value, np.ndarray):
                assert again.dtype == value.dtype
                np.testing.assert_array_equal(again, value)
            else:
                assert (again, type(again)) == (value, type(value)), name
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["trace.npz"]

    def test_what_is_missing_stays_missing(self, tmp_path: Path):
        three_steps().save(tmp_path / "trace.npz")
        read = AttentionTrace.load(tmp_path / "trace.npz")
        assert read.actions is None
        assert read.positions is None
        assert read.landmarks is None
        assert read.landmark_names == ()

    def test_a_file_says_what_was_left_out(self, tmp_path: Path):
        """For whoever opens it without this library."""
        recorded(11, 4, 2, max_bytes=6 * 16 * 2).save(tmp_path / "trace.npz")
        with np.load(tmp_path / "trace.npz") as content:
            assert str(content["kept"]) == (
                "weights of every 4th step only, mean of 2 heads only, half precision"
            )
            assert content["stride"] == 4
            assert content["names"].tolist() == ["a0", "a1", "a2", "a3"]

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
    def test_torn(self, tmp_path: Path, share: float):
        path = tmp_path / "trace.npz"
        three_steps().save(path)
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        with pytest.raises(ValueError, match=r"trace\.npz is (not a whole|no) attention trace"):
            AttentionTrace.load(path)

    def test_changed_within(self, tmp_path: Path):
        path = tmp_path / "trace.npz"
        three_steps().save(path)
        content = bytearray(path.read_bytes())
        where = content.index(b"weights.npy") + 60
        content[where : where + 20] = bytes(20)
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a whole attention trace"):
            AttentionTrace.load(path)

    def test_foreign(self, tmp_path: Path):
        np.savez(tmp_path / "other.npz", weights=np.ones(3))
        np.save(tmp_path / "array.npy", np.ones(3))
        (tmp_path / "pickle.npz").write_bytes(pickle.dumps({"weights": 1}))
        for name in ("other.npz", "array.npy", "pickle.npz"):
            with pytest.raises(ValueError, match=f"{name} is no attention trace"):
                AttentionTrace.load(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            AttentionTrace.load(tmp_path / "nothing.npz")

    def test_without_a_field(self, tmp_path: Path):
        three_steps().save(tmp_path / "trace.npz")
        with np.load(tmp_path / "trace.npz") as content:
            fields = {name: content[name] for name in content if name != "rewards"}
        np.savez(tmp_path / "less.npz", **fields)
        with pytest.raises(ValueError, match="it lacks rewards"):
            AttentionTrace.load(tmp_path / "less.npz")

    def test_of_a_later_version(self, tmp_path: Path):
        three_steps().save(tmp_path / "trace.npz")
        with np.load(tmp_path / "trace.npz") as content:
            fields = dict(content)
        np.savez(tmp_path / "later.npz", **{**fields, "version": np.array(99)})
        with pytest.raises(ValueError, match="later version of Marlogue"):
            AttentionTrace.load(tmp_path / "later.npz")

    def test_no_pickle_is_read(self, tmp_path: Path):
        three_steps().save(tmp_path / "trace.npz")
        with np.load(tmp_path / "trace.npz") as content:
            fields = dict(content)
        fields["names"] = np.array(NAMES, dtype=object)
        np.savez(tmp_path / "objects.npz", **fields)
        with pytest.raises(ValueError, match="not a whole attention trace"):
            AttentionTrace.load(tmp_path / "objects.npz")

    def test_of_a_run(self, tmp_path: Path):
        assert list_traces(tmp_path) == {}
        for step in (20, 100000, 3):
            three_steps().save(trace_path(tmp_path, step))
        (tmp_path / "attention" / "step_notes.npz").touch()
        assert trace_path(tmp_path, 12345).name == "step_00012345.npz"
        found = list_traces(tmp_path)
        assert list(found) == [3, 20, 100000]
        assert list_traces(tmp_path / "attention") == found


class TestRecorder:
    def test_all_steps_where_there_is_room(self):
        trace = recorded(20, 3, 2)
        assert trace.weights.shape == (20, 2, 3, 3)
        assert trace.weights.dtype == np.float32
        assert trace.weights[:, 1, 0, 1].tolist() == [step + 1 for step in range(20)]
        assert trace.rewards[:, 0].tolist() == list(range(20))
        assert (trace.kept, trace.stride, trace.num_heads) == ("", 1, 2)

    def test_steps_are_thinned_out_when_memory_is_full(self):
        """Room for 20 steps: at the 20th every second goes, and at the 40th again."""
        size = 4 * 2 * 3 * 3
        assert recorded(19, 3, 2, max_bytes=20 * size).stride == 1
        for steps, stride in ((20, 2), (38, 2), (39, 4), (60, 4)):
            trace = recorded(steps, 3, 2, max_bytes=20 * size)
            assert trace.stride == stride, steps
            assert trace.weights[:, 0, 0, 1].tolist() == list(range(0, steps, stride))
            assert trace.steps.tolist() == list(range(0, steps, stride))
            assert len(trace.rewards) == steps

    def test_precision_goes_before_heads_and_heads_before_steps(self):
        """16 steps of four agents with three heads, in bytes."""
        full, half, mean = (16 * 16 * size for size in (4 * 3, 2 * 3, 2))
        for room, dtype, averaged in (
            (full, np.float32, False),
            (full - 1, np.float16, False),
            (half, np.float16, False),
            (half - 1, np.float16, True),
            (mean // 4, np.float16, True),
        ):
            trace = recorded(3, 4, 3, max_bytes=room)
            assert trace.weights.dtype == dtype
            assert trace.heads_averaged is averaged
            assert trace.num_heads == 3
        assert trace.weights[0, 0, 0, 1] == 1.0  # mean of heads 0, 1, 2

    def test_a_thousand_agents_stay_within_the_limit(self):
        trace = recorded(20, 1000, 2)
        assert trace.weights.nbytes <= 16 * 2**20
        assert trace.kept == "weights of every 4th step only, mean of 2 heads only, half precision"

    def test_a_team_of_any_size_is_recorded(self):
        """Two steps of 3,000 agents take more than the limit; the first one is what stays."""
        trace = recorded(3, 3000, 1)
        assert trace.steps.tolist() == [0]
        assert trace.kept == "weights of every 4th step only, half precision"

    def test_clear_errors(self):
        with pytest.raises(ValueError, match=r"max_bytes \(10\) must be at least 36"):
            AttentionRecorder(NAMES, max_bytes=10)
        recorder = AttentionRecorder(NAMES)
        with pytest.raises(ValueError, match="call add first"):
            recorder.trace()
        with pytest.raises(ValueError, match=r"weights \(None\) must be given for step 0"):
            recorder.add(None, [True] * 3, [0.0] * 3)

    def test_shapes_that_do_not_go_together(self):
        recorder = AttentionRecorder(NAMES)
        recorder.add(np.zeros((2, 3, 3)), [True] * 3, [0.0] * 3, positions=np.zeros((4, 2)))
        with pytest.raises(ValueError, match=r"positions has the shape \(1, 4, 2\), which must"):
            recorder.trace()
