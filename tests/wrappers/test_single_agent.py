"""SingleAgent: one agent's view as a Gymnasium environment, the others frozen."""

import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.utils.env_checker import check_env

from marlogue.agents import LLMPolicy, SamplingParams, tiny_model
from marlogue.envs import coordination_v0, story_length_v0
from marlogue.wrappers import CandidateActions, EmbedObservations, HashedNgrams, SingleAgent
from marlogue.wrappers.seats import idle_action
from tests.support.command_line import ROOT
from tests.support.envs import LeaverEnv, text_env
from tests.support.example_runs import returns_of
from tests.support.strangers import Pension
from tests.support.turns import Alternating

WORDS = list(coordination_v0.ANSWERS.values())


def knows(prompt):
    return coordination_v0.ANSWERS[prompt.split()[0]]


def draws(prompt, rng):
    return WORDS[rng.integers(4)]


def says(text):
    return lambda prompt: text


def tiny_policy(seed=0):
    return LLMPolicy(*tiny_model(coordination_v0.VOCABULARY, seed=seed))


def choices(**kwargs):
    return CandidateActions(coordination_v0.parallel_env(**kwargs), WORDS)


NUMERIC = {
    "candidates": lambda: choices(num_turns=2),
    "embedded": lambda: EmbedObservations(choices(shuffle=True), HashedNgrams(16), low=-1, high=1),
}


class TestConformance:
    @pytest.mark.parametrize("agent", ["agent_0", "agent_1"])
    @pytest.mark.parametrize("others", [knows, draws])
    def test_texts(self, agent, others):
        env = coordination_v0.parallel_env(num_turns=2, shuffle=True)
        self.check(SingleAgent(env, agent, others))

    def test_a_language_model_as_partner(self):
        env = coordination_v0.parallel_env(num_turns=2)
        params = SamplingParams(max_new_tokens=1)
        self.check(SingleAgent(env, "agent_1", {"agent_0": tiny_policy()}, sampling=params))

    def test_other_environments(self):
        self.check(SingleAgent(story_length_v0.parallel_env(), "long", says("one")))
        self.check(SingleAgent(LeaverEnv(), "agent_0", says("")))
        self.check(SingleAgent(Alternating(), "agent_1", says("abc")))

    @pytest.mark.parametrize("name", NUMERIC)
    def test_numeric_views(self, name):
        self.check(SingleAgent(NUMERIC[name](), "agent_0", lambda observation: 2))

    def check(self, env):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env, skip_render_check=True)


class TestEpisodes:
    def test_it_is_the_agents_part_of_the_parallel_environment(self):
        env = SingleAgent(coordination_v0.parallel_env(num_turns=2), "agent_1", says("red"))
        assert env.reset(seed=0)[0] == "dawn"
        prompt, reward, terminated, truncated, info = env.step("blue")
        assert (prompt, reward) == ("dawn heard red", 0.25)
        assert (terminated, truncated, info["turn"]) == (False, False, 1)
        prompt, reward, terminated, truncated, info = env.step("red")
        assert (prompt, reward) == ("dawn heard red", 1.0)
        assert (terminated, truncated, info["turn"]) == (True, False, 2)
        assert env.reset()[0] == "noon"
        assert env.reset(options={"row": 3})[0] == "night"

    def test_each_other_agent_has_its_policy(self):
        asked = []

        def listens(prompt):
            asked.append(prompt)
            return "red"

        others = {"agent_0": listens, "agent_2": says("gold")}
        env = coordination_v0.parallel_env(num_agents=3, num_turns=2)
        single = SingleAgent(env, "agent_1", others)
        single.reset(seed=0)
        assert single.step("red")[0] == "dawn heard gold"  # agent_2 is the next one
        assert single.step("red")[1] == pytest.approx(1 / 3)
        assert asked == ["dawn", "dawn heard red"]

    def test_one_that_comes_second_sees_the_first_move(self):
        game = Alternating(moves=4)
        env = SingleAgent(game, "agent_1", says("abc"))
        prompt, info = env.reset()
        assert (prompt, info["waits"]) == ("abc", False)
        # 3 for the first move of agent_0, 2 for its own, 3 for the next one of agent_0.
        assert env.step("xy")[:4] == ("abc/xy/abc", 8.0, False, False)
        assert env.step("x")[:4] == ("abc/xy/abc/x", 1.0, True, False)
        assert game.ignored == [""] * 4

    def test_what_is_earned_by_the_last_move_of_another_counts(self):
        env = SingleAgent(Alternating(moves=2, cut=True), "agent_0", says("abc"))
        env.reset()
        assert env.step("x")[:4] == ("x/abc", 4.0, False, True)
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step("x")

    def test_an_agent_that_leaves_early_is_done(self):
        env = SingleAgent(LeaverEnv(), "agent_1", says("x"))
        env.reset()
        assert env.step("x")[1:4] == (1.0, True, False)

    def test_what_an_agent_is_given_after_it_left_belongs_to_its_last_step(self):
        asked = []
        env = SingleAgent(Pension(turns=3), "bob", lambda prompt: asked.append(prompt) or prompt)
        for _ in range(2):
            assert env.reset(seed=0)[0] == "bee"
            assert env.step("x") == ("cat", 5.0, True, False, {})  # shown when it left
        assert asked == ["ant", "bee", "cat"] * 2
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step("x")

    def test_an_agent_that_outlives_the_others_plays_on(self):
        env = SingleAgent(LeaverEnv(), "agent_0", says("x"))
        env.reset()
        rewards = [env.step("x")[1:3] for _ in range(3)]
        assert rewards == [(1.0, False), (0.0, False), (2.0, True)]

    def test_an_episode_without_a_turn_of_the_agent_is_left_out(self):
        class Skips(Alternating):
            begun = 0

            def reset(self, seed=None, options=None):
                self.begun += 1
                self.moves = 1 if self.begun < 3 else 4
                return super().reset(seed, options)

        env = SingleAgent(Skips(), "agent_1", says("abc"))
        assert env.reset()[0] == "abc"
        assert env.env.begun == 3
        assert env.step("x")[1] == 7.0  # nothing of the episodes that were left out

    def test_an_agent_that_never_acts(self):
        env = SingleAgent(Alternating(moves=1), "agent_1", says("abc"))
        with pytest.raises(RuntimeError, match="ended without a turn of agent_1"):
            env.reset()

    def test_an_agent_that_joins_late(self):
        class Late(Alternating):
            def reset(self, seed=None, options=None):
                shown, infos = super().reset(seed, options)
                self.agents = ["agent_0"]
                return {"agent_0": shown["agent_0"]}, {"agent_0": infos["agent_0"]}

            def step(self, actions):
                returned = super().step(actions)
                if len(self.said) == 1:
                    self.agents = list(self.possible_agents)
                    returned = (self._shown(), *returned[1:4], self._infos())
                return returned

        env = SingleAgent(Late(), "agent_1", says("abc"))
        assert env.reset()[0] == "abc"

    def test_an_agent_that_vanishes(self):
        class Vanishing(LeaverEnv):
            def step(self, given):
                shown, rewards, terminations, *rest = super().step(given)
                return shown, rewards, {**terminations, "agent_1": False}, *rest

        env = SingleAgent(Vanishing(), "agent_1", says("x"))
        env.reset()
        with pytest.raises(ValueError, match="without terminating or truncating it"):
            env.step("x")

    def test_render_and_close(self):
        env = SingleAgent(coordination_v0.parallel_env(render_mode="ansi"), others=says("gold"))
        env.reset()
        env.step("red")
        assert "agent_1 answers: gold" in env.render()
        assert env.render_mode == "ansi"
        assert env.metadata["name"] == "coordination_v0"
        env.close()


class TestPolicies:
    def test_random_partners_follow_the_seed(self):
        env = SingleAgent(text_env(num_turns=2, render_mode="ansi"), "agent_0", draws)

        def heard(**kwargs):
            env.reset(**kwargs)
            env.step("x")
            return env.render()

        first = [heard(seed=3), heard(), heard(), heard(seed=4)]
        again = [heard(seed=3), heard(), heard(), heard(seed=4)]
        assert first == again
        assert len(set(first)) == 4

    def test_each_turn_has_random_numbers_of_its_own(self):
        drawn = []

        def listens(prompt, rng):
            drawn.append(rng.random())
            return "x"

        env = SingleAgent(text_env(num_turns=3, num_agents=3), "agent_0", listens)
        for _ in range(2):
            env.reset(seed=3)
            for _ in range(3):
                env.step("x")
        assert len(set(drawn)) == 6
        assert drawn[:6] == drawn[6:]

    def test_language_models_follow_the_seed(self):
        params = SamplingParams(max_new_tokens=3)
        texts = coordination_v0.parallel_env(render_mode="ansi")
        env = SingleAgent(texts, "agent_0", tiny_policy(), sampling=params)

        def said(**kwargs):
            env.reset(**kwargs)
            env.step("x")
            return env.render()

        first = [said(seed=3), said(), said(), said(seed=4)]
        assert [said(seed=3), said(), said(), said(seed=4)] == first
        policy = tiny_policy()
        answer = policy.act(["dawn"], params, [(3, 0, 0, 1)])[0].text
        assert f"agent_1 answers: {answer}\n" in said(
            seed=3
        )  # the stream is (seed, episode, turn, agent)

    def test_the_info_is_given_to_who_asks_for_it(self):
        masks = []

        def chooses(observation, *, info):
            masks.append(info["action_mask"].tolist())
            return np.int64(0)

        rows = [{"prompt": "dawn", "answer": "red", "words": ["red", "gold"]}]
        env = coordination_v0.parallel_env(dataset=rows)
        single = SingleAgent(CandidateActions(env, "words", num_candidates=3), others=chooses)
        single.reset()
        assert single.step(0)[1] == 1.0
        assert masks == [[1, 1, 0]]

    def test_an_error_of_a_policy_is_its_own(self):
        def fails(prompt):
            raise LookupError("no idea")

        env = SingleAgent(coordination_v0.parallel_env(), "agent_0", fails)
        env.reset()
        with pytest.raises(LookupError, match="no idea") as caught:
            env.step("red")
        assert caught.value.__notes__ == ["while asking the policy of agent_1 in others"]
        env.partners.policies["agent_1"] = knows
        assert env.step("red")[1] == 1.0  # nothing had happened

    @pytest.mark.parametrize("answer", [7, None, "x" * 60])
    def test_an_answer_outside_the_space(self, answer):
        env = SingleAgent(Alternating(), "agent_1", says(answer))
        with pytest.raises(ValueError, match="policy of agent_0 in others answered"):
            env.reset()


class TestBadInput:
    def test_environments(self):
        with pytest.raises(TypeError, match="must be a PettingZoo ParallelEnv"):
            SingleAgent(coordination_v0.env(), others=knows)
        with pytest.raises(ValueError, match=r"agent \('x'\) must be one of agent_0, agent_1"):
            SingleAgent(coordination_v0.parallel_env(), "x", knows)

    @pytest.mark.parametrize(
        ("others", "error", "match"),
        [
            (None, ValueError, r"none given\) lacks agent_1"),
            ({}, ValueError, "lacks agent_1"),
            ({"agent_1": knows, "x": knows}, ValueError, "names x"),
            ({"agent_0": knows}, ValueError, "lacks agent_1 and names agent_0"),
            ("red", TypeError, "must be callable"),
            ({"agent_1": LLMPolicy}, TypeError, "is a class"),
        ],
    )
    def test_policies(self, others, error, match):
        with pytest.raises(error, match=match):
            SingleAgent(coordination_v0.parallel_env(), "agent_0", others)

    def test_policies_that_have_to_be_awaited(self):
        async def waits_for(prompt):
            return "red"

        with pytest.raises(TypeError, match="async function"):
            SingleAgent(coordination_v0.parallel_env(), "agent_0", waits_for)

    def test_a_language_model_among_numbers(self):
        with pytest.raises(TypeError, match="answers texts, but the action space of agent_1"):
            SingleAgent(choices(), "agent_0", tiny_policy())
        vectors = EmbedObservations(coordination_v0.parallel_env(), HashedNgrams(4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a Box warns when it is asked about a text
            with pytest.raises(TypeError, match="answers texts, but the observation space"):
                SingleAgent(vectors, "agent_0", tiny_policy())

    def test_actions(self):
        env = SingleAgent(coordination_v0.parallel_env(), "agent_0", knows)
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step("red")
        env.reset()
        with pytest.raises(ValueError, match=r"the action \(3\) must be in the action space"):
            env.step(3)
        assert env.step("red")[1] == 1.0


@pytest.mark.parametrize(
    ("space", "info", "expected"),
    [
        (Discrete(4), {}, 0),
        (Discrete(4, start=2), {}, 2),
        (Discrete(4), {"action_mask": np.array([0, 0, 1, 1])}, 2),
        (MultiDiscrete([3, 3]), {}, [0, 0]),
        (Box(-1, 1, (2,)), {}, [0, 0]),
        (LeaverEnv().space, {}, ""),
    ],
)
def test_who_waits_does_something_that_is_allowed(space, info, expected):
    action = idle_action(space, info)
    assert space.contains(action)
    assert np.array_equal(action, expected)


def test_the_example_learns_with_a_partner_that_slips():
    before, after = returns_of(ROOT / "examples" / "plugging_in" / "gymnasium_single.py")
    assert before < 0.5
    assert after > 0.8
