"""ActionMask: masks in observations."""

import copy
import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from pettingzoo.test import api_test, parallel_api_test

from marlogue.envs import coordination_v0, to_aec
from marlogue.wrappers.action_mask import ActionMask
from marlogue.wrappers.candidates import CandidateActions
from marlogue.wrappers.embeddings import EmbedObservations, HashedNgrams
from marlogue.wrappers.view import View
from tests.support.envs import LeaverEnv, text_env
from tests.support.strangers import EchoGame


def masked(env=None, key="observation", **settings):
    settings = {"candidates": ["a", "b"], "num_candidates": 3, **settings}
    return ActionMask(CandidateActions(env or text_env(num_turns=2), **settings), key=key)


class Given(View):
    """Puts an array of one's choice into the infos as the mask; None leaves it out."""

    def __init__(self, env, mask):
        super().__init__(CandidateActions(env, ["a", "b", "c"]))
        self.mask = mask

    def observe(self, agent, observation, info):
        info.pop("action_mask")
        if self.mask is not None:
            info["action_mask"] = self.mask
        return observation


@pytest.mark.parametrize("key", ["observation", "observations"])
def test_the_mask_is_in_the_observation(key):
    env = masked(key=key)
    inner = env.env.observation_space("agent_0")
    space = env.observation_space("agent_0")
    assert space == Dict({key: inner, "action_mask": Box(0, 1, (3,), np.int8)})
    assert env.action_space("agent_0") == Discrete(3)
    shown, infos = env.reset()
    assert set(shown["agent_0"]) == {key, "action_mask"}
    assert shown["agent_0"][key] == "x"
    assert shown["agent_0"]["action_mask"].tolist() == [1, 1, 0]
    assert shown["agent_0"]["action_mask"].dtype == np.int8
    assert infos["agent_0"]["action_mask"].tolist() == [1, 1, 0]
    assert space.contains(shown["agent_0"])
    env.step({"agent_0": 0, "agent_1": 1})
    last = env.step({"agent_0": 0, "agent_1": 1})
    assert last.observations["agent_0"]["action_mask"].tolist() == [1, 1, 1]
    assert space.contains(last.observations["agent_0"])


def test_the_two_masks_are_two_arrays():
    env = masked()
    shown, infos = env.reset()
    shown["agent_0"]["action_mask"][:] = 0
    assert infos["agent_0"]["action_mask"].tolist() == [1, 1, 0]


def test_actions_must_be_discrete():
    with pytest.raises(TypeError, match=r"Discrete.*agent_0 is UnicodeText.*CandidateActions"):
        ActionMask(text_env())

    class FromOne(View):
        def __init__(self, env):
            super().__init__(env)
            self.action_spaces = dict.fromkeys(env.possible_agents, Discrete(2, start=1))

    with pytest.raises(TypeError, match="counted from 0"):
        ActionMask(FromOne(text_env()))


@pytest.mark.parametrize(
    ("key", "error"), [("", ValueError), ("action_mask", ValueError), (3, TypeError)]
)
def test_a_key_that_cannot_be(key, error):
    with pytest.raises(error, match=r"key \(.*\) must be a name"):
        masked(key=key)


def test_a_mask_that_is_missing():
    env = ActionMask(Given(text_env(), None))
    with pytest.raises(ValueError, match=r"infos\['agent_0'\] lacks 'action_mask'; put Candidate"):
        env.reset()


@pytest.mark.parametrize(
    "mask", [[1, 1], [[1, 1, 1]], [0, 0, 0], [1, 2, 0], [1, -1, 1], [0.5, 1, 1]]
)
def test_a_mask_that_cannot_be(mask):
    env = ActionMask(Given(text_env(), np.array(mask)))
    with pytest.raises(ValueError, match=r"action_mask of agent_0 .* must be 3 zeros and ones"):
        env.reset()


@pytest.mark.parametrize("mask", [[True, False, True], [1.0, 0.0, 1.0], (1, 0, 1)])
def test_masks_of_other_kinds(mask):
    env = ActionMask(Given(text_env(), mask))
    shown, _ = env.reset()
    assert shown["agent_1"]["action_mask"].tolist() == [1, 0, 1]
    assert env.observation_space("agent_1").contains(shown["agent_1"])


def test_an_agent_that_left_needs_no_mask():
    class Forgetful(View):
        def observe(self, agent, observation, info):
            if agent not in self.agents:
                del info["action_mask"]
            return observation

    env = ActionMask(Forgetful(CandidateActions(LeaverEnv(), ["a", "b"])))
    env.reset()
    result = env.step({"agent_0": 0, "agent_1": 1})
    assert env.agents == ["agent_0"]
    assert result.observations["agent_1"]["action_mask"].tolist() == [1, 1]


@pytest.mark.parametrize("make", [coordination_v0.parallel_env, EchoGame, LeaverEnv])
def test_pettingzoos_own_suite(make):
    env = ActionMask(
        EmbedObservations(
            CandidateActions(make(), ["ant", "quit"], num_candidates=5), HashedNgrams(16)
        )
    )
    parallel_api_test(env, num_cycles=20)
    assert not isinstance(env.observation_space(env.possible_agents[0])["observation"], Text)
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        parallel_api_test(twin, num_cycles=20)


def test_pettingzoos_suite_for_turns():
    env = ActionMask(
        EmbedObservations(
            CandidateActions(coordination_v0.parallel_env(num_turns=2), ["red"], num_candidates=3),
            HashedNgrams(16),
        )
    )
    api_test(to_aec(env), num_cycles=20)
