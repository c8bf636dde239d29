"""DictPrompt: texts within a dictionary, as PettingZoo's AEC suite takes them."""

import copy
import pickle
import warnings

import pytest
from gymnasium.spaces import Dict
from pettingzoo.test import api_test, parallel_api_test, seed_test

from marlogue.envs import coordination_v0, to_aec
from marlogue.wrappers.dict_prompt import DictPrompt
from marlogue.wrappers.history import History
from marlogue.wrappers.uniform_end import UniformEnd
from tests.support.envs import LeaverEnv, actions


def two_turns():
    return coordination_v0.parallel_env(num_turns=2)


def test_prompts_are_in_a_dictionary():
    inner = two_turns()
    env = DictPrompt(inner)
    space = env.observation_space("agent_0")
    assert space == Dict(prompt=inner.observation_space("agent_0"))
    assert env.observation_space("agent_0") is space
    shown, _ = env.reset(seed=0)
    assert shown == {"agent_0": {"prompt": "dawn"}, "agent_1": {"prompt": "dawn"}}
    shown = env.step(actions("\N{REPLACEMENT CHARACTER}", "red")).observations
    assert shown["agent_0"] == {"prompt": "dawn heard red"}
    assert space.contains(shown["agent_0"])
    assert shown["agent_0"] is not shown["agent_1"]


@pytest.mark.parametrize(
    "inner",
    [two_turns, lambda: UniformEnd(LeaverEnv()), LeaverEnv, lambda: History(two_turns(), 99)],
)
def test_the_aec_suite_passes(inner):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The suite takes other spaces than numeric ones, but says that it did not expect them.
        warnings.filterwarnings("ignore", message="Observation is not a NumPy array")
        warnings.filterwarnings("ignore", message="(Observation|Action) space for each agent prob")
        warnings.filterwarnings("ignore", message="The base environment .* `render_mode` defined")
        api_test(to_aec(DictPrompt(inner())), num_cycles=50)


def test_the_aec_suite_fails_on_bare_texts():
    with pytest.raises(AttributeError, match="dtype"):
        api_test(to_aec(two_turns()), num_cycles=5)


def test_the_parallel_and_the_seed_suite_pass():
    parallel_api_test(DictPrompt(two_turns()), num_cycles=20)
    seed_test(lambda: to_aec(DictPrompt(two_turns())), num_cycles=20)


def test_copies():
    env = DictPrompt(two_turns())
    env.reset(seed=0)
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        shown = twin.step(actions("red", "gold")).observations
        assert shown["agent_0"] == {"prompt": "dawn heard gold"}
    assert env.unwrapped.state() == "[Agent 0] dawn\n\n[Agent 1] dawn"


def test_observations_must_be_texts():
    with pytest.raises(TypeError, match="DictPrompt needs an environment whose observations are"):
        DictPrompt(DictPrompt(two_turns()))
