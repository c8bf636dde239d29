"""TokenObservations and TokenActions: arrays of token indices in place of texts."""

import copy
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from pettingzoo.test import parallel_api_test

from marlogue.agents.tiny import tiny_model
from marlogue.envs import coordination_v0
from marlogue.envs.coordination_v0 import VOCABULARY
from marlogue.wrappers.tokens import TokenActions, TokenObservations
from marlogue.wrappers.uniform_end import UniformEnd
from marlogue.wrappers.vocabulary import TokenizerVocabulary, Words
from tests.support.envs import LeaverEnv, text_env
from tests.support.strangers import TakingTurns

WORDS = Words(VOCABULARY)
DAWN, RED, HEARD, NOTHING = (VOCABULARY.index(w) for w in ("dawn", "red", "heard", "nothing"))
PAD = len(VOCABULARY)


def coordination(**kwargs):
    return coordination_v0.parallel_env(num_turns=2, **kwargs)


def act(env, *choices):
    return dict(zip(env.possible_agents, map(np.array, choices), strict=True))


def test_prompts_become_indices():
    env = TokenObservations(coordination(), WORDS, 4)
    space = env.observation_space("agent_0")
    assert space == Box(0, PAD, (4,), np.int64)
    shown, infos = env.reset(seed=0)
    assert shown["agent_1"].tolist() == [DAWN, PAD, PAD, PAD]
    assert shown["agent_1"].dtype == np.int64
    assert infos["agent_1"]["prompt_tokens"] == 1
    assert "prompt_tokens_cut" not in infos["agent_1"]
    shown, *_, infos = env.step({"agent_0": "red", "agent_1": "🙂"})
    assert shown["agent_1"].tolist() == [DAWN, HEARD, RED, PAD]
    assert shown["agent_0"].tolist() == [DAWN, HEARD, NOTHING, PAD]
    assert infos["agent_0"]["prompt_tokens"] == 3
    assert all(space.contains(observation) for observation in shown.values())


def test_padding_on_the_left_with_a_token_of_ones_choice():
    env = TokenObservations(coordination(), WORDS, 3, pad=NOTHING, pad_side="left")
    assert env.observation_space("agent_0") == Box(0, PAD - 1, (3,), np.int64)
    shown, _ = env.reset(seed=0)
    assert shown["agent_0"].tolist() == [NOTHING, NOTHING, DAWN]
    shown = env.step({"agent_0": "red", "agent_1": ""}).observations
    assert shown["agent_0"].tolist() == [DAWN, HEARD, NOTHING]


def test_a_prompt_that_is_too_long():
    env = TokenObservations(coordination(), WORDS, 2)
    env.reset(seed=0)
    with pytest.raises(
        ValueError, match=r"length \(2\) .* agent_0 has 3.*prompt_overflow='truncate'"
    ):
        env.step({"agent_0": "red", "agent_1": "red"})

    env = TokenObservations(coordination(), WORDS, 2, prompt_overflow="truncate")
    _, infos = env.reset(seed=0)
    assert infos["agent_0"]["prompt_tokens_cut"] == 0
    shown, *_, infos = env.step({"agent_0": "red", "agent_1": "red"})
    assert shown["agent_0"].tolist() == [HEARD, RED]
    assert (infos["agent_0"]["prompt_tokens"], infos["agent_0"]["prompt_tokens_cut"]) == (2, 1)


def test_words_that_are_not_in_the_vocabulary():
    env = TokenObservations(text_env(dataset=[{"prompt": "a 🙂"}]), Words(["a"]), 2)
    with pytest.raises(ValueError, match=r"'🙂' is not in the vocabulary") as caught:
        env.reset()
    assert "making tokens of the prompt of agent_0" in str(caught.value.__notes__)
    env = TokenObservations(env.unwrapped, Words(["a"], unknown="?"), 2)
    assert env.reset()[0]["agent_0"].tolist() == [0, 1]


def test_a_tokenizer_fills_up_with_its_padding_token():
    _, tokenizer = tiny_model(VOCABULARY)
    env = TokenObservations(coordination(), tokenizer, 3)
    assert env.pad == tokenizer.pad_token_id
    assert env.reset(seed=0)[0]["agent_0"].tolist() == [DAWN, env.pad, env.pad]
    tokenizer.pad_token = tokenizer.eos_token
    env = TokenObservations(coordination(), tokenizer, 3)
    shown, infos = env.reset(seed=0)
    assert shown["agent_0"].tolist() == [DAWN, *[tokenizer.eos_token_id] * 2]
    assert infos["agent_0"]["prompt_tokens"] == 1


def test_actions_are_decoded():
    said = []

    def reward(first, second):
        said.append((first, second))
        return [0.0]

    words = Words(["red", "gold"], end="<end>")
    env = TokenActions(text_env(reward_func=reward, num_turns=3), words, 2)
    assert env.action_space("agent_1") == MultiDiscrete([3, 3])
    env.reset(seed=0)
    env.step(act(env, [0, 1], [1, 2]))
    env.step(act(env, [2, 1], [2, 2]))
    env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    assert said[:2] == [(["red gold"], ["gold"]), ([""], [""])]
    assert env.agents == []


def test_a_waiting_agent_says_nothing():
    given = []

    class Listening(LeaverEnv):
        def step(self, actions):
            given.append(actions)
            return super().step(actions)

    env = TokenActions(UniformEnd(Listening()), Words(["red"]), 1)
    for _ in range(2):
        env.reset(seed=0)
        while env.agents:
            env.step(act(env, [0], [0]))
    both, one = {"agent_0": "red", "agent_1": "red"}, {"agent_0": "red"}
    assert given == [both, one, one] * 2
    shown = UniformEnd(LeaverEnv())
    env = TokenActions(shown, Words(["red"]), 1)
    env.reset(seed=0)
    env.step(act(env, [0], [0]))
    assert [env.act(agent, np.array([0])) for agent in env.agents] == ["red", ""]


def test_where_texts_must_not_be_empty():
    with pytest.raises(ValueError, match=r"must have no end.*action space of ann, Text\(1, 6"):
        TokenActions(TakingTurns(), Words(["ant"], end="."), 1)
    env = TokenActions(TakingTurns(turns=2), Words(["ant", "bee"]), 1)
    env.reset(seed=0)
    assert env.act("bob", np.array([0])) == "0"  # it waits: the least that is allowed
    assert env.step(act(env, [0], [0])).rewards == {"ann": 1.0, "bob": 0.0}


def test_both_together_pass_the_conformance_suite():
    env = TokenObservations(TokenActions(coordination(), WORDS, 1), WORDS, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Agent was given info")  # __common__
        parallel_api_test(env, num_cycles=30)
    leaving = TokenActions(UniformEnd(LeaverEnv()), Words(["red"], end="."), 3)
    parallel_api_test(leaving, num_cycles=30)


def test_seeds_and_copies():
    def play(env):
        rewards, shown = [], []
        while env.agents:
            result = env.step({a: env.action_space(a).sample() for a in env.agents})
            rewards.append(result.rewards)
            shown.append({a: o.tolist() for a, o in result.observations.items()})
        return rewards, shown

    env = TokenObservations(TokenActions(coordination(shuffle=True), WORDS, 1), WORDS, 4)
    runs = []
    for _ in range(2):
        for number, agent in enumerate(env.possible_agents):
            env.action_space(agent).seed(number)
        env.reset(seed=3)
        twin = copy.deepcopy(env)
        assert twin.vocabulary is env.vocabulary
        runs.append(play(env))
        assert play(twin) == runs[-1]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"length": 0}, ValueError, r"length \(0\) must be 1 or more"),
        ({"length": 2.0}, TypeError, r"length \(2.0\) must be an integer"),
        ({"pad": PAD + 1}, ValueError, rf"pad \({PAD + 1}\) must be an index"),
        ({"pad": -1}, ValueError, r"pad \(-1\)"),
        ({"pad_side": "both"}, ValueError, r"pad_side \('both'\) must be 'right' or 'left'"),
        (
            {"prompt_overflow": "cut"},
            ValueError,
            r"prompt_overflow \('cut'\) must be 'error' or 'truncate'",
        ),
        ({"vocabulary": list(VOCABULARY)}, TypeError, "must have the method encode"),
    ],
)
def test_bad_observation_options(kwargs, error, message):
    with pytest.raises(error, match=message):
        TokenObservations(coordination(), **{"vocabulary": WORDS, "length": 4, **kwargs})


def test_bad_action_options():
    with pytest.raises(ValueError, match=r"length \(0\)"):
        TokenActions(coordination(), WORDS, 0)
    env = TokenActions(coordination(), WORDS, 2)
    with pytest.raises(TypeError, match="actions are texts; the action space of agent_0 is Multi"):
        TokenActions(env, WORDS, 2)
    with pytest.raises(TypeError, match="observations are texts"):
        TokenObservations(TokenObservations(coordination(), WORDS, 4), WORDS, 4)
    short = coordination(max_completion_chars=14)
    with pytest.raises(ValueError, match=r"length \(2\) must be so small .* may have 15 char"):
        TokenActions(short, WORDS, 2)
    TokenActions(short, WORDS, 1)
    env.reset()
    for wrong in ([0, PAD], [0], [0.5, 0.5], "red", None):
        with pytest.raises(ValueError, match=r"agent_1 .* must be in its action space"):
            env.step({"agent_0": np.array([0, 0]), "agent_1": wrong})
    env.step(act(env, [0, 0], [0, 0]))


def test_a_large_head_is_warned_of():
    many = Words([str(number) for number in range(30_000)])
    with pytest.warns(UserWarning, match="270,000 outputs of a policy, 18 million parameters"):
        TokenActions(coordination(), many, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TokenActions(coordination(), many, 8)


def test_tokens_of_a_tokenizer_as_actions():
    _, tokenizer = tiny_model(VOCABULARY)
    few = TokenizerVocabulary(tokenizer, [RED, DAWN], end=tokenizer.eos_token_id)
    env = TokenActions(coordination(), few, 2)
    env.reset(seed=0)
    result = env.step(act(env, [0, 2], [0, 1]))
    assert env.unwrapped.state() == "[Agent 0] dawn heard red\n\n[Agent 1] dawn heard red"
    assert result.rewards == {"agent_0": 1.0, "agent_1": 1.0}
