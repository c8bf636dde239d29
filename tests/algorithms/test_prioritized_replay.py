"""Prioritised replay against hand-computed probabilities and weights."""

from __future__ import annotations

import numpy as np
import pytest

from marlogue.algorithms.annealing import Anneal
from marlogue.algorithms.prioritized_replay import PrioritizedReplayBuffer
from marlogue.algorithms.priority_tree import PriorityTree
from tests.algorithms.test_replay import LAYOUT, step


def filled(count=3, capacity=64, **kwargs):
    replay = PrioritizedReplayBuffer(capacity, LAYOUT, **kwargs)
    for number in range(count):
        replay.add(step(number))
    return replay


class TestTree:
    @pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 5000, 300_000])
    def test_sums_and_finds_like_a_running_sum(self, size):
        random = np.random.default_rng(size)
        tree, numbers = PriorityTree(size), np.zeros(size)
        for _ in range(5):
            where = random.integers(size, size=50)
            values = np.where(random.random(50) < 0.3, 0.0, random.integers(1, 9, size=50))
            tree.set(where, values)
            numbers[where] = values
        numbers[where[-1]] = 5.0
        tree.set(where[-1:], 5.0)
        assert tree.total == numbers.sum()
        assert np.array_equal(tree.values, numbers)
        points = random.random(500) * tree.total
        wanted = np.searchsorted(numbers.cumsum(), points, side="right")
        assert np.array_equal(tree.find(points), wanted)

    def test_zeros_are_never_found_not_even_at_the_edges(self):
        tree = PriorityTree(300)
        tree.set(np.array([5, 130]), np.array([0.1, 0.2]))
        points = np.array([0.0, 0.1, np.nextafter(tree.total, 0), tree.total])
        assert tree.find(points).tolist() == [5, 130, 130, 130]


class TestWeights:
    def test_by_hand(self):
        """Errors 1, 2, 5 with alpha = 1: P = 1/8, 1/4, 5/8. beta = 1/2 and M = 3: weights
        (3/8)^-.5, (3/4)^-.5, (15/8)^-.5, divided by the largest: 1, 0.707107, 0.447214."""
        replay = filled(alpha=1.0, beta=Anneal(0.5, 0.5), epsilon=1e-12)
        replay.update_priorities(np.array([0, 1, 2]), np.array([1.0, -2.0, 5.0]))
        batch = replay.sample(8000)
        wanted = np.array([1.0, 0.70710678, 0.4472136])
        assert batch.weights.numpy() == pytest.approx(wanted[batch.serials], abs=1e-6)
        # Stratified: within one draw of the probabilities at each end.
        counts = np.bincount(batch.serials)
        assert counts.tolist() == pytest.approx([1000, 2000, 5000], abs=2)

    def test_weights_undo_the_priorities_with_beta_1(self):
        replay = filled(alpha=0.7, beta=Anneal(0.4, 1.0))
        replay.update_priorities(np.array([0, 1, 2]), np.array([0.2, 1.0, 7.0]))
        replay.progress = 1.0
        batch = replay.sample(50_000)
        shares = np.bincount(batch.serials, weights=batch.weights.numpy())
        assert shares / shares.sum() == pytest.approx([1 / 3] * 3, abs=0.001)

    def test_beta_follows_the_progress(self):
        replay = filled(alpha=1.0, beta=Anneal(0.0, 1.0))
        replay.update_priorities(np.array([0, 1, 2]), np.array([1.0, 2.0, 5.0]))
        assert replay.sample(64).weights.unique().tolist() == [1.0]
        replay.progress = 1.0
        assert replay.sample(64).weights.unique().tolist() == pytest.approx([0.2, 0.5, 1.0], 1e-5)

    def test_alpha_0_is_uniform(self):
        replay = filled(alpha=0.0)
        replay.update_priorities(np.array([0, 1, 2]), np.array([0.0, 2.0, 500.0]))
        batch = replay.sample(300)
        assert np.bincount(batch.serials).tolist() == pytest.approx([100] * 3, abs=2)
        assert batch.weights.unique().tolist() == [1.0]


class TestPriorities:
    def test_new_steps_come_as_often_as_the_most_surprising_ever(self):
        replay = filled(alpha=1.0, epsilon=1e-12)
        replay.update_priorities(np.array([0]), np.array([6.0]))
        replay.update_priorities(np.array([0]), np.array([2.0]))
        replay.add(step(3))
        counts = np.bincount(replay.sample(10_000).serials)  # 2, 1, 1 and 6
        assert counts.tolist() == pytest.approx([2000, 1000, 1000, 6000], abs=2)
        held = replay.held_priorities()
        assert (held.min(), held.mean(), held.max()) == pytest.approx((1.0, 2.5, 6.0))

    def test_steps_that_were_overwritten_since_keep_out(self):
        replay = filled(capacity=8, count=4, alpha=1.0, epsilon=1e-12)
        old = replay.sample(16).serials
        for number in range(4, 12):
            replay.add(step(number))
        before = replay.held_priorities()
        replay.update_priorities(old, np.full(16, 50.0))
        assert np.array_equal(replay.held_priorities(), before)
        assert replay.sample(500).serials.min() >= 5

    def test_the_end_of_an_episode_is_no_step(self):
        replay = PrioritizedReplayBuffer(8, LAYOUT)
        for _ in range(20):
            replay.add(step(0, terminated=(0, 1)))
            batch = replay.sample(20)
            assert (batch.observations == 0).all()
            assert (batch.next_observations == 1).all()
        assert len(replay) == 4

    def test_errors(self):
        replay = filled()
        with pytest.raises(
            ValueError, match="2 of 3 steps are not finite; the critic has diverged"
        ):
            replay.update_priorities(np.arange(3), np.array([np.nan, 1.0, np.inf]))
        with pytest.raises(ValueError, match=r"shape \(3, 1\), which must be \(3,\)"):
            replay.update_priorities(np.arange(3), np.ones((3, 1)))
        with pytest.raises(ValueError, match=r"alpha \(-1\) must be at least 0"):
            filled(alpha=-1)
        with pytest.raises(ValueError, match=r"epsilon \(0\) must be above 0"):
            filled(epsilon=0)
