"""What every backend with workers has to stand, on environments of `team_envs`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import ReplayLayout
from marlogue.algorithms.streams import TRAIN, derived_seed
from marlogue.algorithms.team_vector import WorkerDiedError, make_team_vector, team_step
from tests.support.team_envs import Shift, assert_equal, played


class OddError(Exception):
    """One that cannot be made again from its pickle."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} is odd")


class Odd(Shift):
    """Raises what cannot be sent."""

    def step(self, actions: Any) -> Any:
        raise OddError(3, 4)


def check_same_rollouts(backend: Any, discrete: bool) -> None:
    kwargs: dict[str, Any] = {
        "num_envs": 3,
        "env_kwargs": {"discrete": discrete, "bob": "truncated"},
        "guidance": True,
        "with_state": True,
        "seed": 2,
    }
    with (
        make_team_vector(Shift, **kwargs) as serial,
        make_team_vector(Shift, **kwargs, backend=backend, num_workers=2) as vector,
    ):
        assert_equal(played(vector, 20), played(serial, 20))
        assert vector.team == serial.team
        assert vector.next_episodes == serial.next_episodes
        assert vector.restarts == 0
    worker = vector._workers[0]
    worker.ask("team")
    with pytest.raises(WorkerDiedError):
        worker.answer()


def check_replaced(backend: Any) -> None:
    """Environment 1 kills its process in its second episode; it shares it with environment 0."""
    deadly = derived_seed(7, TRAIN, 1, 1)
    settings: dict[str, Any] = {"num_envs": 3, "seed": 7, "guidance": True}
    with make_team_vector(Shift, **settings) as serial:
        calm = played(serial, 25)
    with make_team_vector(
        Shift,
        env_kwargs={"deadly": (deadly,)},
        backend=backend,
        num_workers=2,
        max_restarts=1,
        **settings,
    ) as vector:
        with pytest.warns(RuntimeWarning, match=r"worker of environments \[0, 1\] died"):
            found = played(vector, 25)
        assert vector.restarts == 1
        assert len(vector.next_episodes) == 3
        (lost,) = [i for i, step in enumerate(found[1:], 1) if step.lost.any()]
        step = found[lost]
        assert step.lost.tolist() == [True, True, False]
        assert (step.kept_envs.tolist(), step.lost_envs.tolist()) == ([2], [0, 1])
        assert not step.rewards[:2].any()
        assert not step.over.any()
        # Up to there all is as ever, and in environment 2 it goes on like that.
        assert_equal(found[:lost], calm[:lost])
        for one, other in zip(found[lost:], calm[lost:], strict=True):
            assert_equal(one.rewards[2], other.rewards[2])
            assert_equal(one.view.observations[2], other.view.observations[2])
        ends = [end for step in found[1:lost] for end in step.episodes]
        begun = [sum(end.env == env for end in ends) + 1 for env in range(2)]
        assert begun[1] == 2
        with make_team_vector(Shift, **settings, first_episode=[*begun, 0]) as fresh:
            assert_equal(step.view.observations[:2], fresh.reset().observations[:2])
        numbers = [[e.episode for s in found[1:] for e in s.episodes if e.env == i] for i in (0, 1)]
        assert numbers[1][:2] == [0, 2]
        assert begun[0] - 1 not in numbers[0]
        _check_recorded(vector.team, found, lost)


def _check_recorded(team: Any, found: list[Any], lost: int) -> None:
    layout = ReplayLayout.of(team, availability=True, guidance="advantage")
    buffer = ReplayBuffer(200, layout, num_envs=3)
    view, *steps = found
    for step in steps:
        actions = np.zeros((3, 3), np.int64)
        buffer.add(team_step(view, actions, step), step.kept_envs)
        buffer.cut(step.lost_envs)
        view = step.view
    assert len(buffer) == 3 * len(steps) - 2


def check_too_many_restarts(backend: Any) -> None:
    deadly = tuple(derived_seed(0, TRAIN, 0, k) for k in range(3))
    with make_team_vector(
        Shift, env_kwargs={"deadly": deadly}, backend=backend, max_restarts=1
    ) as vector:
        vector.reset()
        act = np.zeros((1, 3), np.int64)
        vector.step(act)
        with pytest.warns(RuntimeWarning, match="restart 1 of at most 1"):
            assert vector.step(act).lost.all()
        vector.step(act)
        with pytest.raises(RuntimeError, match=r"must not be more than max_restarts \(1\)"):
            vector.step(act)


def check_exceptions(backend: Any) -> None:
    act = np.zeros((2, 3), np.int64)
    with make_team_vector(
        Shift, num_envs=2, env_kwargs={"faulty": "raise"}, backend=backend, num_workers=1
    ) as vector:
        vector.reset()
        vector.step(act)
        with pytest.raises(LookupError, match="no such lever") as caught:
            vector.step(act)
        assert caught.value.__notes__ == [
            "while playing step 1 (counted from 0) of episode 0 in environment 0"
        ]
        there = str(caught.value.__cause__)
        assert 'raise LookupError("no such lever")' in there
        assert "in step" in there
        assert vector.restarts == 0
        # Nothing of it is left over: both begin anew.
        with make_team_vector(Shift, num_envs=2, first_episode=1) as fresh:
            view = vector.reset()
            assert view.observations.flags.writeable
            assert_equal(view, fresh.reset())
            assert_equal(vector.step(act), fresh.step(act))


def check_odd_exceptions(backend: Any) -> None:
    with make_team_vector(Odd, backend=backend) as vector:
        vector.reset()
        with pytest.raises(RuntimeError, match=r"(?s)OddError: 3 is odd.*environment 0"):
            vector.step(np.zeros((1, 3), np.int64))
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        make_team_vector(Shift, env_kwargs={"speed": 3}, backend=backend)
