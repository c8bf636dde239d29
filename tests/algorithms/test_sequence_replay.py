"""Stretches of episodes for recurrent networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marlogue.algorithms.aac_targets import n_step_targets
from marlogue.algorithms.prioritized_replay import PrioritizedReplayBuffer
from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import ReplayLayout
from marlogue.algorithms.sequence_replay import SequenceReplay
from tests.algorithms.test_replay import LAYOUT, A, D, N, step


def episode(replay, start, length, **last):
    """An episode of observations ``start``, ``start + 1``, ..."""
    last = last or {"truncated": (0, 1)}
    for at in range(start, start + length - 1):
        replay.add(step(at))
    replay.add(step(start + length - 1, **last))


def numbers(tensor):
    return tensor[..., 0, 0].int().tolist()


class TestStretches:
    def test_a_short_episode_is_padded(self):
        """Two steps, of which the second terminates agent 0; length 4 without burn-in."""
        replay = ReplayBuffer(64, LAYOUT, discount=0.5)
        episode(replay, 7, 2, terminated=(0,), truncated=(1,))
        batch = SequenceReplay(replay, 4).sample(32)
        assert batch.observations.shape == (32, 5, N, D)
        whole = numbers(batch.observations)
        starts = [row for row in range(32) if whole[row][0] == 7]
        assert starts
        row = starts[0]
        assert whole[row] == [7, 8, 9, 9, 9]
        assert batch.filled[row].tolist() == [True, True, False, False]
        assert batch.trained[row].tolist() == [True, True, False, False]
        assert batch.stops[row, :2].tolist() == [False, True]
        assert batch.rewards[row].tolist() == [[8, 80], [9, 90], [0, 0], [0, 0]]
        assert batch.discounts[row].tolist() == [[0.5, 0.5], [0.0, 0.5], [0, 0], [0, 0]]
        assert batch.present[row].tolist() == [[True, True]] * 2 + [[False, False]] * 2
        assert batch.next_present[row].tolist() == [[True] * 2, [False, True]] + [[False] * 2] * 2
        assert batch.starts[row].item()

    def test_burn_in_is_shorter_where_the_episode_begins(self):
        """Ten steps, length 2, burn-in 3: real steps come first, those of the burn-in are not
        trained, and each stretch is one run of the episode."""
        replay = ReplayBuffer(64, LAYOUT)
        episode(replay, 0, 10)
        batch = SequenceReplay(replay, 2, burn_in=3).sample(400)
        for row, seen in enumerate(numbers(batch.observations)):
            real = int(batch.filled[row].sum())
            first = seen[batch.trained[row].tolist().index(True)]
            assert seen[: real + 1] == list(range(seen[0], seen[0] + real + 1))
            assert batch.filled[row].tolist() == [at < real for at in range(5)]
            assert first - seen[0] == min(3, first)
            assert int(batch.trained[row].sum()) == min(2, 10 - first)
            assert batch.starts[row].item() == (seen[0] == 0)
            assert batch.stops[row, real - 1]

    def test_no_stretch_crosses_an_end_or_what_was_overwritten(self):
        replay = ReplayBuffer(24, LAYOUT)
        for start in (100, 200, 300, 400, 500):
            episode(replay, start, 9)
        batch = SequenceReplay(replay, 6, burn_in=4).sample(500)
        held = set(replay.sample(2000).observations[:, 0, 0].int().tolist())
        for row, seen in enumerate(numbers(batch.observations)):
            real = int(batch.filled[row].sum())
            assert {number // 100 for number in seen} == {seen[0] // 100}
            assert set(seen[:real]) <= held
            drawn = replay.ring.store["observations"][batch.serials[row] % 24, 0, 0]
            assert drawn in [s for s, on in zip(seen, batch.trained[row], strict=False) if on]
            assert seen[: real + 1] == list(range(seen[0], seen[0] + real + 1))

    def test_the_ends_of_an_episode_are_trained_on_half_as_often_at_least(self):
        replay = ReplayBuffer(256, LAYOUT)
        episode(replay, 0, 40)
        batch = SequenceReplay(replay, 8).sample(4000)
        steps = batch.observations[:, :-1, 0, 0][batch.trained].int()
        counts = torch.bincount(steps, minlength=40).double()
        assert counts.min() > 0.45 * counts[16:24].mean()

    def test_n_step_targets_of_stretches(self):
        """Rewards 1, 2, 3, values 100 and gamma 1/2; cut off after three steps, n = 2:
        1 + 2/2 + 100/4, 2 + 3/2 + 100/4, 3 + 100/2."""
        replay = ReplayBuffer(64, LAYOUT, discount=0.5)
        episode(replay, 0, 3)
        batch = SequenceReplay(replay, 5).sample(16)
        row = next(r for r, seen in enumerate(numbers(batch.observations)) if seen[0] == 0)
        values = torch.full_like(batch.rewards, 100.0)
        found = n_step_targets(batch.rewards, batch.discounts, values, batch.stops, 2)[row, :, 0]
        assert found[:3].tolist() == [27.0, 28.5, 53.0]

    def test_priorities_draw_stretches_around_a_step(self):
        replay = PrioritizedReplayBuffer(64, LAYOUT, alpha=1.0)
        episode(replay, 0, 20)
        errors = np.zeros(20)
        errors[13] = 1e6
        replay.update_priorities(np.arange(20), errors)
        batch = SequenceReplay(replay, 4).sample(50)
        assert (batch.serials == 13).all()
        for row, seen in enumerate(numbers(batch.observations)):
            assert 13 in [s for s, on in zip(seen, batch.trained[row].tolist(), strict=False) if on]

    def test_fields_of_the_layout(self):
        layout = ReplayLayout(
            num_agents=N, observation_size=D, num_actions=A, guidance="advantage", hidden_size=5
        )
        replay = ReplayBuffer(64, layout)
        for at in range(6):
            made = step(at, guidance=np.full((1, N), at), hidden=np.full((1, N, 5), 10.0 * at))
            replay.add(made)
        batch = SequenceReplay(replay, 3).sample(20)
        first = batch.observations[:, 0, 0, 0]
        assert torch.equal(batch.hidden[:, 0, 0], 10 * first)
        assert torch.equal(batch.guidance[:, 0, 0], first)

    def test_errors(self):
        replay = ReplayBuffer(64, LAYOUT)
        with pytest.raises(ValueError, match=r"length \(0\)"):
            SequenceReplay(replay, 0)
        with pytest.raises(ValueError, match=r"burn_in \(-1\)"):
            SequenceReplay(replay, 1, -1)
        with pytest.raises(ValueError, match="the replay buffer is empty"):
            SequenceReplay(replay, 1).sample(1)
