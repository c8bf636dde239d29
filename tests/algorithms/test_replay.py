"""Replay against numbers worked out by hand and against a loop over remembered episodes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marlogue.algorithms.prioritized_replay import PrioritizedReplayBuffer
from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import ReplayLayout, TeamStep

N, D, A = 2, 3, 4
LAYOUT = ReplayLayout(num_agents=N, observation_size=D, num_actions=A)


def step(number, *, terminated=(), truncated=(), present=(0, 1), envs=1, reward=None, **fields):
    """Observation ``number``, action ``number % A``, reward ``number + 1`` (agent 1: ten times),
    followed by observation ``number + 1``; each environment e has e * 1000 added."""
    base = np.arange(envs)[:, None, None] * 1000.0
    rewards = np.array([[number + 1.0, 10.0 * (number + 1)]]) if reward is None else reward
    who = [[i in which for i in range(N)] for which in (terminated, truncated, present)]
    ends, cuts, here = (np.tile(np.array(w), (envs, 1)) for w in who)
    made = TeamStep(
        observations=np.full((envs, N, D), float(number)) + base,
        actions=np.full((envs, N), number % A),
        rewards=np.tile(rewards, (envs, 1)),
        next_observations=np.full((envs, N, D), number + 1.0) + base,
        terminated=ends,
        truncated=cuts,
        present=here,
    )
    return made._replace(**fields)


def buffer(kind=ReplayBuffer, capacity=64, layout=LAYOUT, **kwargs):
    return kind(capacity, layout, **{"discount": 0.5, **kwargs})


def by_observation(batch):
    """Row of each first observation that was drawn."""
    firsts = batch.observations[:, 0, 0].int().tolist()
    return {first: row for row, first in enumerate(firsts)}


BOTH = pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])


class TestTransitions:
    @BOTH
    def test_one_sample(self, kind):
        replay = buffer(kind)
        replay.add(step(0))
        batch = replay.sample(3)
        assert len(replay) == 1
        assert batch.observations.shape == (3, N, D)
        assert batch.observations.dtype == torch.float32
        assert batch.actions.dtype == torch.int64
        assert batch.rewards[0].tolist() == [1.0, 10.0]
        assert batch.next_observations[0].tolist() == [[1.0] * D] * N
        assert batch.discounts[0].tolist() == [0.5, 0.5]
        assert batch.weights.tolist() == [1.0, 1.0, 1.0]
        assert batch.available is None

    def test_termination_and_truncation(self):
        """Agent 0 terminates, agent 1 is cut off: the future of the latter counts, and only its."""
        replay = buffer()
        replay.add(step(0, terminated=(0,), truncated=(1,)))
        batch = replay.sample(1)
        assert batch.discounts.tolist() == [[0.0, 0.5]]
        assert batch.next_present.tolist() == [[False, True]]
        assert batch.next_observations[0, 1].tolist() == [1.0] * D

    def test_n_steps(self):
        """Three steps, n = 2, gamma = 1/2: 1 + 2/2, 2 + 3/2, 3; the last is cut off at its end."""
        replay = buffer(n_step=2)
        replay.add(step(0))
        replay.add(step(1))
        replay.add(step(2, truncated=(0, 1)))
        batch = replay.sample(64)
        rows = by_observation(batch)
        for first, reward, discount, after in ((0, 2, 0.25, 2), (1, 3.5, 0.25, 3), (2, 3, 0.5, 3)):
            row = rows[first]
            assert batch.rewards[row].tolist() == [reward, 10 * reward]
            assert batch.discounts[row].tolist() == [discount] * 2
            assert batch.next_observations[row, 0, 0].item() == after

    def test_an_agent_that_leaves_early(self):
        """Agent 1 terminates at step 1 and is absent at step 2; n = 3. From step 0: agent 0 has
        1 + 2/2 + 3/4, agent 1 has 10 + 20/2 and no future."""
        replay = buffer(n_step=3)
        replay.add(step(0))
        replay.add(step(1, terminated=(1,)))
        gone = step(2, present=(0,))
        gone.observations[:, 1] = 0
        replay.add(gone)
        batch = replay.sample(64)
        rows = by_observation(batch)
        assert batch.rewards[rows[0]].tolist() == [2.75, 20.0]
        assert batch.discounts[rows[0]].tolist() == [0.125, 0.0]
        assert batch.next_present[rows[0]].tolist() == [True, False]
        assert batch.present[rows[2]].tolist() == [True, False]
        assert batch.rewards[rows[2]].tolist() == [3.0, 0.0]
        assert batch.discounts[rows[2]].tolist() == [0.5, 0.0]

    def test_an_agent_that_is_cut_off_alone_bootstraps_there(self):
        """Agent 1 is cut off at step 0 while agent 0 goes on: both windows end there, and what
        agent 1 saw last is still known although it sends zeros from then on."""
        replay = buffer(n_step=3)
        replay.add(step(0, truncated=(1,)))
        gone = step(1, present=(0,), terminated=(0,))
        gone.observations[:, 1] = 0
        replay.add(gone)
        batch = replay.sample(64)
        row = by_observation(batch)[0]
        assert batch.rewards[row].tolist() == [1.0, 10.0]
        assert batch.discounts[row].tolist() == [0.5, 0.5]
        assert batch.next_observations[row, 1].tolist() == [1.0] * D
        assert batch.next_present[row].tolist() == [True, True]

    def test_an_agent_that_comes_later_brings_its_observation(self):
        replay = buffer()
        alone = step(0, present=(0,))
        alone.next_observations[:, 1] = 0
        replay.add(alone)
        replay.add(step(1))
        batch = replay.sample(64)
        assert batch.observations[by_observation(batch)[1], 1].tolist() == [1.0] * D

    def test_all_fields(self):
        layout = ReplayLayout(
            num_agents=N, observation_size=D, num_actions=A, availability=True,
            guidance="values", state_size=2, hidden_size=5, observation_dtype="float16",
        )  # fmt: skip
        can, later = np.zeros((1, N, A), bool), np.ones((1, N, A), bool)
        replay = buffer(layout=layout)
        replay.add(
            step(
                0, available=can, next_available=later, state=np.zeros((1, 2)),
                next_state=np.ones((1, 2)), guidance=np.full((1, N, A), 3.0),
                hidden=np.zeros((1, N, 5)),
            )
        )  # fmt: skip
        batch = replay.sample(1)
        assert not batch.available.any()
        assert batch.next_available.all()
        assert batch.state.tolist() == [[0.0, 0.0]]
        assert batch.next_state.tolist() == [[1.0, 1.0]]
        assert batch.guidance.shape == (1, N, A)
        assert batch.observations.dtype == torch.float32
        per_slot = layout.bytes_per_slot()
        assert replay.ring.nbytes == 64 * per_slot

    def test_continuous_actions(self):
        layout = ReplayLayout(num_agents=N, observation_size=D, num_actions=2, continuous=True)
        replay = buffer(layout=layout)
        replay.add(step(0, actions=np.full((1, N, 2), -0.5)))
        assert replay.sample(1).actions.tolist() == [[[-0.5, -0.5]] * N]


class TestManyEnvironments:
    def record(self, replay, steps, random):
        """Random episodes in two environments, remembered in lists as well."""
        episodes, number, open_ones = [], 0, [None, None]
        for _ in range(steps):
            envs = np.array([0, 1]) if random.random() < 0.7 else random.permutation(2)[:1]
            starts = []
            for env in envs:
                if open_ones[env] is None:
                    open_ones[env] = []
                    episodes.append(open_ones[env])
                    number += 100
                    starts.append(number)
                else:
                    starts.append(open_ones[env][-1][0] + 1)
            ends = random.random((len(envs), 1)) < 0.15
            cuts = random.random((len(envs), 1)) < 0.1
            rewards = random.integers(100, size=(len(envs), N)).astype(float)
            first = np.array(starts, float)[:, None, None] + np.zeros((1, N, D))
            replay.add(
                TeamStep(
                    first, np.zeros((len(envs), N), int), rewards, first + 1,
                    np.repeat(ends, N, 1), np.repeat(cuts, N, 1), np.ones((len(envs), N), bool),
                ),
                envs,
            )  # fmt: skip
            for row, env in enumerate(envs):
                open_ones[env].append((starts[row], rewards[row], bool(ends[row, 0])))
                if ends[row, 0] or cuts[row, 0]:
                    open_ones[env] = None
        return episodes

    @BOTH
    @pytest.mark.parametrize("n", [1, 3])
    def test_against_a_loop_with_a_ring_that_wraps_many_times(self, kind, n):
        replay = buffer(kind, capacity=40, n_step=n, num_envs=2)
        episodes = self.record(replay, 300, np.random.default_rng(0))
        wanted = {}
        for episode in episodes:
            for at, (first, _, _) in enumerate(episode):
                window = episode[at : at + n]
                rewards = sum(0.5**k * r for k, (_, r, _) in enumerate(window))
                discount = 0.0 if window[-1][2] else 0.5 ** len(window)
                wanted[first] = (rewards.tolist(), discount, window[-1][0] + 1)
        batch = replay.sample(2000)
        seen = batch.observations[:, 0, 0].int().tolist()
        for row, first in enumerate(seen):
            rewards, discount, after = wanted[first]
            assert batch.rewards[row].tolist() == rewards
            assert batch.discounts[row].tolist() == [discount] * N
            assert batch.next_observations[row, 0, 0].item() == after
        assert len(set(seen)) == len(replay)
        assert 20 <= len(replay) < 40

    def test_each_step_is_drawn_as_often(self):
        replay = buffer(capacity=40, num_envs=2)
        self.record(replay, 100, np.random.default_rng(1))
        firsts = replay.sample(20_000).observations[:, 0, 0].int()
        counts = firsts.unique(return_counts=True)[1]
        expected = 20_000 / len(replay)
        assert len(counts) == len(replay)
        assert (counts - expected).abs().max() < 5 * math.sqrt(expected)

    def test_an_environment_that_rests_until_it_is_overwritten_begins_anew(self):
        replay = buffer(capacity=8, num_envs=2, n_step=3)
        replay.add(step(0, envs=2))
        for number in range(1, 30):
            replay.add(step(number), envs=np.array([0]))
        replay.add(step(7), envs=np.array([1]))
        batch = replay.sample(200)
        row = by_observation(batch)[7]
        assert batch.next_observations[row, 0, 0].item() == 8
        assert batch.rewards[row, 0].item() == 8

    def test_a_cut_ends_an_episode_as_a_truncation(self):
        replay = buffer(n_step=3)
        replay.add(step(0))
        replay.cut()
        replay.add(step(20))
        batch = replay.sample(64)
        row = by_observation(batch)[0]
        assert batch.next_observations[row, 0, 0].item() == 1
        assert batch.discounts[row].tolist() == [0.5, 0.5]


class TestSaving:
    @BOTH
    def test_a_restored_buffer_draws_and_goes_on_the_same(self, kind):
        first, second = buffer(kind, seed=1, n_step=2), buffer(kind, seed=2, n_step=2)
        for number in range(5):
            first.add(step(number))
        if isinstance(first, PrioritizedReplayBuffer):
            first.update_priorities(first.sample(4).serials, np.array([3.0, 1.0, 0.1, 2.0]))
        second.load_state_dict(first.state_dict())
        for replay in (first, second):
            replay.add(step(5, terminated=(0, 1)))
        left, right = first.sample(32), second.sample(32)
        assert torch.equal(left.observations, right.observations)
        assert torch.equal(left.weights, right.weights)
        assert torch.equal(left.rewards, right.rewards)

    def test_another_size_is_refused(self):
        with pytest.raises(ValueError, match=r"capacity of the saved replay \(32\) must be 64"):
            buffer().load_state_dict(buffer(capacity=32).state_dict())
        other = ReplayLayout(num_agents=N, observation_size=D, num_actions=A, state_size=2)
        with pytest.raises(ValueError, match="arrays of the saved replay"):
            buffer().load_state_dict(buffer(layout=other).state_dict())


class TestErrors:
    def refused(self, message, made, layout=LAYOUT):
        replay = buffer(layout=layout)
        with pytest.raises(ValueError, match=message):
            replay.add(made)
        assert len(replay) == 0

    @pytest.mark.parametrize("name", ["observations", "next_observations"])
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_what_is_not_finite_is_named(self, name, value):
        made = step(0)
        getattr(made, name)[0, 1, 2] = value
        self.refused(f"{name} of agent 1 in environment 0, component 2 \\({value}\\)", made)

    def test_rewards_that_are_not_finite(self):
        made = step(0, reward=np.array([[0.0, math.nan]]))
        self.refused(r"rewards of agent 1 in environment 0 \(nan\) must be a finite number", made)

    def test_large_numbers_are_finite(self):
        replay = buffer(layout=ReplayLayout(num_agents=N, observation_size=D, num_actions=A))
        made = step(0)
        made.observations[:] = 3e38
        replay.add(made._replace(observations=made.observations.astype(np.float32)))
        assert len(replay) == 1

    def test_numbers_too_large_for_float16(self):
        layout = ReplayLayout(
            num_agents=N, observation_size=D, num_actions=A, observation_dtype="float16"
        )
        made = step(0)
        made.observations[:] = 1e6
        with np.errstate(over="ignore"):
            self.refused("observations, held as float16, of agent 0", made, layout)

    def test_fractions_as_uint8(self):
        layout = ReplayLayout(
            num_agents=N, observation_size=D, num_actions=A, observation_dtype="uint8"
        )
        self.refused("dtype float64, which must be one of integers", step(0), layout)

    @pytest.mark.parametrize("action", [-1, A])
    def test_actions_that_do_not_exist(self, action):
        made = step(0, actions=np.array([[0, action]]))
        self.refused(f"agent 1 in environment 0 \\({action}\\) must be an index from 0 to 3", made)

    def test_actions_beyond_their_range(self):
        layout = ReplayLayout(num_agents=N, observation_size=D, num_actions=1, continuous=True)
        self.refused(r"in \[-1, 1\]", step(0, actions=np.array([[[0.0], [1.5]]])), layout)

    def test_shapes(self):
        self.refused(
            r"observations has the shape \(1, 2, 4\), which must be \(1, 2, 3\)",
            step(0, observations=np.zeros((1, N, D + 1))),
        )
        self.refused("2 rows for 1 environments", step(0, envs=2))

    def test_fields_that_the_layout_has_or_has_not(self):
        self.refused("state must be None", step(0, state=np.zeros((1, 2))))
        layout = ReplayLayout(num_agents=N, observation_size=D, num_actions=A, state_size=2)
        self.refused(r"state \(None\) must be given", step(0), layout)

    def test_a_step_that_does_not_go_on_where_the_last_one_ended(self):
        replay = buffer()
        replay.add(step(0))
        with pytest.raises(ValueError, match=r"agent 0 in environment 0 .*call cut\(\)"):
            replay.add(step(5))
        replay.add(step(1))
        assert len(replay) == 2

    def test_environments(self):
        replay = buffer(num_envs=2)
        with pytest.raises(ValueError, match="different numbers from 0 to 1"):
            replay.add(step(0), envs=np.array([2]))
        with pytest.raises(ValueError, match="different numbers from 0 to 1"):
            replay.add(step(0, envs=2), envs=np.array([1, 1]))

    def test_draws(self):
        replay = buffer()
        with pytest.raises(ValueError, match="the replay buffer is empty"):
            replay.sample(1)
        replay.add(step(0))
        with pytest.raises(ValueError, match=r"batch_size \(0\)"):
            replay.sample(0)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"capacity": 3}, r"capacity \(3\) must be at least 4"),
            ({"num_envs": 0}, r"num_envs \(0\)"),
            ({"n_step": 0}, r"n_step \(0\)"),
            ({"discount": 1.1}, r"discount \(1.1\)"),
        ],
    )
    def test_settings(self, changes, message):
        with pytest.raises(ValueError, match=message):
            buffer(**changes)

    def test_layouts(self):
        with pytest.raises(ValueError, match=r"availability \(True\) must be False"):
            ReplayLayout(num_agents=1, continuous=True, availability=True)
