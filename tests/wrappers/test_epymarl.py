"""The joint environment, read as EPyMARL's wrapper of Gymnasium environments reads one."""

import runpy

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, flatdim, flatten
from gymnasium.wrappers import TimeLimit

from marlogue.envs import UnicodeText, coordination_v0
from marlogue.wrappers import (
    ActionMask,
    CandidateActions,
    EmbedObservations,
    HashedNgrams,
    UniformEnd,
    View,
)
from marlogue.wrappers.epymarl import JointEnv, register_joint
from tests.support.command_line import ROOT
from tests.support.envs import LeaverEnv
from tests.support.strangers import EchoGame, TakingTurns

WORDS = list(coordination_v0.ANSWERS.values())
SIZE = 8


def numeric(env, candidates=WORDS, **kwargs):
    return EmbedObservations(CandidateActions(env, candidates, **kwargs), HashedNgrams(SIZE))


def coordination(**kwargs):
    return numeric(coordination_v0.parallel_env(**kwargs))


class SilentAtTheEnd(EchoGame):
    """Shows nothing to agents that have ended."""

    def step(self, actions):
        shown, *rest = super().step(actions)
        return ({agent: shown[agent] for agent in self.agents}, *rest)


@pytest.fixture
def gym_id():
    name = "marlogue-test/joint-v0"
    yield name
    gymnasium.registry.pop(name, None)


class Reader:
    """What EPyMARL asks of an environment, in the order in which it asks."""

    def __init__(self, gym_id, time_limit, seed=0, scalarise=sum, **kwargs):
        env = TimeLimit(gymnasium.make(gym_id, **kwargs), max_episode_steps=time_limit)
        self.env, self.scalarise = env, scalarise
        self.n_agents = env.unwrapped.n_agents
        self.num_actions = max(space.n for space in env.action_space)
        self.obs_size = max(flatdim(space) for space in env.observation_space)
        assert not hasattr(env.unwrapped, "state_size")  # else it must be that of all observations
        assert not hasattr(env.unwrapped, "seed")
        env.reset(seed=seed)

    def flat(self, observation):
        spaces = self.env.observation_space
        shown = [flatten(space, one) for space, one in zip(spaces, observation, strict=True)]
        return [np.pad(one, (0, self.obs_size - len(one))) for one in shown]

    def episode(self, policy):
        observation, _ = self.env.reset()
        ended, steps, states, stats = False, [], [], {}
        while not ended:
            states.append(np.concatenate(self.flat(observation)))
            actions = [int(action) for action in policy(self.flat(observation))]
            observation, rewards, done, truncated, info = self.env.step(actions)
            assert isinstance(done, bool)
            assert isinstance(truncated, bool)
            ended = done or truncated
            bootstrapped = done != ended if info.get("episode_limit", False) is False else True
            steps.append((self.scalarise(rewards), bootstrapped))
            stats = {key: stats.get(key, 0) + info.get(key, 0) for key in {*stats, *info}}
        states.append(np.concatenate(self.flat(observation)))
        return steps, states, stats


def test_an_episode_as_epymarl_plays_it(gym_id):
    register_joint(gym_id, coordination, num_turns=2)
    reader = Reader(gym_id, time_limit=5)
    assert (reader.n_agents, reader.num_actions, reader.obs_size) == (2, len(WORDS), SIZE)
    steps, states, stats = reader.episode(lambda _: [1, 1])  # "gold" answers the second cue
    assert steps == [(2.0, False), (2.0, False)]  # both agents' team reward, added up
    assert [state.shape for state in states] == [(2 * SIZE,)] * 3
    assert stats["agent_0_reward"] == 1.0 + 1.0
    assert "agent_0_item" not in stats
    assert all(isinstance(value, bool | int | float) for value in stats.values())


def test_the_last_reward_is_kept_where_nothing_is_shown_at_the_end(gym_id):
    register_joint(gym_id, lambda: numeric(SilentAtTheEnd(turns=2), list(EchoGame.WORDS)))
    reader = Reader(gym_id, time_limit=5, scalarise=list)
    steps, states, _ = reader.episode(lambda _: [0, 1])  # shown: ant and bee, then bee and cat
    assert steps == [([1.0, 1.0], False), ([0.0, 0.0], False)]
    assert np.array_equal(states[-1], states[-2])
    steps, _, _ = Reader(gym_id, 5, scalarise=list).episode(lambda _: [1, 2])
    assert steps == [([0.0, 0.0], False), ([1.0, 1.0], False)]


def test_truncation(gym_id):
    def make():
        return UniformEnd(numeric(LeaverEnv("truncated"), ["a", "b"]))

    register_joint(gym_id, make)
    steps, _, stats = Reader(gym_id, time_limit=9, scalarise=list).episode(lambda _: [0, 1])
    assert steps == [([1.0, 1.0], False), ([0.0, 0.0], False), ([2.0, 0.0], True)]
    assert stats["episode_limit"] == 1
    steps, _, stats = Reader(gym_id, time_limit=2).episode(lambda _: [0, 1])
    assert [bootstrapped for _, bootstrapped in steps] == [False, True]
    assert "episode_limit" not in stats  # EPyMARL's own time limit is its own matter


def test_agents_that_wait_and_keywords_of_make(gym_id):
    def make(turns):
        game = TakingTurns(turns)
        game._actions = dict.fromkeys(game.possible_agents, UnicodeText(6))
        return numeric(game, list(EchoGame.WORDS), fill="ant")

    register_joint(gym_id, make, turns=3)
    assert len(Reader(gym_id, 9).episode(lambda _: [3, 3])[0]) == 3
    assert len(Reader(gym_id, 9, turns=2).episode(lambda _: [3, 3])[0]) == 2


def test_the_same_seed_gives_the_same_episodes(gym_id):
    register_joint(gym_id, coordination, shuffle=True)

    def played(seed):
        reader = Reader(gym_id, 5, seed)
        return np.stack([reader.episode(lambda _: [0, 0])[1][0] for _ in range(8)])

    assert np.array_equal(played(3), played(3))
    assert not np.array_equal(played(3), played(4))


def test_agents_may_differ_in_size(gym_id):
    class Differing(View):
        def __init__(self, env):
            super().__init__(env)
            self.observation_spaces["agent_1"] = Box(-2, 2, (SIZE + 1,), np.float32)
            self.action_spaces["agent_1"] = Discrete(2)

        def observe(self, agent, observation, info):
            return np.append(observation, np.float32(1)) if agent == "agent_1" else observation

    register_joint(gym_id, lambda: Differing(coordination()))
    reader = Reader(gym_id, 5)
    assert (reader.num_actions, reader.obs_size) == (len(WORDS), SIZE + 1)
    steps, states, _ = reader.episode(lambda shown: [0, shown[1][-1]])
    assert len(steps) == 1
    assert states[0].shape == (2 * (SIZE + 1),)


def test_spaces_are_honoured():
    env = JointEnv(ActionMask(coordination(num_turns=2)))
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    env.action_space.seed(0)
    for _ in range(2):
        observation, rewards, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert [type(reward) for reward in rewards] == [float, float]
    assert (terminated, truncated) == (True, False)


def test_each_agents_own_reward():
    env = JointEnv(numeric(EchoGame(turns=1), list(EchoGame.WORDS)))
    env.reset(seed=0)
    assert env.step([0, 0])[1] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (coordination_v0.parallel_env(), "numbers as observations.*agent_0.*EmbedObservations"),
        (
            EmbedObservations(coordination_v0.parallel_env(), HashedNgrams(4)),
            "Discrete actions.*CandidateActions",
        ),
        (coordination_v0.env(), "must be a PettingZoo ParallelEnv.*aec_to_parallel"),
    ],
)
def test_bad_environments(env, message):
    with pytest.raises(TypeError, match=message):
        JointEnv(env)


def test_bad_input(gym_id):
    with pytest.raises(TypeError, match=r"make_env .* must be a function"):
        register_joint(gym_id, coordination())
    env = JointEnv(coordination())
    env.reset()
    with pytest.raises(ValueError, match=r"one entry for each of the 2 agents \(agent_0, agent_1"):
        env.step([0])
    with pytest.raises(ValueError, match="must be in its action space"):
        env.step([0, 9])
    for action in (0.7, "a", None):
        with pytest.raises(TypeError, match=r"the action of agent_1 .* must be an integer"):
            env.step([0, action])
    leaving = JointEnv(numeric(LeaverEnv(), ["a", "b"]))
    leaving.reset()
    with pytest.raises(ValueError, match="put UniformEnd around"):
        leaving.step([0, 0])


def test_the_example_learns(capsys):
    try:
        returns = runpy.run_path(str(ROOT / "examples/plugging_in/epymarl_joint.py"))["main"](1500)
    finally:
        gymnasium.registry.pop("my/coordination-v0", None)
    assert np.mean(returns[:150]) < 0.3
    assert np.mean(returns[-150:]) > 0.8
    assert "mean return of an episode before" in capsys.readouterr().out
