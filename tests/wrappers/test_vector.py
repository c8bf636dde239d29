"""TextVectorEnv: many episodes of one agent's view, compared with gymnasium's own vectorisation."""

import copy

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from marlogue.agents import LLMPolicy, SamplingParams, tiny_model
from marlogue.envs import batched_reward, coordination_v0
from marlogue.wrappers import (
    CandidateActions,
    EmbedObservations,
    HashedNgrams,
    SingleAgent,
    TextVectorEnv,
)
from tests.support.envs import LeaverEnv, text_env
from tests.support.strangers import Pension
from tests.support.turns import Alternating

WORDS = list(coordination_v0.ANSWERS.values())
MODES = list(AutoresetMode)


def draws(prompt, rng):
    return WORDS[rng.integers(2)]


def echoes(prompt):
    return prompt


def one_row(**kwargs):
    """Up to three turns on one row: all episodes begin alike, and end when all are right."""
    rows = [{"prompt": "dawn", "answer": "red"}]
    return coordination_v0.parallel_env(
        dataset=rows, num_turns=3, early_termination_threshold=0.9, **kwargs
    )


def numeric():
    return EmbedObservations(CandidateActions(one_row(), WORDS), HashedNgrams(8))


def chooses(observation, rng):
    return int(rng.integers(2))


ENVS = {
    "texts": (one_row, draws),
    "numbers": (numeric, chooses),
    "turns": (lambda: Alternating(5, cut=True), lambda prompt, rng: "abc"[: rng.integers(4)]),
}


class TestAgainstGymnasium:
    """The same seeds and actions give the same observations, rewards, flags and infos."""

    @pytest.mark.parametrize("agent", ["agent_0", "agent_1"])
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("name", ENVS)
    def test_step_by_step(self, name, mode, agent):
        make, policy = ENVS[name]
        theirs = SyncVectorEnv(
            [lambda: SingleAgent(make(), agent, policy)] * 4, autoreset_mode=mode
        )
        ours = TextVectorEnv(make, 4, agent, policy, autoreset_mode=mode)
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert ours.metadata == theirs.metadata
        self.compare(theirs.reset(seed=5), ours.reset(seed=5))
        theirs.action_space.seed(1)
        ended = 0
        for _ in range(30):
            actions = self.sample(theirs)
            expected, got = theirs.step(actions), ours.step(actions)
            self.compare(expected, got)
            over = expected[2] | expected[3]
            ended += int(over.sum())
            if mode is AutoresetMode.DISABLED and over.any():
                options = {"reset_mask": over}
                self.compare(theirs.reset(options=dict(options)), ours.reset(options=options))
                assert list(options) == ["reset_mask"]  # what was passed is left alone
        assert ended > 20

    def sample(self, env):
        if isinstance(env.single_action_space, gymnasium.spaces.Text):
            return tuple(WORDS[i] for i in env.np_random[0].integers(2, size=env.num_envs))
        return env.action_space.sample()

    def compare(self, expected, got):
        assert len(expected) == len(got)
        for one, other in zip(expected, got, strict=True):
            assert data_equivalence(one, other), (one, other)

    @pytest.mark.parametrize("mode", MODES)
    def test_an_agent_that_is_paid_after_it_left(self, mode):
        theirs = SyncVectorEnv(
            [lambda: SingleAgent(Pension(), "bob", echoes)] * 2, autoreset_mode=mode
        )
        ours = TextVectorEnv(Pension(), 2, "bob", echoes, autoreset_mode=mode)
        theirs.reset(seed=[0, 1])
        ours.reset(seed=[0, 1])
        expected, got = theirs.step(["ant", "bee"]), ours.step(["ant", "bee"])
        self.compare(expected[1:4], got[1:4])
        assert got[1].tolist() == [5.0, 5.0]

    def test_seeds_of_ones_own(self):
        theirs = SyncVectorEnv([lambda: SingleAgent(text_env(shuffle=True), others=draws)] * 3)
        ours = TextVectorEnv(text_env(shuffle=True), 3, others=draws)
        seeds = [4, 9, 4]
        self.compare(theirs.reset(seed=seeds), ours.reset(seed=seeds))
        self.compare(theirs.step(["a", "b", "c"]), ours.step(["a", "b", "c"]))


class TestRows:
    def test_episodes_share_out_the_rows(self):
        env = TextVectorEnv(
            coordination_v0.parallel_env(), 3, others=draws, autoreset_mode="SameStep"
        )
        assert env.reset(seed=0)[0] == ("dawn", "noon", "dusk")
        prompts, _, terminations, _, infos = env.step(["red"] * 3)
        assert prompts == ("night", "dawn", "noon")
        assert terminations.all()
        assert infos["final_obs"].tolist() == ["dawn", "noon", "dusk"]
        assert infos["final_info"]["row"].tolist() == [0, 1, 2]
        assert infos["row"].tolist() == [3, 0, 1]
        assert env.reset(seed=0)[0] == ("dawn", "noon", "dusk")
        assert env.reset(options={"row": 2})[0] == ("dusk",) * 3

    def test_a_mask_resets_some(self):
        env = TextVectorEnv(
            coordination_v0.parallel_env(num_turns=2), 3, others=draws, autoreset_mode="Disabled"
        )
        env.reset(seed=0)
        env.step(["red"] * 3)
        mask = np.array([False, True, False])
        prompts, infos = env.reset(options={"reset_mask": mask, "row": 3})
        assert [prompt.split()[0] for prompt in prompts] == ["dawn", "night", "dusk"]
        assert infos["_row"].tolist() == mask.tolist()
        terminations = env.step(["red"] * 3)[2]
        assert terminations.tolist() == [True, False, True]

    @pytest.mark.parametrize("make", [lambda: text_env(shuffle=True), LeaverEnv])
    def test_one_seed_for_all_that_follows(self, make):
        env = TextVectorEnv(make, 3, "agent_0", draws, autoreset_mode="SameStep")

        def episodes(seed):
            shown = [env.reset(seed=seed)[0]]
            shown += [env.step(["x"] * 3)[0] for _ in range(7)]
            return shown

        first = episodes(3)
        assert episodes(4) != first
        assert episodes(3) == first
        assert len({prompt for prompts in first for prompt in prompts}) > 2

    def test_the_environment_that_was_passed_is_left_alone(self):
        inner = coordination_v0.parallel_env()
        TextVectorEnv(inner, 2, others=draws).reset(seed=0)
        assert inner.agents == []


class TestTogether:
    def test_one_reward_call_for_all_episodes(self):
        calls = []

        @batched_reward
        def scores(*completions, batch_items):
            calls.append(len(batch_items))
            return [float(len(text)) for text in completions[0]]

        env = TextVectorEnv(text_env(reward_func=scores), 5, others=draws)
        env.reset(seed=0)
        rewards = env.step(["x" * length for length in range(5)])[1]
        assert rewards.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert calls == [5]

    def test_one_batch_for_all_prompts_of_a_language_model(self):
        class Counting(LLMPolicy):
            sizes = ()

            def act(self, prompts, params, streams):
                self.sizes += (len(prompts),)
                return super().act(prompts, params, streams)

        policy = Counting(*tiny_model(coordination_v0.VOCABULARY, seed=0))
        params = SamplingParams(max_new_tokens=1)
        env = coordination_v0.parallel_env(num_agents=3)
        ours = TextVectorEnv(env, 4, "agent_0", policy, sampling=params)
        ours.reset(seed=0)
        rewards = ours.step(["red"] * 4)[1]
        assert policy.sizes == (8,)
        for index in range(4):
            single = SingleAgent(env, "agent_0", policy, sampling=params)
            single.reset(seed=index, options={"row": index})
            assert single.step("red")[1] == rewards[index]


class TestManners:
    def test_a_wrapper_of_gymnasium(self):
        env = RecordEpisodeStatistics(
            TextVectorEnv(one_row, 2, others=lambda prompt: "red", autoreset_mode="NextStep")
        )
        env.reset(seed=0)
        _, _, terminations, _, infos = env.step(["red", "gold"])
        assert terminations.tolist() == [True, False]
        assert infos["episode"]["r"].tolist() == [1.0, 0.0]

    def test_render_and_close(self):
        env = TextVectorEnv(one_row(render_mode="ansi"), 2, others=lambda prompt: "gold")
        env.reset(seed=0)
        env.step(["red", "blue"])
        assert ["agent_0 answers: red" in text for text in env.render()] == [True, False]
        env.close()
        assert env.closed

    def test_nothing_is_shared_between_steps(self):
        env = TextVectorEnv(numeric, 2, others=chooses)
        first, _ = env.reset(seed=0)
        kept = first.copy()
        second = env.step(np.array([2, 2]))[0]
        assert not np.shares_memory(first, second)
        assert np.array_equal(first, kept)


class TestBadInput:
    @pytest.mark.parametrize(
        ("kwargs", "error", "match"),
        [
            ({"num_envs": 0}, ValueError, r"num_envs \(0\)"),
            ({"num_envs": 1.5}, TypeError, r"num_envs \(1.5\)"),
            ({"autoreset_mode": "Later"}, ValueError, "must be one of 'NextStep'"),
            ({"agent": "x"}, ValueError, "must be one of agent_0, agent_1"),
            ({"others": None}, ValueError, "lacks agent_1"),
        ],
    )
    def test_arguments(self, kwargs, error, match):
        with pytest.raises(error, match=match):
            TextVectorEnv(one_row(), **{"num_envs": 2, "others": draws, **kwargs})

    def test_actions(self):
        env = TextVectorEnv(one_row(), 2, others=draws)
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step(["a", "b"])
        env.reset(seed=0)
        for actions in (["a"], ["a", "b", "c"], "ab"):
            with pytest.raises(ValueError, match="must be as many as there are episodes"):
                env.step(actions)
        with pytest.raises(
            ValueError, match=r"the action \(3\) must be in the action space of episode 1"
        ):
            env.step(["a", 3])
        assert env.step(["a", "b"])[4]["turn"].tolist() == [1, 1]  # nothing had happened

    def test_an_episode_that_is_over(self):
        env = TextVectorEnv(
            coordination_v0.parallel_env(), 2, others=draws, autoreset_mode="Disabled"
        )
        env.reset(seed=0)
        env.step(["a", "b"])
        with pytest.raises(RuntimeError, match=r"episodes \[0, 1\] are over"):
            env.step(["a", "b"])

    @pytest.mark.parametrize(
        ("mask", "error"),
        [([True, False], TypeError), (np.ones(2), TypeError), (np.zeros(2, bool), ValueError)],
    )
    def test_masks(self, mask, error):
        env = TextVectorEnv(one_row(), 2, others=draws)
        env.reset(seed=0)
        with pytest.raises(error, match="reset_mask"):
            env.reset(options={"reset_mask": mask})
        env = TextVectorEnv(one_row(), 2, others=draws)
        with pytest.raises(ValueError, match="everywhere in the first reset"):
            env.reset(options={"reset_mask": np.array([True, False])})

    def test_seeds(self):
        env = TextVectorEnv(one_row(), 2, others=draws)
        with pytest.raises(ValueError, match="one for each of the 2 episodes"):
            env.reset(seed=[1, 2, 3])


@pytest.mark.parametrize("actions", [None, 3])
def test_actions_must_be_one_for_each_episode(actions):
    env = TextVectorEnv(coordination_v0.parallel_env(), 2, others=lambda prompt: "red")
    env.reset(seed=0)
    with pytest.raises(TypeError, match="must hold one for each of the 2 episodes"):
        env.step(actions)


def test_rows_with_and_without_a_number():
    """A row that is given in the options has none."""
    env = TextVectorEnv(
        coordination_v0.parallel_env(),
        2,
        others=lambda prompt: "red",
        autoreset_mode="Disabled",
    )
    env.reset(seed=0)
    env.step(("red", "red"))
    given = {"item": {"prompt": "dawn", "answer": "red"}}
    env.reset(options={**given, "reset_mask": np.array([False, True])})
    env.reset(options={"reset_mask": np.array([True, False])})
    *_, infos = env.step(("red", "red"))
    assert infos["_row"].tolist() == [True, False]


def test_copies_share_the_partners():
    class Partner:
        def __call__(self, prompt):
            return "red"

    partner = Partner()
    env = SingleAgent(coordination_v0.parallel_env(), "agent_0", partner)
    assert copy.deepcopy(env).partners.policies["agent_1"] is partner
