"""Many environments of a numeric team in one process."""

from functools import partial

import numpy as np
import pytest
from pettingzoo.utils.wrappers import BaseParallelWrapper

from marlogue.algorithms.guidance import Influence
from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import ReplayLayout
from marlogue.algorithms.streams import EVAL, TRAIN, derived_seed
from marlogue.algorithms.team_vector import make_team_vector, team_step
from marlogue.envs import coordination_v0
from tests.support.team_envs import Deserted, Masked, Shift, assert_equal, played


def zeros(vector):
    team = vector.team
    shape = (vector.num_envs, team.num_agents)
    return np.zeros(shape, np.int64) if team.discrete else np.zeros((*shape, team.action_size))


def test_episodes_by_hand():
    vector = make_team_vector(Shift, num_envs=2, seed=5)
    view = vector.reset()
    lengths = [4 + derived_seed(5, TRAIN, e, 0) % 3 for e in range(2)]
    assert lengths == [6, 4]
    assert view.observations.shape == (2, 3, 3)
    assert view.present.tolist() == [[True, True, False]] * 2
    assert not view.observations[:, 2].any()
    # Actions are counted from 1 in the environment: 1 + 2 for ann, 1 + 1 for bob.
    actions = np.array([[2, 1, 3], [0, 0, 3]])
    first = vector.step(actions)
    assert first.rewards.tolist() == [[13, 12, 0], [11, 11, 0]]
    assert first.view is first.after
    assert first.after.present.all()
    second = vector.step(actions)
    assert second.rewards.tolist() == [[23, 22, 24], [21, 21, 24]]
    assert second.terminated.tolist() == [[False, True, False]] * 2
    assert second.after.present.tolist() == [[True, False, True]] * 2
    assert not second.after.observations[:, 1].any()
    vector.step(actions)
    fourth = vector.step(actions)
    assert fourth.over.tolist() == [False, True]
    assert fourth.terminated.tolist() == [[False] * 3, [True, False, False]]
    assert fourth.truncated.tolist() == [[False] * 3, [False, False, True]]
    assert not fourth.after.present[1].any()
    assert fourth.view.present.tolist() == [[True, False, True], [True, True, False]]
    (end,) = fourth.episodes
    assert end[:3] == (1, 0, 4)
    assert end.returns.tolist() == [11 + 21 + 31 + 41, 11 + 21, 24 + 34 + 44]
    assert vector.next_episodes == [1, 2]


def test_after_holds_what_the_environment_showed():
    """A second environment, stepped by hand, shows the same."""
    env = Shift(bob="truncated")
    vector = make_team_vector(Shift, env_kwargs={"bob": "truncated"}, with_state=True, seed=3)
    view = vector.reset()
    shown, _ = env.reset(seed=derived_seed(3, TRAIN, 0, 0))
    over = False
    while not over:
        for i, agent in enumerate(vector.team.agents):
            seen = shown.get(agent, np.zeros(0))
            np.testing.assert_array_equal(view.observations[0, i, : len(seen)], seen)
            assert not view.observations[0, i, len(seen) :].any()
        np.testing.assert_array_equal(view.state[0], np.float32(env.state()))
        acted = [agent in env.agents for agent in vector.team.agents]
        assert view.present[0].tolist() == acted
        step = vector.step(zeros(vector))
        shown, _, _, truncated, _ = env.step(dict.fromkeys(env.agents, 1))
        for i, agent in enumerate(vector.team.agents):
            assert step.truncated[0, i] == truncated.get(agent, False)
            if step.truncated[0, i]:
                size = len(shown[agent])
                np.testing.assert_array_equal(step.after.observations[0, i, :size], shown[agent])
                assert not step.view.observations[0, i].any() or step.over[0]
                shown.pop(agent)
        shown = {agent: seen for agent, seen in shown.items() if agent in env.agents}
        view, over = step.view, step.over[0]


class Lingering(Shift):
    """Goes on to name those that are over, and to say so in every step."""

    def step(self, actions):
        self.agents = list(actions)
        shown, rewards, terminated, truncated, infos = super().step(actions)
        over = [a for a in ("ann", "bob") if a not in self.agents] if self.agents else []
        self.agents = [*self.agents, *over]
        return shown, rewards, {**terminated, **dict.fromkeys(over, True)}, truncated, infos


def test_who_is_over_does_not_come_back():
    """Bob leaves after two steps, whether or not he is named after that."""
    assert_equal(
        played(make_team_vector(Lingering, num_envs=2), 20),
        played(make_team_vector(Shift, num_envs=2), 20),
    )


def test_streams_and_environments_differ():
    seeds = {
        (stream, env): make_team_vector(Shift, num_envs=2, stream=stream).reset().observations[env]
        for stream in (TRAIN, EVAL)
        for env in (0, 1)
    }
    found = list(seeds.values())
    assert all((a != b).any() for i, a in enumerate(found) for b in found[:i])


def test_goes_on_where_another_one_stopped():
    vector = make_team_vector(Shift, num_envs=3)
    played(vector, 16)
    later = make_team_vector(Shift, num_envs=3, first_episode=vector.next_episodes)
    assert_equal(vector.reset(), later.reset())
    assert len(set(vector.next_episodes)) > 1
    again = vector.reset(first_episode=0)
    assert_equal(again, make_team_vector(Shift, num_envs=3).reset())


@pytest.mark.parametrize("discrete", [True, False])
def test_replay_takes_the_steps(discrete):
    kwargs = {"bob": "truncated", "discrete": discrete}
    vector = make_team_vector(Shift, num_envs=3, env_kwargs=kwargs, guidance=True, with_state=True)
    layout = ReplayLayout.of(vector.team, availability=discrete, guidance="advantage", state_size=2)
    buffer = ReplayBuffer(500, layout, num_envs=3, n_step=2, discount=0.5)
    view, *steps = played(vector, 30)
    rng = np.random.default_rng(0)
    for step in steps:  # the actions as `played` drew them
        drawn = rng.random((3, 3, vector.team.action_size), np.float32)
        actions = 2 * drawn - 1
        if discrete:
            actions = (drawn[..., 0] * np.array(vector.team.action_sizes)).astype(np.int64)
        assert step.kept_envs.tolist() == [0, 1, 2]
        buffer.add(team_step(view, actions, step), step.kept_envs)
        buffer.cut(step.lost_envs)
        view = step.view
    assert len(buffer) == 90
    batch = buffer.sample(2000)
    turn, last = batch.state[:, 0].numpy(), batch.next_state[:, 0].numpy()
    bob_acts, bob_counts = batch.present[:, 1].numpy(), batch.next_present[:, 1].numpy()
    np.testing.assert_array_equal(bob_acts, turn < 2)
    # Cut off after turn 1: its worth is bootstrapped there, from what it saw then.
    np.testing.assert_array_equal(bob_counts, (turn < 2) & (last <= 2))
    assert (batch.discounts[:, 1].numpy()[turn == 1] == 0.5).all()
    assert batch.next_observations[turn == 1][:, 1].abs().gt(0).all()
    assert (batch.discounts[:, 0].numpy()[last == 6] == 0).all()  # ann terminates


def test_replay_without_availability():
    vector = make_team_vector(Shift)
    view, actions = vector.reset(), zeros(vector)
    step = vector.step(actions)
    buffer = ReplayBuffer(100, ReplayLayout.of(vector.team))
    buffer.add(team_step(view, actions, step, availability=False))
    assert len(buffer) == 1


def test_masks():
    view = make_team_vector(Masked, num_envs=2).reset()
    everything = [[True, True, True, False], [True, True, False, False], [True] * 4]
    assert view.available[0].tolist() == everything
    vector = make_team_vector(Masked)
    vector.reset()
    step = vector.step(np.array([[0, 0, 0]]))
    assert step.after.available[0].tolist() == [*everything[:2], [False, False, True, False]]
    while not step.over[0]:
        step = vector.step(np.array([[0, 0, 2]]))
        if step.after.present[0, 2]:
            assert step.after.available[0, 2].tolist() == [False, False, True, False]
        assert step.after.available[0, 1].tolist() == everything[1]  # bob's mask allows nothing
    assert make_team_vector(Shift, env_kwargs={"discrete": False}).reset().available is None


class Wrapped(BaseParallelWrapper):
    pass


def test_guidance_of_the_environment_is_found_through_wrappers():
    plain = played(make_team_vector(Shift, guidance=True), 10)
    wrapped = played(make_team_vector(lambda: Wrapped(Shift()), guidance=True), 10)
    assert_equal(plain, wrapped)
    # An action, counted from 1, times the turn in which it is taken.
    rng = np.random.default_rng(0)
    for turn, step in enumerate(plain[1:5]):
        drawn = rng.random((1, 3, 4), np.float32)[0, :, 0] * np.array([3, 2, 4])
        present = [True, turn < 2, turn > 0]
        expected = (drawn.astype(int) + 1) * turn * np.array(present)
        assert step.guidance.tolist() == [expected.tolist()]
    with pytest.raises(ValueError, match=r"guidance \(True\) must be found in the environment"):
        make_team_vector(NoGuidance, guidance=True)


class NoGuidance(Shift):
    guidance = None


class NoState(Shift):
    def state(self):
        raise NotImplementedError


def test_guidance_without_a_state_gets_the_observations():
    calls = []

    def guidance(state, actions, infos):
        calls.append((state, actions, infos))
        return np.zeros(3)

    vector = make_team_vector(NoState, guidance=guidance)
    view = vector.reset()
    vector.step(np.array([[1, 1, 0]]))
    ((state, actions, infos),) = calls
    np.testing.assert_array_equal(state["bob"], view.observations[0, 1])
    assert actions == {"ann": 2, "bob": 2}
    assert infos == {"ann": {"turn": 0}, "bob": {"turn": 0}}
    with pytest.raises(NotImplementedError):
        make_team_vector(NoState, with_state=True).reset()


def test_gradients_are_in_the_units_of_the_networks():
    """One step of a network's action is two of the environment, whose actions go from 0 to 4."""

    def slopes(state, actions, infos):
        return {"ann": [3.0, -1.0], "bob": [5.0]}

    vector = make_team_vector(Shift, env_kwargs={"discrete": False}, guidance=slopes)
    vector.reset()
    step = vector.step(zeros(vector))
    assert step.guidance.tolist() == [[[6, -2], [10, 0], [0, 0]]]

    def ragged(state, actions, infos):
        return [[3.0, -1.0], [5.0], [7.0, 7.0]]  # cy is absent: dropped

    again = make_team_vector(Shift, env_kwargs={"discrete": False}, guidance=ragged)
    again.reset()
    assert_equal(again.step(zeros(vector)).guidance, step.guidance)

    def advantages(state, actions, infos):
        return [3.0, 5.0, 7.0]

    advantage = make_team_vector(Shift, env_kwargs={"discrete": False}, guidance=advantages)
    advantage.reset()
    assert advantage.step(zeros(vector)).guidance.tolist() == [[3, 5, 0]]


@pytest.mark.parametrize("exact", [False, True])
def test_influence_against_loops(exact):
    rng = np.random.default_rng(0)
    x, reference, z = rng.normal(size=5), rng.normal(size=5), rng.normal(size=(3, 4, 5))
    vector = make_team_vector(Shift, guidance=lambda *_: Influence(x, reference, z, exact))
    vector.reset()
    taken = [2, 1, 3]
    found = vector.step(np.array([taken])).guidance
    assert found.shape == (1, 3, 4)
    for i, a in np.ndindex(2, 4):
        if exact:
            moved = x - z[i, taken[i]] + z[i, a]
            expected = -sum((m - r) ** 2 for m, r in zip(moved, reference, strict=True)) / 2
        else:
            expected = -sum((x[s] - reference[s]) * z[i, a, s] for s in range(5))
        assert found[0, i, a] == pytest.approx(expected, rel=1e-5)
    assert not found[0, 2].any()


def unlike(state, actions, infos):
    return np.zeros(3) if state[0] else np.zeros((3, 4))


@pytest.mark.parametrize(
    ("guidance", "message"),
    [
        (lambda *_: [0.0, np.nan, 0.0], "gave nan for bob in environment 0"),
        (lambda *_: np.zeros(4), r"shape \(4,\), which must be \(1, 3\)"),
        (lambda *_: {"dee": 1.0}, "who are not of the team"),
        (lambda *_: Influence(np.zeros(2), np.zeros(2), np.zeros((3, 4, 1))), "an Influence of"),
        (lambda *_: 1 / 0, "division by zero"),
    ],
)
def test_wrong_guidance(guidance, message):
    vector = make_team_vector(Shift, guidance=guidance)
    vector.reset()
    with pytest.raises((ValueError, ZeroDivisionError), match=message) as caught:
        vector.step(zeros(vector))
    where = "while playing step 0 (counted from 0) of episode 0 in environment 0"
    assert where in caught.value.__notes__


def test_guidance_is_always_of_one_kind():
    vector = make_team_vector(Shift, guidance=unlike)
    vector.reset()
    vector.step(zeros(vector))
    with pytest.raises(ValueError, match="give the same kind always"):
        vector.step(zeros(vector))


def test_exact_distance_is_for_discrete_actions():
    exact = Influence(np.zeros(1), np.zeros(1), np.zeros((3, 2, 1)), exact=True)
    vector = make_team_vector(Shift, env_kwargs={"discrete": False}, guidance=lambda *_: exact)
    vector.reset()
    with pytest.raises(ValueError, match="must be False for continuous"):
        vector.step(zeros(vector))


FAULTS = {
    "observation": "observation of cy .number 0 is nan. must be finite",
    "reward": "reward of ann .inf. must be a finite number",
    "state": "env.state.. .number 0 is inf. must be finite",
    "raise": "no such lever",
    "vanish": "no longer has ann, which must then be terminated or truncated",
    "blind": "must hold one of ann, who acts next",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_place(fault):
    vector = make_team_vector(Shift, env_kwargs={"faulty": fault}, with_state=True)
    vector.reset()
    vector.step(zeros(vector))
    with pytest.raises((ValueError, LookupError), match=FAULTS[fault]) as caught:
        vector.step(zeros(vector))
    assert "while playing step 1 (counted from 0) of episode 0 in environment 0" in (
        caught.value.__notes__
    )
    with pytest.raises(RuntimeError, match="call reset"):
        vector.step(zeros(vector))
    assert vector.reset().present.any()
    assert vector.next_episodes == [2]


def test_nobody_there():
    vector = make_team_vector(Deserted, num_envs=2, seed=4)
    seed = derived_seed(4, TRAIN, 0, 0)
    with pytest.raises(ValueError, match=r"env.agents \(\[\]\) must name who acts") as caught:
        vector.reset()
    assert f"resetting environment 0 for episode 0 with seed {seed}" in str(caught.value.__notes__)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((1, 3)), r"must be integers of the shape \(1, 3\)"),
        (np.zeros((2, 3), int), r"of the shape \(1, 3\)"),
        (np.array([[0, 2, 0]]), r"actions of bob in environment 0 \(2\)"),
        (np.array([[-1, 0, 0]]), r"actions of ann in environment 0 \(-1\)"),
    ],
)
def test_wrong_actions(actions, message):
    vector = make_team_vector(Shift)
    with pytest.raises(RuntimeError, match="call reset"):
        vector.step(actions)
    vector.reset()
    with pytest.raises(ValueError, match=message):
        vector.step(actions)
    vector.step(np.array([[0, 0, 77]]))  # cy is absent
    continuous = make_team_vector(Shift, env_kwargs={"discrete": False})
    continuous.reset()
    with pytest.raises(ValueError, match=r"of ann in environment 0 .* must be finite"):
        continuous.step(np.full((1, 3, 2), np.nan))


def test_an_environment_is_played_as_it_is():
    env = Shift()
    with make_team_vector(env) as vector:
        vector.reset()
        vector.step(zeros(vector))
    assert env.turn == 1
    assert not env.closed
    copies = make_team_vector(env, num_envs=2)
    assert_equal(played(copies, 9), played(make_team_vector(Shift, num_envs=2), 9))
    assert env.turn == 1
    copies.close()
    copies.close()
    with pytest.raises(RuntimeError, match="closed"):
        copies.reset()


def one_env(env=Shift()):  # noqa: B008, the same one at each call
    return env


def growing(made=[]):  # noqa: B006
    made.append(None)
    return Shift(discrete=len(made) % 2 == 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(make_team_vector, 3), TypeError, "must be a PettingZoo ParallelEnv"),
        (partial(make_team_vector, lambda: 3), TypeError, "but made 3"),
        (partial(make_team_vector, one_env, num_envs=2), ValueError, "a second time"),
        (partial(make_team_vector, growing, num_envs=2), ValueError, "environment 1 .agents"),
        (partial(make_team_vector, Shift(), env_kwargs={"bob": ""}), ValueError, "env_kwargs"),
        (
            partial(make_team_vector, coordination_v0.parallel_env),
            TypeError,
            "fixed number of numbers",
        ),
        (partial(make_team_vector, Shift, num_envs=0), ValueError, r"num_envs \(0\)"),
        (partial(make_team_vector, Shift, seed=-1), ValueError, r"seed \(-1\)"),
        (partial(make_team_vector, Shift, backend="threads"), ValueError, "backend .'threads'."),
        (partial(make_team_vector, Shift, num_workers=2), ValueError, r"num_workers \(2\)"),
        (partial(make_team_vector, Shift, guidance=3), TypeError, r"guidance \(3\) must be"),
        (partial(make_team_vector, Shift, first_episode=[1, 2]), ValueError, "first_episode"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
