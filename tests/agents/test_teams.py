"""Teams: sizes, types, masks, and what goes to and comes from the environment."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text

from marlogue.agents import TeamSpec
from marlogue.envs import UnicodeText
from tests.support.libraries import needs


def vector(size, **kwargs):
    return Box(-1.0, 1.0, (size,), **kwargs)


def test_unlike_agents():
    observed = {"a": vector(2), "b": Dict({"x": vector(2), "k": Discrete(3)}), "c": vector(2)}
    team = TeamSpec.of_spaces(
        observed, {"a": Discrete(2), "b": Discrete(3, start=-1), "c": Discrete(2)}
    )
    assert team.agents == ("a", "b", "c")
    assert (team.num_agents, team.observation_size, team.action_size) == (3, 5, 3)
    assert team.observation_sizes == (2, 5, 2)
    assert team.action_sizes == (2, 3, 2)
    assert team.types == (0, 1, 0)
    assert len(team.kinds) == 2
    assert team.discrete
    assert team.action_mask().int().tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0]]
    rows, present = team.observe(
        {"b": {"x": np.array([0.5, -0.5], np.float32), "k": 2}, "a": [0.25, 1.0]}
    )
    # gymnasium puts the keys of a dictionary in alphabetic order.
    assert rows.tolist() == [[0.25, 1, 0, 0, 0], [0, 0, 1, 0.5, -0.5], [0] * 5]
    assert rows.dtype == np.float32
    assert present.tolist() == [True, True, False]
    chosen = team.environment_actions(np.array([1, 0, 1]), ["a", "b"])
    assert chosen == {"a": 1, "b": -1}
    assert team.environment_actions(np.array([0, 2, 1])) == {"a": 0, "b": 1, "c": 1}
    assert pickle.loads(pickle.dumps(team)) == team


def test_other_observation_spaces():
    spaces = (Discrete(4), MultiBinary(3), MultiDiscrete([2, 3]), Box(0, 255, (2, 2, 3), np.uint8))
    for space in spaces:
        team = TeamSpec.of_spaces({"a": space}, {"a": Discrete(2)})
        space.seed(0)
        rows, _ = team.observe({"a": space.sample()})
        assert rows.shape == (1, {4: 4, 3: 3, 5: 5, 12: 12}[team.observation_size])
        assert rows.any()


def test_alike_agents():
    """Packed in one go where all are there, one by one otherwise."""
    space = Box(-9.0, 9.0, (2, 2))
    team = TeamSpec.of_spaces(dict.fromkeys("abc", space), dict.fromkeys("abc", Discrete(2)))
    shown = {name: 10.0 * k + np.arange(4).reshape(2, 2) for k, name in enumerate("abc")}
    rows, present = team.observe({name: shown[name] for name in "cab"})
    assert rows.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]
    assert rows.dtype == np.float32
    assert present.all()
    rows, present = team.observe({"c": shown["c"]})
    assert rows.tolist() == [[0] * 4, [0] * 4, [20, 21, 22, 23]]
    assert present.tolist() == team.members(["c"]).tolist() == [False, False, True]
    flat, _ = team.observe({name: seen.tolist() for name, seen in shown.items()})
    assert flat[1].tolist() == [10, 11, 12, 13]
    with pytest.raises(ValueError, match=r"observation of b \(3 numbers\)"):
        team.observe({**shown, "b": np.zeros(3)})
    with pytest.raises(ValueError, match=r"observation of a \(9 numbers\)"):
        team.observe(dict.fromkeys("abc", np.zeros((3, 3))))
    with pytest.raises(ValueError, match=r"observation of c \(number 0 is nan\)"):
        team.observe({**shown, "c": np.full((2, 2), np.nan)})
    with pytest.raises(KeyError, match="'d' is not of the team"):
        team.observe({"a": shown["a"], "b": shown["b"], "d": shown["c"]})
    with pytest.raises(KeyError, match="'d' is not of the team"):
        team.members(["d"])


def test_continuous_actions_are_stretched():
    bounds = Box(np.array([[0.0, -2.0]], np.float32), np.array([[1.0, 6.0]], np.float32))
    team = TeamSpec.of_spaces({"a": vector(1), "b": vector(1)}, {"a": bounds, "b": vector(1)})
    assert not team.discrete
    assert team.action_sizes == (2, 1)
    chosen = team.environment_actions(np.array([[-1.0, 0.5], [3.0, 9.0]]))
    assert chosen["a"].tolist() == [[0.0, 4.0]]
    assert chosen["a"].dtype == np.float32
    assert chosen["b"].tolist() == [1.0]
    assert all(space.contains(chosen[a]) for a, space in (("a", bounds), ("b", vector(1))))


def test_masks_in_infos():
    team = TeamSpec.of_spaces(
        {"a": vector(1), "b": vector(1)}, {"a": Discrete(2), "b": Discrete(3)}
    )
    assert team.available({}).astype(int).tolist() == [[1, 1, 0], [1, 1, 1]]
    infos = {"b": {"action_mask": np.array([0, 1, 0], np.int8)}, "a": {}, "__common__": {}}
    assert team.available(infos).astype(int).tolist() == [[1, 1, 0], [0, 1, 0]]
    for mask in ([0, 0, 0], [1, 1]):
        with pytest.raises(ValueError, match=r"infos\['b'\]\['action_mask'\] .* must have 3"):
            team.available({"b": {"action_mask": mask}})


@pytest.mark.parametrize("continuous", [False, True])
def test_a_real_environment(continuous):
    """One kind of agent in mpe2's simple_spread, two in simple_tag."""
    spread = needs("mpe2.simple_spread_v3")
    tag = needs("mpe2.simple_tag_v3")
    env = spread.parallel_env(continuous_actions=continuous)
    team = TeamSpec.of(env)
    assert team.types == (0, 0, 0)
    assert (team.observation_size, team.action_size) == (18, 5)
    seen, _ = env.reset(seed=0)
    rows, present = team.observe(seen)
    assert present.all()
    np.testing.assert_array_equal(rows[1], seen["agent_1"])
    actions = np.zeros((3, 5)) if continuous else np.zeros(3, int)
    chosen = team.environment_actions(actions)
    assert all(env.action_space(agent).contains(chosen[agent]) for agent in team.agents)
    env.step(chosen)
    hunt = TeamSpec.of(tag.parallel_env())
    assert hunt.types == (0, 0, 0, 1)
    assert hunt.observation_sizes == (16, 16, 16, 14)


def test_what_an_observation_must_be():
    team = TeamSpec.of_spaces({"a": vector(2)}, {"a": Discrete(2)})
    with pytest.raises(ValueError, match=r"observation of a \(3 numbers\) must be as its space"):
        team.observe({"a": [1, 2, 3]})
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"observation of a \(number 1 is .*\) must be finite"):
            team.observe({"a": [0, bad]})
    with pytest.raises(KeyError, match="'b' is not of the team"):
        team.observe({"b": [0, 0]})


@pytest.mark.parametrize(
    ("observed", "done", "kind", "message"),
    [
        (UnicodeText(9), Discrete(2), TypeError, "observation space of a .* EmbedObservations"),
        (Text(9), Discrete(2), TypeError, "must hold a fixed number of numbers"),
        (Sequence(Discrete(2)), Discrete(2), TypeError, "must hold a fixed number of numbers"),
        (Box(0, 1, (0,)), Discrete(2), ValueError, "must not be empty"),
        (vector(1), UnicodeText(9), TypeError, "must be Discrete or Box; .* CandidateActions"),
        (vector(1), MultiDiscrete([2, 2]), TypeError, "number the combinations"),
        (vector(1), Box(0, 5, (1,), np.int64), TypeError, "must be of floats; make it Discrete"),
        (vector(1), Box(-np.inf, 1, (1,)), ValueError, "must have finite bounds"),
    ],
)
def test_spaces_that_cannot_be_handled(observed, done, kind, message):
    with pytest.raises(kind, match=message):
        TeamSpec.of_spaces({"a": observed}, {"a": done})


def test_teams_that_cannot_be_handled():
    with pytest.raises(TypeError, match=r"must be all Discrete or all Box"):
        TeamSpec.of_spaces({"a": vector(1), "b": vector(1)}, {"a": Discrete(2), "b": vector(1)})
    with pytest.raises(ValueError, match=r"action_spaces \(of \['b'\]\) must be of the agents"):
        TeamSpec.of_spaces({"a": vector(1)}, {"b": Discrete(2)})
    with pytest.raises(ValueError, match="must name at least one agent"):
        TeamSpec.of_spaces({}, {})
