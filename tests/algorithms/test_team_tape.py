"""Episodes under way that are played again in another vector of environments."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from marlogue.algorithms import team_tape
from marlogue.algorithms.streams import TRAIN, derived_seed
from marlogue.algorithms.team_tape import Running, Tape
from marlogue.algorithms.team_vector import TeamVector, make_team_vector
from marlogue.algorithms.team_views import TeamView, VectorStep
from tests.support.team_envs import Masked, Shift, assert_equal


def drawn(vector: TeamVector, rng: np.random.Generator) -> Any:
    team, E = vector.team, vector.num_envs
    share = rng.random((E, team.num_agents, team.action_size), np.float32)
    if team.discrete:
        return (share[..., 0] * np.array(team.action_sizes)).astype(np.int64)
    return 2 * share - 1


def taped(vector: TeamVector, steps: int, rng: np.random.Generator) -> list[Running]:
    """What is under way after so many steps of random actions."""
    tape = Tape(vector.num_envs, vector.team.num_agents)
    view = vector.reset()
    for _ in range(steps):
        actions = drawn(vector, rng)
        step = vector.step(actions)
        tape.add(actions, step)
        view = step.view
    return tape.running([number - 1 for number in vector.next_episodes], view)


def view_of(shown: Any) -> TeamView:
    return TeamView(np.asarray(shown, np.float32), np.ones((len(shown), 1), np.bool_))


def test_what_is_kept_by_hand():
    """Two environments of one agent; the first one's episode ends with the second step."""
    tape = Tape(2, 1)
    nobody = np.zeros((2, 1), np.bool_)
    for rewards, over in (
        ([[1.0], [2.0]], [0, 0]),
        ([[4.0], [8.0]], [1, 0]),
        ([[16.0]] * 2, [0] * 2),
    ):
        view = view_of([[[0.0]], [[rewards[1][0]]]])
        ended, lost = np.array(over, bool), np.zeros(2, bool)
        step = VectorStep(
            np.array(rewards, np.float32), nobody, nobody, view, ended, view, None, lost, []
        )
        tape.add(np.array(rewards, np.int64) + 100, step)
    first, second = tape.running([7, 3], view)
    assert (first.episode, first.length, second.episode, second.length) == (7, 1, 3, 3)
    assert_equal(first.actions, np.array([[116]]))
    assert_equal(second.actions, np.array([[102], [108], [116]]))
    assert (first.returns.tolist(), second.returns.tolist()) == ([16.0], [26.0])
    assert second.shown.observations.tolist() == [[16.0]]


@pytest.mark.parametrize(
    ("env", "backend"),
    [
        (partial(Shift, bob="truncated"), "serial"),
        (partial(Shift, discrete=False), "serial"),
        (Masked, "serial"),
        (partial(Shift, bob="truncated"), "subprocess"),
    ],
)
@pytest.mark.parametrize("steps", [0, 12])
def test_they_go_on_as_if_nothing_had_been(env, backend, steps):
    settings: dict[str, Any] = {"num_envs": 3, "seed": 5, "guidance": True, "backend": backend}
    rng = np.random.default_rng(1)
    with make_team_vector(env, **settings) as vector, make_team_vector(env, **settings) as other:
        saved = taped(vector, steps, rng)
        assert len({one.length for one in saved}) > 1 or not steps  # in different places
        view, lost = other.resume(saved)
        assert not lost.any()
        assert other.next_episodes == vector.next_episodes
        for number, one in enumerate(saved):
            assert_equal(view.observations[number], one.shown.observations)
        for _ in range(9):
            actions = drawn(vector, rng)
            assert_equal(other.step(actions), vector.step(actions))


def test_no_guidance_is_asked():
    asked = []

    def guidance(state: Any, actions: Any, infos: Any) -> Any:
        asked.append(state)
        return dict.fromkeys(actions, 0.0)

    with make_team_vector(Shift, guidance=guidance) as vector:
        saved = taped(vector, 3, np.random.default_rng(0))
        del asked[:]
        vector.resume(saved)
        assert not asked
        vector.step(drawn(vector, np.random.default_rng(1)))
        assert len(asked) == 1
        assert asked[0][0] == 3  # the state that the step was taken from: turn 3


class Unseeded(Shift):
    """What is seen does not follow from the seed."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed, options)
        self.rng = np.random.default_rng()
        return self.shown(), self.infos()


class Paid(Shift):
    """Only its rewards don't."""

    def step(self, actions: Any) -> Any:
        shown, rewards, *rest = super().step(actions)
        return shown, {a: r + np.random.default_rng().random() for a, r in rewards.items()}, *rest


class Hasty(Shift):
    """Is over after two steps."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed, options)
        self.turns = 2
        return found


class Angry(Shift):
    """Raises in the second step of all episodes but one."""

    def step(self, actions: Any) -> Any:
        if self.turn == 1 and self.seed != derived_seed(0, TRAIN, 0, 1):
            raise LookupError("no such lever")
        return super().step(actions)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Unseeded, "its observations were others"),
        (Paid, "its rewards were others"),
        (Hasty, "it was over after 2 of 3 steps"),
        (Angry, r"it raised LookupError \(no such lever\)"),
    ],
)
def test_one_that_does_not_get_there_is_given_up(other, why):
    with make_team_vector(Shift, num_envs=2) as vector:
        saved = taped(vector, 3, np.random.default_rng(0))
    with make_team_vector(other) as vector:
        message = rf"episode 0 of environment 0, .*up to step 3, .*: {why}.*the next one begins"
        with pytest.warns(RuntimeWarning, match=message):
            view, lost = vector.resume(saved[:1])
        assert lost.tolist() == [True]
        assert vector.next_episodes == [2]
        if other is not Unseeded:
            with make_team_vector(other, first_episode=1) as fresh:
                assert_equal(view, fresh.reset())
                actions = drawn(fresh, np.random.default_rng(0))
                if other is not Paid:
                    assert_equal(vector.step(actions), fresh.step(actions))


def test_a_worker_that_dies_of_it_is_replaced():
    deadly = (derived_seed(0, TRAIN, 1, 0),)
    with make_team_vector(Shift, num_envs=3) as vector:
        saved = taped(vector, 3, np.random.default_rng(0))
    with make_team_vector(
        Shift,
        num_envs=3,
        backend="subprocess",
        num_workers=3,
        env_kwargs={"deadly": deadly},
        max_restarts=1,
    ) as vector:
        with pytest.warns(RuntimeWarning, match=r"worker of environments \[1\] died"):
            view, lost = vector.resume(saved)
        assert lost.tolist() == [False, True, False]
        assert vector.next_episodes == [1, 2, 1]
        assert vector.restarts == 1
        assert_equal(view.observations[2], saved[2].shown.observations)
        vector.step(drawn(vector, np.random.default_rng(0)))


def test_actions_that_are_too_many_are_not_kept(monkeypatch):
    """Room for 24 bytes: one step of three agents."""
    monkeypatch.setattr(team_tape, "MOST_BYTES", 24)
    with make_team_vector(Shift) as vector:
        assert taped(vector, 1, np.random.default_rng(0))[0].actions is not None
        vector.reset(0)
        (one,) = taped(vector, 2, np.random.default_rng(0))
        assert (one.actions, one.length) == (None, 2)
        with pytest.warns(RuntimeWarning, match="its 2 actions were too many to be kept.*begins.$"):
            _, lost = vector.resume([one])
        assert lost.all()
        # A later one that is shorter is kept again.
        assert taped(vector, 1, np.random.default_rng(0))[0].actions is not None


def test_a_tape_goes_on():
    with make_team_vector(Shift, num_envs=2) as vector:
        rng = np.random.default_rng(0)
        saved = taped(vector, 3, rng)
        tape = Tape(2, 3)
        view, _ = vector.resume(saved)
        tape.resume(saved, np.array([False, True]))
        kept, begun = tape.running([0, 1], view)
        assert_equal(kept.actions, saved[0].actions)
        assert_equal(kept.returns, saved[0].returns)
        assert (begun.length, begun.returns.tolist()) == (0, [0.0, 0.0, 0.0])
        actions = drawn(vector, rng)
        step = vector.step(actions)
        tape.add(actions, step)
        kept, begun = tape.running([0, 1], step.view)
        assert kept.actions is not None
        assert begun.actions is not None
        assert_equal(kept.actions[-1], actions[0])
        assert_equal(kept.actions[:-1], saved[0].actions)
        assert_equal(begun.actions, actions[1:])
