"""Exploration and running statistics against independent computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marlogue.algorithms.annealing import Anneal
from marlogue.algorithms.exploration import EpsilonGreedy, GaussianNoise
from marlogue.algorithms.normalizers import ObservationNormalizer, RewardScaler


class TestEpsilonGreedy:
    def test_shares_of_actions(self):
        """epsilon = 0.4 over the two available actions of three: 0.8 stay, 0.2 move."""
        explore = EpsilonGreedy(Anneal(0.8, 0.0), seed=3)
        actions = np.zeros((20_000, 2), int)
        available = np.array([[True, False, True], [True, True, True]])
        found = explore(actions, available, progress=0.5)
        assert np.bincount(found[:, 0]) / 20_000 == pytest.approx([0.8, 0.0, 0.2], abs=0.01)
        assert np.bincount(found[:, 1]) / 20_000 == pytest.approx(
            [11 / 15, 2 / 15, 2 / 15], abs=0.01
        )

    def test_nothing_moves_at_0_or_without_a_choice(self):
        actions = np.array([[1, 2]])
        assert EpsilonGreedy(Anneal(0.0, 0.0))(actions, np.ones(3, bool), 0).tolist() == [[1, 2]]
        assert EpsilonGreedy(Anneal(1.0, 1.0))(actions, np.zeros(3, bool), 0).tolist() == [[1, 2]]

    def test_errors(self):
        with pytest.raises(ValueError, match=r"epsilon \(1.5\) must be between 0 and 1"):
            EpsilonGreedy(Anneal(1.5, 0.0))


class TestGaussianNoise:
    def test_scale_and_range(self):
        noise = GaussianNoise(Anneal(0.4, 0.0), seed=1)
        exists = np.array([[True, False]])
        found = noise(np.zeros((50_000, 1, 2), np.float32), exists, progress=0.5)
        assert found.dtype == np.float32
        assert found[:, 0, 0].std() == pytest.approx(0.2, abs=0.005)
        assert not found[:, 0, 1].any()
        wide = GaussianNoise(Anneal(5.0, 5.0))(np.zeros((100, 1, 1)), np.ones(1, bool), 0.0)
        assert np.abs(wide).max() == 1.0

    def test_errors(self):
        with pytest.raises(ValueError, match=r"scale \(-1.0\) of the noise"):
            GaussianNoise(Anneal(-1.0, 0.0))


class TestObservations:
    def test_statistics_of_groups_against_all_rows_at_once(self):
        """Agents 0 and 2 share statistics; absent agents (here NaN) don't count."""
        random = np.random.default_rng(0)
        normalizer = ObservationNormalizer(np.array([0, 1, 0]), 4, clip=100.0)
        rows = {0: [], 1: []}
        for _ in range(20):
            observations = 1e3 + random.normal(size=(5, 3, 4)) * [1, 5, 0.1, 100]
            present = random.random((5, 3)) < 0.7
            for agent, group in enumerate([0, 1, 0]):
                rows[group].append(observations[present[:, agent], agent])
            observations[~present] = math.nan
            normalizer.update(observations, present)
        for group in (0, 1):
            joined = np.concatenate(rows[group])
            assert normalizer.moments.mean[group] == pytest.approx(joined.mean(0), rel=1e-12)
            assert normalizer.moments.variance[group] == pytest.approx(joined.var(0), rel=1e-9)
        given = 1e3 + random.normal(size=(3, 4))
        wanted = (given[1] - joined.mean(0)) / joined.std(0)
        assert normalizer(given)[1] == pytest.approx(wanted, abs=1e-3)
        tensor = normalizer.tensor(torch.tensor(given, dtype=torch.float64))
        assert tensor[1].numpy() == pytest.approx(wanted, abs=1e-3)

    def test_padding_stays_zero_and_extremes_are_clipped(self):
        normalizer = ObservationNormalizer(np.zeros(2, int), 2, clip=3.0)
        normalizer.update(np.array([[[1.0, 0.0], [3.0, 0.0]]]), np.ones((1, 2), bool))
        assert normalizer(np.array([[1.0, 0.0], [99.0, 0.0]])).tolist() == [
            [pytest.approx(-1.0), 0.0], [3.0, 0.0],
        ]  # fmt: skip

    def test_nothing_is_changed_before_the_first_row(self):
        normalizer = ObservationNormalizer(np.zeros(1, int), 2)
        assert normalizer(np.array([[2.0, -1.0]])).tolist() == [[2.0, -1.0]]

    def test_what_is_not_finite_is_named(self):
        normalizer = ObservationNormalizer(np.zeros(2, int), 2)
        observations = np.zeros((3, 2, 2))
        observations[2, 1, 0] = math.nan
        with pytest.raises(ValueError, match="agent 1 in environment 2, component 0"):
            normalizer.update(observations, np.ones((3, 2), bool))

    def test_saving(self):
        first, second = (ObservationNormalizer(np.zeros(1, int), 2) for _ in range(2))
        first.update(np.random.default_rng(0).normal(3, 2, (9, 1, 2)), np.ones((9, 1), bool))
        second(np.zeros((1, 2)))
        second.load_state_dict(first.state_dict())
        assert np.array_equal(second(np.ones((1, 2))), first(np.ones((1, 2))))
        with pytest.raises(ValueError, match=r"shape \(1, 2\), which must be \(1, 3\)"):
            ObservationNormalizer(np.zeros(1, int), 3).load_state_dict(first.state_dict())


class TestRewards:
    def test_scale_by_hand(self):
        """gamma = 1/2. Sums 4, then 2 + 2 = 4, then (a new episode) 1: variance 2."""
        scaler = RewardScaler(1, 1, discount=0.5)
        here = np.ones((1, 1), bool)
        for reward, over in ((4.0, False), (2.0, True), (1.0, False)):
            scaler.update(np.array([[reward]]), here, np.array([over]))
        assert scaler.scale == pytest.approx(math.sqrt(2))
        assert scaler(torch.tensor([2.0])).item() == pytest.approx(math.sqrt(2))

    def test_equal_rewards_stay(self):
        scaler = RewardScaler(2, 1, discount=0.0)
        scaler.update(np.ones((2, 1)), np.ones((2, 1), bool), np.zeros(2, bool))
        assert scaler.scale == 1.0

    def test_absent_agents_and_single_environments(self):
        scaler = RewardScaler(2, 2, discount=0.0)
        present = np.array([[True, False]])
        scaler.update(np.array([[1.0, math.nan]]), present, np.zeros(1, bool), np.array([1]))
        scaler.update(np.array([[3.0, math.nan]]), present, np.zeros(1, bool), np.array([0]))
        assert scaler.scale == pytest.approx(1.0)
        with pytest.raises(ValueError, match=r"rewards of agent 0 in environment 0 \(nan\)"):
            scaler.update(np.array([[math.nan, 0.0]]), present, np.zeros(1, bool), np.array([0]))
