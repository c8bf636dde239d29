"""Subteam: some agents play, the others have policies."""

import copy
import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text
from pettingzoo.test import parallel_api_test, parallel_seed_test

from marlogue.agents.teams import TeamSpec
from marlogue.envs import spread_v0
from marlogue.wrappers import Subteam
from marlogue.wrappers.subteam import UniformPolicy
from tests.support.envs import LeaverEnv
from tests.support.libraries import needs
from tests.support.strangers import EchoGame, TakingTurns


def goes_right(observation):
    return 2


def watched(env, agents, **settings):
    """A spread in which the others go right; and what the environment inside was given."""
    team = Subteam(env, agents, goes_right, **settings)
    given = []
    step = env.step
    env.step = lambda actions: given.append(dict(actions)) or step(actions)
    return team, given


class TestPlayers:
    def test_the_others_act_by_their_policy_and_are_not_seen(self):
        env = spread_v0.parallel_env(num_agents=4)
        team, given = watched(env, ["agent_2", "agent_0"])
        assert team.possible_agents == ["agent_0", "agent_2"]
        shown, infos = team.reset(seed=0)
        assert list(shown) == list(infos) == team.agents == ["agent_0", "agent_2"]
        result = team.step({"agent_2": 1, "agent_0": 3})
        assert given == [{"agent_0": 3, "agent_1": 2, "agent_2": 1, "agent_3": 2}]
        assert list(given[0]) == env.possible_agents
        for part in result:
            assert list(part) == ["agent_0", "agent_2"]
        assert team.state().shape == (24,)
        assert set(team.action_spaces) == {"agent_0", "agent_2"}

    def test_a_pattern_of_names(self):
        env = spread_v0.parallel_env(num_agents=12)
        assert Subteam(env, "agent_1*").possible_agents == ["agent_1", "agent_10", "agent_11"]

    def test_a_policy_for_each_sees_what_its_agent_is_shown(self):
        seen = []
        policies = {
            "agent_0": lambda observation: seen.append(observation) or 0,
            "agent_1": lambda observation, info, rng: int(rng.integers(5)),
        }
        env = spread_v0.parallel_env(num_agents=3)
        team = Subteam(env, ["agent_2"], policies)
        team.reset(seed=1)
        before = env.observe_all()[0]
        team.step({"agent_2": 4})
        np.testing.assert_array_equal(seen[0], before)

    def test_everybody_plays(self):
        team = Subteam(spread_v0.parallel_env(), "*")
        team.reset(seed=0)
        assert len(team.step(dict.fromkeys(team.agents, 0)).rewards) == 3


class TestRandomOthers:
    def test_the_same_seed_gives_the_same_episodes_and_others_differ(self):
        def play(seed):
            env = spread_v0.parallel_env(num_agents=8)
            team, given = Subteam(env, ["agent_0"]), []
            step = env.step
            env.step = lambda actions: given.append(tuple(actions.values())) or step(actions)
            for episode in range(2):
                team.reset(seed=None if episode else seed)
                while team.agents:
                    team.step({"agent_0": 0})
            return given

        first, again, other = play(3), play(3), play(4)
        assert first == again
        assert first != other
        assert first[:25] != first[25:]
        assert len(set(first)) > 40
        counts = np.bincount([action for joint in first for action in joint[1:]], minlength=5)
        assert (np.abs(counts - 70) < 40).all()  # of 350, 5 deviations are 37

    def test_masks_and_bounds(self):
        rng = np.random.default_rng(0)
        info = {"action_mask": np.array([0, 1, 0, 1], np.int8)}
        policy = UniformPolicy(Discrete(4, start=10))
        assert {int(policy(None, info=info, rng=rng)) for _ in range(40)} == {11, 13}
        box = Box(np.array([0, -4], np.float32), np.array([1, -2], np.float32))
        drawn = [UniformPolicy(box)(None, info={}, rng=rng) for _ in range(50)]
        assert all(box.contains(action) for action in drawn)
        assert np.ptp(drawn, axis=0) == pytest.approx([1, 2], abs=0.2)

    @pytest.mark.parametrize("space", [Text(3), Box(-np.inf, np.inf, (2,))])
    def test_what_nothing_can_be_drawn_from(self, space):
        with pytest.raises(TypeError, match="random policy needs"):
            UniformPolicy(space)


class TestEnds:
    def test_the_episode_ends_with_the_last_player(self):
        team = Subteam(LeaverEnv(), ["agent_1"], lambda text: "x")
        team.reset()
        result = team.step({"agent_1": "y"})
        assert result.terminations == {"agent_1": True}
        assert team.agents == []
        with pytest.raises(RuntimeError, match="reset"):
            team.step({})

    def test_players_go_on_without_the_others(self):
        team = Subteam(LeaverEnv(), ["agent_0"], lambda text: "x")
        team.reset()
        rewards = []
        while team.agents:
            rewards.append(team.step({"agent_0": "y"}).rewards["agent_0"])
        assert rewards == [1, 0, 2]

    def test_others_that_wait_are_not_asked(self):
        asked = []
        team = Subteam(TakingTurns(turns=4), ["ann"], lambda text: asked.append(text) or "ant")
        team.reset(seed=0)
        while team.agents:
            team.step({"ann": "bee"})
        assert len(asked) == 2


class TestConformance:
    def make(self):
        return Subteam(spread_v0.parallel_env(num_agents=4, max_cycles=6), ["agent_0", "agent_3"])

    def test_pettingzoo(self):
        parallel_api_test(self.make(), num_cycles=20)
        parallel_seed_test(self.make, num_cycles=20)

    def test_copies_go_on_alike(self):
        team = self.make()
        team.reset(seed=0)
        actions = {"agent_0": 1, "agent_3": 2}
        twins = copy.deepcopy(team), pickle.loads(pickle.dumps(team))
        results = [one.step(actions).rewards for one in (team, *twins)]
        assert results[0] == results[1] == results[2]


class TestFaults:
    @pytest.mark.parametrize("agents", [[], ["agent_9"], "prey_*", ["agent_0", "nobody"]])
    def test_agents(self, agents):
        with pytest.raises(ValueError, match="must be some of agent_0, agent_1, agent_2"):
            Subteam(spread_v0.parallel_env(), agents)

    def test_policies(self):
        env = spread_v0.parallel_env()
        with pytest.raises(ValueError, match="lacks agent_2"):
            Subteam(env, ["agent_0"], {"agent_1": "random"})
        with pytest.raises(ValueError, match="must not hold agent_0"):
            Subteam(env, ["agent_0"], dict.fromkeys(env.possible_agents, "random"))
        with pytest.raises(TypeError, match="others"):
            Subteam(env, ["agent_0"], "randomly")
        with pytest.raises(TypeError, match="random policy needs"):
            Subteam(EchoGame(), ["ann"])

    def test_an_answer_outside_the_action_space(self):
        team = Subteam(spread_v0.parallel_env(), ["agent_0"], lambda seen: 7)
        team.reset(seed=0)
        with pytest.raises(ValueError, match="the policy of agent_1 in others answered 7"):
            team.step({"agent_0": 0})


@pytest.mark.parametrize("continuous", [False, True])
def test_pursuers_of_simple_tag_against_a_random_prey(continuous):
    tag = needs("mpe2.simple_tag_v3")
    team = Subteam(tag.parallel_env(continuous_actions=continuous), "adversary_*")
    spec = TeamSpec.of(team)
    assert spec.agents == ("adversary_0", "adversary_1", "adversary_2")
    assert set(spec.observation_sizes) == {16}
    paths = []
    for _ in range(2):
        shown, _ = team.reset(seed=5)
        path = []
        while team.agents:
            rows, present = spec.observe(shown)
            assert present.all()
            # The prey, seen from the first pursuer, behind two obstacles and two other pursuers.
            path.append(rows[0, 2:4] + rows[0, 12:14])
            still = np.zeros(3, int) if spec.discrete else np.zeros((3, 5))
            shown, *_ = team.step(spec.environment_actions(still, team.agents))
        paths.append(path)
    np.testing.assert_array_equal(paths[0], paths[1])
    assert len(paths[0]) == 25
    assert np.ptp(paths[0], axis=0).max() > 0.1
