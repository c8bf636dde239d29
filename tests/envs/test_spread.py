"""spread_v0: step by step the game that mpe2 plays, and hand-computed situations."""

import copy
import math
import pickle

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from marlogue.envs import spread_v0
from tests.support.libraries import needs

STILL = 0


def settled(positions, landmarks, **settings):
    """An environment in a given situation, after a step in which nobody pushes."""
    env = spread_v0.parallel_env(num_agents=len(positions), **settings)
    env.reset(seed=0, options={"positions": positions, "landmarks": landmarks})
    return env, env.step(dict.fromkeys(env.agents, STILL))


@pytest.mark.parametrize("num_agents", [1, 3, 7])
@pytest.mark.parametrize("continuous", [False, True])
def test_plays_as_mpe2(num_agents, continuous):
    theirs = needs("mpe2.simple_spread_v3").parallel_env(
        N=num_agents, local_ratio=0.3, continuous_actions=continuous, dynamic_rescaling=False
    )
    ours = spread_v0.parallel_env(
        num_agents=num_agents, local_ratio=0.3, continuous_actions=continuous
    )
    assert ours.possible_agents == theirs.possible_agents
    ours.action_space("agent_0").seed(0)  # one space for all
    overlaps = 0
    for seed in range(4):
        expected, seen = theirs.reset(seed=seed)[0], ours.reset(seed=seed)[0]
        while ours.agents:
            for agent in ours.agents:
                assert ours.observation_space(agent) == theirs.observation_space(agent)
                np.testing.assert_allclose(seen[agent], expected[agent], rtol=1e-5, atol=1e-6)
            actions = {agent: ours.action_space(agent).sample() for agent in ours.agents}
            expected, rewards, ended, cut, _ = theirs.step(actions)
            seen, ours_rewards, ours_ended, ours_cut, _ = ours.step(actions)
            assert ours_rewards == pytest.approx(rewards, rel=1e-9, abs=1e-9)
            assert (ours_ended, ours_cut) == (ended, cut)
            assert ours.agents == theirs.agents
            overlaps += int((ours._apart < 0.3).sum())
    assert ours.cycle == 25
    assert overlaps > 0 or num_agents == 1


class TestByHand:
    def test_a_push_moves_from_the_second_step_on(self):
        env = spread_v0.parallel_env(num_agents=1)
        env.reset(options={"positions": [[0, 0]], "landmarks": [[1, 0]]})
        env.step({"agent_0": 2})
        assert env.velocities.tolist() == [[0.5, 0]]
        assert env.positions.tolist() == [[0, 0]]
        result = env.step({"agent_0": 4})
        np.testing.assert_allclose(env.velocities, [[0.375, 0.5]])
        np.testing.assert_allclose(env.positions, [[0.05, 0]])
        assert result.rewards == {"agent_0": pytest.approx(-0.5 * 0.95)}

    def test_rewards(self):
        """Landmarks at distance 1 and 0; the first two agents overlap, the third is alone."""
        _, result = settled([[0, 0], [0.2, 0], [3, 0]], [[0, 1], [3, 0], [3, 0]], local_ratio=0.25)
        assert list(result.rewards.values()) == pytest.approx([-1.0, -1.0, -0.75], rel=1e-9)

    def test_contact_pushes_apart(self):
        """Overlap 0.1: force 100 x 0.1 (ln(1 + e^100) k = 0.1), velocity 10 x 0.1."""
        env, _ = settled([[0, 0], [0, 0.2]], [[0, 0], [0, 0]])
        np.testing.assert_allclose(env.velocities, [[0, -1], [0, 1]], rtol=1e-9)

    def test_at_the_very_same_place_nothing_is_nan(self):
        env, result = settled([[0, 0], [0, 0]], [[0, 0], [0, 0]])
        assert not env.velocities.any()
        assert result.rewards == {"agent_0": -0.5, "agent_1": -0.5}

    def test_nearest(self):
        env, result = settled(
            [[0, 0], [1, 0], [0, 3], [-1, -1]],
            [[0, 0.5], [4, 4], [0.1, 0], [-2, 0]],
            observe="nearest",
            neighbours=(2, 1),
            half_width=2.0,
        )
        first, third = result.observations["agent_0"], result.observations["agent_2"]
        np.testing.assert_allclose(first, [0, 0, 0, 0, 0.1, 0, 0, 0.5, 1, 0], atol=1e-6)
        np.testing.assert_allclose(third, [0, 0, 0, 1.5, 0, -2.5, 0.1, -3, 0, -3], atol=1e-6)
        assert env.observation_space("agent_0").contains(first)

    def test_places_for_more_than_there_are(self):
        _, result = settled(
            [[0, 0], [1, 0]], [[1, 1], [0, 0]], observe="nearest", neighbours=(3, 2)
        )
        expected = [0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 1, 0, 2, 2]
        np.testing.assert_allclose(result.observations["agent_0"], expected, atol=1e-6)

    def test_nobody_else_to_see(self):
        _, result = settled([[0, 0]], [[1, 1]], observe="nearest", neighbours=(0, 1))
        assert result.observations["agent_0"].tolist() == [0, 0, 0, 0, 2, 2]


@pytest.mark.parametrize("num_agents", [12, 40])
@pytest.mark.parametrize(("places", "people"), [(3, 2), (9, 8)])
def test_nearest_agrees_with_sorting(num_agents, places, people):
    env = spread_v0.parallel_env(
        num_agents=num_agents, observe="nearest", neighbours=(places, people), half_width=None
    )
    seen, _ = env.reset(seed=1)
    assert {len(row) for row in seen.values()} == {4 + 2 * (places + people)}
    for i, row in enumerate(seen.values()):
        own = env.positions[i]
        np.testing.assert_allclose(row[2:4], own / math.sqrt(num_agents / 3), rtol=1e-6)
        landmarks = sorted((env.landmarks - own).tolist(), key=lambda d: math.hypot(*d))
        others = sorted((env.positions - own).tolist(), key=lambda d: math.hypot(*d))[1:]
        expected = np.ravel(landmarks[:places] + others[:people])
        np.testing.assert_allclose(row[4:], expected, rtol=1e-5, atol=1e-6)


def test_the_square_grows_with_the_team():
    env = spread_v0.parallel_env(num_agents=300, half_width=None)
    env.reset(seed=0)
    assert 9.5 < np.abs(env.positions).max() <= 10
    assert 9.5 < np.abs(env.landmarks).max() <= 10


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_agents": 1},
        {"num_agents": 5, "continuous_actions": True, "observe": "nearest", "half_width": None},
    ],
)
class TestConformance:
    def test_parallel_api(self, settings):
        parallel_api_test(spread_v0.parallel_env(**settings), num_cycles=60)

    def test_seeds(self, settings):
        parallel_seed_test(lambda: spread_v0.parallel_env(**settings), num_cycles=30)

    def test_copies_go_on_alike(self, settings):
        env = spread_v0.parallel_env(**settings, render_mode="rgb_array")
        env.reset(seed=3)
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
        results = [one.step(actions) for one in (env, *twins)]
        assert results[0].rewards == results[1].rewards == results[2].rewards
        env.reset()
        twins[0].reset()
        assert np.array_equal(env.state(), twins[0].state())
        assert env.state_space.contains(env.state())
        assert env.render().shape == (256, 256, 3)


class TestFaults:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"num_agents": 0}, r"num_agents \(0\)"),
            ({"local_ratio": 1.5}, r"local_ratio \(1.5\)"),
            ({"observe": "some"}, r"observe \('some'\)"),
            ({"neighbours": (-1, 2)}, r"neighbours \(\(-1, 2\)\)"),
            ({"half_width": 0.0}, r"half_width \(0.0\)"),
            ({"max_cycles": 0}, r"max_cycles \(0\)"),
            ({"render_mode": "human"}, r"render_mode \('human'\)"),
        ],
    )
    def test_arguments(self, settings, message):
        with pytest.raises(ValueError, match=message):
            spread_v0.parallel_env(**settings)

    @pytest.mark.parametrize("wrong", [5, -1, 1.0, None, [1], "up"])
    def test_an_action_that_there_is_not(self, wrong):
        env = spread_v0.parallel_env()
        env.reset(seed=0)
        before = env.state()
        with pytest.raises(ValueError, match="the action of agent_1"):
            env.step({"agent_0": 0, "agent_1": wrong, "agent_2": 0})
        assert np.array_equal(env.state(), before)

    @pytest.mark.parametrize("wrong", [[0.5] * 4, [math.nan] * 5, [1.1, 0, 0, 0, 0], 3])
    def test_a_push_that_there_is_not(self, wrong):
        env = spread_v0.parallel_env(continuous_actions=True)
        env.reset(seed=0)
        fine = np.full(5, 0.5)
        with pytest.raises(ValueError, match="the action of agent_2"):
            env.step({"agent_0": fine, "agent_1": fine, "agent_2": np.array(wrong)})

    def test_agents_and_ends(self):
        env = spread_v0.parallel_env(max_cycles=1)
        with pytest.raises(RuntimeError, match="reset"):
            env.step({})
        env.reset(seed=0)
        with pytest.raises(ValueError, match="agent_2"):
            env.step({"agent_0": 0, "agent_1": 0})
        env.step(dict.fromkeys(env.agents, 0))
        with pytest.raises(RuntimeError, match="reset"):
            env.step(dict.fromkeys(env.possible_agents, 0))

    def test_options(self):
        env = spread_v0.parallel_env()
        with pytest.raises(ValueError, match="landmarks"):
            env.reset(options={"landmarks": [[0, 0]]})
