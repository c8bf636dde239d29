"""Stable-Baselines3 on TeamVecEnv: the contract of a VecEnv, and PPO that learns."""

import re
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from marlogue.envs import coordination_v0, story_length_v0
from marlogue.wrappers import (
    ActionMask,
    CandidateActions,
    EmbedObservations,
    HashedNgrams,
    SingleAgent,
    UniformEnd,
)
from marlogue.wrappers.sb3 import TeamVecEnv
from marlogue.wrappers.token_by_token import TokenByToken
from marlogue.wrappers.tokens import TokenActions, TokenObservations
from marlogue.wrappers.vocabulary import Words
from tests.support.command_line import ROOT
from tests.support.example_runs import returns_of

WORDS = list(coordination_v0.ANSWERS.values())
EXAMPLES = ROOT / "examples" / "plugging_in"


def team(**kwargs):
    texts = coordination_v0.parallel_env(**kwargs)
    return EmbedObservations(CandidateActions(texts, WORDS), HashedNgrams(64))


class Numbers(ParallelEnv):
    """Agent k sees [k, seed, turn] and earns its action; an episode is cut off, or terminated."""

    metadata = {"name": "numbers_v0"}  # noqa: RUF012

    def __init__(self, agents=3, turns=2, cut=False, early=None, box=None):
        self.possible_agents = [f"agent_{k}" for k in range(agents)]
        self.agents = []
        self.turns, self.cut, self.early = turns, cut, early
        self.spaces = {
            agent: box or Box(-1, 1000, (3,), np.float32) for agent in self.possible_agents
        }
        self.choices = {agent: Discrete(4) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.spaces[agent]

    def action_space(self, agent):
        return self.choices[agent]

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.seed, self.turn = seed, 0
        return self.shown(), {agent: {"options": options} for agent in self.agents}

    def step(self, actions):
        self.turn += 1
        over = self.turn == self.turns
        ended = {agent: over or agent == self.early for agent in self.agents}
        never = dict.fromkeys(self.agents, False)
        flags = (never, ended) if self.cut else (ended, never)
        returned = self.shown(), {a: float(actions[a]) for a in self.agents}, *flags
        infos = {agent: {"turn": self.turn} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return *returned, infos

    def shown(self):
        seed = -1 if self.seed is None else self.seed
        return {
            agent: np.array([k, seed, self.turn], np.float32)
            for k, agent in enumerate(self.possible_agents)
            if agent in self.agents
        }


class TestContract:
    def test_environments_are_agents_of_episodes_in_order(self):
        env = TeamVecEnv(Numbers(agents=3), 2)
        assert env.num_envs == 6
        env.seed(10)
        shown = env.reset()
        assert shown[:, 0].tolist() == [0, 1, 2, 0, 1, 2]
        assert shown[:, 1].tolist() == [10, 10, 10, 11, 11, 11]
        assert shown.dtype == np.float32
        _, rewards, dones, infos = env.step(np.array([0, 1, 2, 3, 2, 1]))
        assert rewards.tolist() == [0, 1, 2, 3, 2, 1]
        assert not dones.any()
        assert [info["turn"] for info in infos] == [1] * 6

    @pytest.mark.parametrize("cut", [False, True])
    def test_an_episode_that_is_over_begins_anew(self, cut):
        env = TeamVecEnv(lambda: Numbers(agents=2, cut=cut), 2)
        env.seed(3)
        env.reset()
        _, _, dones, infos = env.step(np.zeros(4, int))
        assert not dones.any()
        assert "terminal_observation" not in infos[0]
        assert infos[0]["TimeLimit.truncated"] is False
        shown, _, dones, infos = env.step(np.zeros(4, int))
        assert dones.all()
        assert [info["TimeLimit.truncated"] for info in infos] == [cut] * 4
        assert [info["terminal_observation"].tolist() for info in infos] == [
            [0, 3, 2],
            [1, 3, 2],
            [0, 4, 2],
            [1, 4, 2],
        ]
        assert shown.tolist() == [[0, 5, 0], [1, 5, 0], [0, 6, 0], [1, 6, 0]]
        assert env.reset_infos == [{"options": None}] * 4

    def test_one_agent_alone_is_what_stable_baselines_makes_of_it(self):
        def make():
            return Numbers(agents=1, turns=3, cut=True)

        theirs = DummyVecEnv([lambda: SingleAgent(make())] * 2)
        ours = TeamVecEnv(make, 2)
        for env in (theirs, ours):
            env.seed(5)
        assert np.array_equal(theirs.reset(), ours.reset())
        rng = np.random.default_rng(0)
        for turn in range(7):
            actions = rng.integers(4, size=2)
            expected, got = theirs.step(actions), ours.step(actions)
            if turn < 2:  # later episodes have other seeds: a DummyVecEnv does not seed them
                assert np.array_equal(expected[0], got[0])
            for one, other in zip(expected[1:3], got[1:3], strict=True):
                assert np.array_equal(one, other)
                assert one.dtype == other.dtype
            for one, other in zip(expected[3], got[3], strict=True):
                assert set(one) == set(other)
                assert one["TimeLimit.truncated"] == other["TimeLimit.truncated"]
        assert theirs.render_mode == ours.render_mode
        assert theirs.get_attr("metadata")[0]["name"] == ours.get_attr("metadata")[0]["name"]
        assert not theirs.has_attr("nobody_has_this")
        assert not ours.has_attr("nobody_has_this")
        assert not ours.has_attr("action_masks")

    def test_seeds_and_options_are_used_once(self):
        env = TeamVecEnv(Numbers(agents=2), 2)
        assert env.seed(7) == [7, 7, 8, 8]
        env.set_options({"level": 1})
        first = env.reset()
        assert [info["options"] for info in env.reset_infos] == [{"level": 1}] * 4
        second = env.reset()
        assert second[:, 1].tolist() == [9, 9, 10, 10]
        assert env.reset_infos[0]["options"] is None
        env.seed(7)
        assert np.array_equal(env.reset(), first)
        assert np.array_equal(env.reset(), second)
        env.set_options([{"level": 1}, {"level": 2}, {}, {}])
        with pytest.raises(ValueError, match="must be the same for all its agents"):
            env.reset()

    def test_without_a_seed_no_global_generator_is_asked(self):
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        assert TeamVecEnv(Numbers(), 1).seed() == [None] * 3
        assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002

    def test_episodes_share_out_the_rows(self):
        env = TeamVecEnv(team(), 3)
        env.seed(0)
        env.reset()
        rows = [info["row"] for info in env.reset_infos]
        env.step(np.zeros(6, int))
        rows += [info["row"] for info in env.reset_infos]
        assert rows == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1]

    def test_attributes_methods_and_wrappers(self):
        env = TeamVecEnv(team(), 2)
        assert env.get_attr("num_candidates") == [4] * 4
        assert env.get_attr("num_turns", indices=[0, 3]) == [1, 1]
        env.set_attr("label", "first", indices=[0, 1])
        assert env.get_attr("label", indices=0) == ["first"]
        with pytest.raises(AttributeError):
            env.get_attr("label")
        assert env.env_is_wrapped(CandidateActions) == [True] * 4
        assert env.env_is_wrapped(ActionMask, indices=[1]) == [False]
        assert env.env_method("observation_space", "agent_0", indices=[0]) == [
            env.observation_space
        ]

    def test_render_and_close(self):
        env = TeamVecEnv(team(render_mode="ansi"), 2)
        env.seed(0)
        env.reset()
        text = env.render()
        assert text.count("=== row") == 2
        env.close()
        with pytest.warns(UserWarning, match="no `render_mode`"):
            TeamVecEnv(team(), 2).render()

    def test_statistics_of_episodes(self):
        env = VecMonitor(TeamVecEnv(Numbers(agents=2, turns=3), 1))
        env.reset()
        for actions in ([1, 2], [1, 2], [1, 3]):
            infos = env.step(np.array(actions))[3]
        assert [info["episode"]["r"] for info in infos] == [3.0, 7.0]
        assert [info["episode"]["l"] for info in infos] == [3, 3]


class TestBadInput:
    def test_texts(self):
        texts = coordination_v0.parallel_env()
        with pytest.raises(TypeError, match="observation space of agent_0 is UnicodeText") as told:
            TeamVecEnv(texts)
        assert "EmbedObservations" in str(told.value)
        assert "TokenObservations" in str(told.value)
        with pytest.raises(TypeError, match="action space of short is UnicodeText") as told:
            TeamVecEnv(EmbedObservations(story_length_v0.parallel_env(), HashedNgrams(8)))
        assert "CandidateActions or TokenByToken" in str(told.value)

    def test_agents_that_differ(self):
        env = Numbers()
        env.choices["agent_1"] = Discrete(5)
        with pytest.raises(ValueError, match="TeamVecEnv needs agents with one action_space"):
            TeamVecEnv(env)

    def test_actions_that_are_not_counted_from_0(self):
        env = Numbers()
        env.choices = {agent: Discrete(4, start=1) for agent in env.possible_agents}
        with pytest.raises(TypeError, match="set start=0"):
            TeamVecEnv(env)

    def test_a_team_that_does_not_stay_together(self):
        env = TeamVecEnv(Numbers(early="agent_1"))
        env.reset()
        with pytest.raises(ValueError, match=r"agent_1 ended before agent_0, agent_2.*UniformEnd"):
            env.step(np.zeros(3, int))
        env = TeamVecEnv(UniformEnd(Numbers(early="agent_1", turns=3)))
        env.reset()
        ends = [env.step(np.ones(3, int))[1:3] for _ in range(3)]
        assert [rewards.tolist() for rewards, _ in ends] == [[1, 1, 1], [1, 0, 1], [1, 0, 1]]
        assert [dones.tolist() for _, dones in ends] == [[False] * 3] * 2 + [[True] * 3]

    def test_a_team_that_is_not_there_at_once(self):
        class Late(Numbers):
            def reset(self, seed=None, options=None):
                shown, infos = super().reset(seed, options)
                self.agents = self.agents[:2]
                return shown, infos

        with pytest.raises(ValueError, match=r"not live: agent_2.*UniformEnd"):
            TeamVecEnv(Late()).reset()

    def test_calls_out_of_order(self):
        env = TeamVecEnv(Numbers(), 2)
        with pytest.raises(RuntimeError, match="step was called before reset"):
            env.step(np.zeros(6, int))
        env.reset()
        with pytest.raises(RuntimeError, match="call step_async first"):
            env.step_wait()
        with pytest.raises(RuntimeError, match="action_masks was called before reset"):
            TeamVecEnv(team()).env_method("action_masks")
        with pytest.raises(ValueError, match=r"dtype float64\) must be whole numbers"):
            env.step(np.full(6, 1.7))
        with pytest.raises(ValueError, match=r"actions \(3\) must be as many as environments"):
            env.step(np.zeros(3, int))
        with pytest.raises(ValueError, match=r"num_episodes \(0\)"):
            TeamVecEnv(Numbers(), 0)
        with pytest.raises(TypeError, match="is an AEC environment; pass the parallel one"):
            TeamVecEnv(coordination_v0.env())


VOCABULARY = Words(coordination_v0.VOCABULARY, unknown="?")
VARIANTS = {
    "floats and a choice": ("MlpPolicy", team),
    "token ids and several choices": (
        "MlpPolicy",
        lambda: TokenObservations(
            TokenActions(coordination_v0.parallel_env(num_turns=2), Words(WORDS), 2), VOCABULARY, 4
        ),
    ),
    "a dict with the mask": ("MultiInputPolicy", lambda: ActionMask(team())),
    "token by token": (
        "MlpPolicy",
        lambda: EmbedObservations(
            TokenByToken(
                coordination_v0.parallel_env(), Words(WORDS, end="."), 2, ignore_masked=True
            ),
            HashedNgrams(16),
        ),
    ),
}


class TestTraining:
    @pytest.mark.parametrize("name", VARIANTS)
    def test_ppo_trains_on_every_kind_of_space(self, name):
        policy, make = VARIANTS[name]
        model = PPO(policy, TeamVecEnv(make, 4), n_steps=8, batch_size=32, seed=0, device="cpu")
        before = {key: value.clone() for key, value in model.policy.state_dict().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.learn(128)
        after = model.policy.state_dict()
        assert model.num_timesteps == 128
        assert all(after[key].isfinite().all() for key in after)
        assert all((after[key] != before[key]).any() for key in after if "weight" in key)

    def test_other_algorithms_and_wrappers_take_it(self):
        A2C("MlpPolicy", VecNormalize(TeamVecEnv(team(), 2)), seed=0, device="cpu").learn(40)
        DQN("MlpPolicy", TeamVecEnv(team(), 2), learning_starts=16, seed=0, device="cpu").learn(64)

    def test_the_same_seed_gives_the_same_run(self):
        def weights():
            model = PPO("MlpPolicy", TeamVecEnv(team(), 4), n_steps=8, seed=3, device="cpu")
            return model.learn(128).policy.action_net.weight

        assert (weights() == weights()).all()

    def test_ppo_learns_the_task(self):
        before, after = returns_of(EXAMPLES / "sb3_ppo.py")
        assert before < 0.3  # 0.16 is the random level
        assert after > 0.85


def test_without_masks_ppo_is_told_what_to_do():
    rows = [{"prompt": "dawn", "answer": "red", "words": ["red", "gold"]}]
    texts = coordination_v0.parallel_env(dataset=rows)
    env = EmbedObservations(CandidateActions(texts, "words", num_candidates=4), HashedNgrams(8))
    with pytest.raises(ValueError, match=re.escape("set fill for a learner that reads no masks")):
        PPO("MlpPolicy", TeamVecEnv(env, 4), n_steps=8, seed=0, device="cpu").learn(64)
