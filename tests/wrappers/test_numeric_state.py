"""NumericState: a numeric state(), and no texts in infos."""

import copy
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test

from marlogue.envs import coordination_v0
from marlogue.wrappers.numeric_state import NumericState
from marlogue.wrappers.single_agent import SingleAgent
from tests.support.envs import LeaverEnv, actions, text_env
from tests.support.strangers import TakingTurns


class Numbers(ParallelEnv):
    """Two agents with spaces of their own; agent_b leaves after the first turn."""

    metadata = {"name": "numbers_v0"}  # noqa: RUF012
    possible_agents = ["agent_a", "agent_b"]  # noqa: RUF012

    def __init__(self, info=None):
        self.spaces = {
            "agent_a": Box(1, 5, (2, 2), np.int64),
            "agent_b": Dict(x=Discrete(3), y=Box(-1.0, 1.0, (1,), np.float32)),
        }
        self.moves = Discrete(2)
        self.info = info or {}
        self.agents = []

    def observation_space(self, agent):
        return self.spaces[agent]

    def action_space(self, agent):
        return self.moves

    def reset(self, seed=None, options=None):
        self.agents, self.turn = list(self.possible_agents), 0
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.turn += 1
        acting = list(self.agents)
        over = {agent: self.turn == 2 or agent == "agent_b" for agent in acting}
        shown = self._shown()
        self.agents = [agent for agent in acting if not over[agent]]
        flags = over, dict.fromkeys(acting, False)
        return shown, dict.fromkeys(acting, 1.0), *flags, {a: dict(self.info) for a in acting}

    def _shown(self):
        shown = {
            "agent_a": np.array([[1, 2], [3, 4 + min(self.turn, 1)]]),
            "agent_b": {"x": np.int64(self.turn), "y": np.array([-0.5], dtype=np.float32)},
        }
        return {agent: shown[agent] for agent in self.agents}


def lengths(text):
    return [len(text), text.count("dawn")]


def test_the_state_is_the_observations_put_together():
    env = NumericState(Numbers())
    with pytest.raises(RuntimeError, match="before reset"):
        env.state()
    assert env.state_space.shape == (8,)
    assert env.state_space.dtype == np.float32
    # An agent that is absent has zeros, so they are always within the bounds.
    assert env.state_space.low.tolist() == [0, 0, 0, 0, 0, 0, 0, -1]
    assert env.state_space.high.tolist() == [5, 5, 5, 5, 1, 1, 1, 1]

    env.reset(seed=0)
    assert env.state().tolist() == [1, 2, 3, 4, 1, 0, 0, -0.5]
    first = env.state()
    first[:] = -9  # a fresh array each time
    env.step({"agent_a": 0, "agent_b": 1})
    assert env.state().tolist() == [1, 2, 3, 5, 0, 1, 0, -0.5]
    env.step({"agent_a": 0})
    assert env.state().tolist() == [1, 2, 3, 5, 0, 0, 0, 0]
    assert env.state_space.contains(env.state())
    assert env.agents == []


def test_agents_that_are_shown_nothing_at_their_end_have_zeros():
    class Silent(Numbers):
        def _shown(self):
            return super()._shown() if self.turn < 2 else {}

    env = NumericState(Silent())
    env.reset()
    env.step({"agent_a": 0, "agent_b": 1})
    env.step({"agent_a": 0})
    assert env.state().tolist() == [0] * 8


def test_what_was_shown_may_be_changed_by_whom_it_was_shown():
    env = NumericState(Numbers())
    shown, _ = env.reset(seed=0)
    shown["agent_a"][:] = 0
    assert env.state().tolist()[:4] == [1, 2, 3, 4]


def test_the_embedded_text_state():
    env = NumericState(coordination_v0.parallel_env(num_turns=2), embed=lengths)
    assert env.state_space == Box(-np.inf, np.inf, (2,), np.float32)
    env.reset(seed=0)
    text = "[Agent 0] dawn\n\n[Agent 1] dawn"
    assert env.unwrapped.state() == text
    assert env.state().tolist() == [len(text), 2]
    assert env.state().dtype == np.float32
    env.step(actions("red", "dawn"))
    assert env.state().tolist() == [len("[Agent 0] dawn heard dawn\n\n[Agent 1] dawn heard red"), 3]
    assert env.observation_space("agent_0").contains("a text")  # observations stay


def test_infos_keep_numbers_only():
    info = {
        "flag": True,
        "count": 3,
        "share": 0.5,
        "np": np.float32(2),
        "vector": np.arange(2),
        "action_mask": np.ones(2, np.int8),
        "text": "red",
        "none": None,
        "list": [1],
        "texts": np.array(["a"]),
    }
    env = NumericState(Numbers(info))
    env.reset()
    kept = env.step({"agent_a": 0, "agent_b": 0}).infos["agent_a"]
    assert set(kept) == {"flag", "count", "share", "np", "vector", "action_mask"}
    assert kept["flag"] is True
    assert kept["vector"].tolist() == [0, 1]


def test_info_keys_are_the_same_in_every_step():
    env = NumericState(text_env(num_turns=2), embed=lengths, info_keys=["turn", "reward", "row"])
    _, infos = env.reset(options={"item": {"prompt": "x"}})
    assert infos == {
        agent: {"turn": 0.0, "reward": 0.0, "row": 0.0, "waits": False}
        for agent in env.possible_agents
    }
    infos = env.step(actions("ab", "c")).infos
    assert infos["agent_1"] == {"turn": 1.0, "reward": 3.0, "row": 0.0, "waits": False}
    assert isinstance(infos["agent_1"]["turn"], float)
    assert "__common__" not in infos

    masked = NumericState(Numbers({"action_mask": np.array([1, 0], np.int8)}), info_keys=())
    masked.reset()
    infos = masked.step({"agent_a": 0, "agent_b": 0}).infos
    assert list(infos["agent_b"]) == ["waits", "action_mask"]
    assert infos["agent_b"]["action_mask"].tolist() == [1, 0]


def test_it_passes_the_conformance_suite_and_copies():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(NumericState(Numbers()), num_cycles=10)
        parallel_api_test(NumericState(text_env(num_turns=3), embed=lengths), num_cycles=10)
    env = NumericState(Numbers())
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    env.step({"agent_a": 0, "agent_b": 0})
    assert twin.state().tolist() == [1, 2, 3, 4, 1, 0, 0, -0.5]
    with_embed = NumericState(text_env(), embed=lengths)
    assert copy.deepcopy(with_embed).embedder is with_embed.embedder


def test_texts_need_an_embedding():
    with pytest.raises(TypeError, match=r"observation space of agent_0 is Unicode.* set embed"):
        NumericState(text_env())
    for space in (Dict(prompt=Text(3)), Tuple([Discrete(2), Text(3)]), Text(9)):
        env = Numbers()
        env.spaces["agent_b"] = space
        with pytest.raises(TypeError, match="observation space of agent_b"):
            NumericState(env)


def test_bad_input():
    with pytest.raises(TypeError, match=r"info_keys \('turn'\) must be a list of keys"):
        NumericState(Numbers(), info_keys="turn")
    with pytest.raises(TypeError, match=r"info_keys \(\[3\]\)"):
        NumericState(Numbers(), info_keys=[3])
    with pytest.raises(TypeError, match=r"embed \(3\) must be callable"):
        NumericState(text_env(), embed=3)
    with pytest.raises(ValueError, match=r"embed \(str\) must return numbers .*not a str"):
        NumericState(text_env(), embed=str)
    with pytest.raises(ValueError, match=r"embed \(len\) must return a vector"):
        NumericState(text_env(), embed=len)
    with pytest.raises(ValueError, match="must return finite numbers"):
        NumericState(text_env(), embed=lambda text: [float("nan")])

    named = NumericState(text_env(), embed=lengths, info_keys=["item"])
    with pytest.raises(TypeError, match=r"take 'item' out of info_keys"):
        named.reset()
    stateless = NumericState(LeaverEnv(), embed=lengths)
    stateless.reset()
    with pytest.raises(NotImplementedError):
        stateless.state()
    numeric = NumericState(NumericState(Numbers()), embed=lengths)
    numeric.reset()
    with pytest.raises(TypeError, match=r"state\(\) is a text; .* returns a ndarray. Leave"):
        numeric.state()
    growing = NumericState(text_env(), embed=lambda text: [1.0] * len(text))
    growing.reset()
    with pytest.raises(ValueError, match=r"vector of 4 numbers for the state.*\(24,\)"):
        growing.state()


def test_an_exception_of_embed_passes_through_with_a_note():
    def failing(text):
        if text != "text":
            raise KeyError("oops")
        return [0.0]

    env = NumericState(text_env(), embed=failing)
    env.reset()
    with pytest.raises(KeyError) as caught:
        env.state()
    assert any("embedding the state" in note for note in caught.value.__notes__)


def test_discrete_observations_are_one_hot():
    env = Numbers()
    env.spaces = dict.fromkeys(env.possible_agents, MultiDiscrete([2, 3]))
    assert NumericState(env).state_space.shape == (10,)


def test_one_agents_side_knows_whose_turn_it_is():
    """What an agent does while it waits is no action of its policy."""
    asked = []
    env = NumericState(TakingTurns(4), embed=lengths, info_keys=[])

    def policy(observation):
        asked.append(observation)
        return "ant"

    single = SingleAgent(env, "bob", {"ann": policy})
    single.reset(seed=0)
    while not single.step("bee")[2]:
        pass
    assert len(asked) == 2  # of four turns
