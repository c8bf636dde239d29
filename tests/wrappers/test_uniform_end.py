"""UniformEnd: a team that ends together, whoever ended first."""

import copy
import pickle
import warnings

import pytest
from pettingzoo.test import parallel_api_test

from marlogue.envs import UnicodeText, check_text_env, coordination_v0
from marlogue.wrappers.uniform_end import UniformEnd
from tests.support.envs import LeaverEnv, actions, text_env


class Mixed(LeaverEnv):
    """agent_1 is terminated after the first turn, agent_0 truncated after the third."""

    def step(self, given):
        shown, rewards, terminations, truncations, infos = super().step(given)
        if terminations.get("agent_0"):
            terminations["agent_0"], truncations["agent_0"] = False, True
        infos["__common__"] = {"turn": self.turn}
        return shown, rewards, terminations, truncations, infos


class Other(Mixed):
    """The other way around: agent_1 is truncated first, agent_0 terminated."""

    def step(self, given):
        shown, rewards, terminations, truncations, infos = super().step(given)
        return shown, rewards, truncations, terminations, infos


class Latecomer(LeaverEnv):
    def reset(self, seed=None, options=None):
        shown, infos = super().reset(seed, options)
        self.agents = ["agent_0"]
        return {"agent_0": shown["agent_0"]}, {"agent_0": infos["agent_0"]}


class Vanishing(LeaverEnv):
    """agent_1 is gone after its turn, but no flag says so."""

    def step(self, given):
        shown, rewards, terminations, truncations, infos = super().step(given)
        return shown, rewards, {**terminations, "agent_1": False}, truncations, infos


class Blind(LeaverEnv):
    def step(self, given):
        shown, *rest = super().step(given)
        return {agent: text for agent, text in shown.items() if agent != "agent_0"}, *rest


class Stingy(LeaverEnv):
    def step(self, given):
        shown, rewards, *rest = super().step(given)
        return shown, {"agent_0": rewards["agent_0"]}, *rest


class StrictActions(LeaverEnv):
    def __init__(self):
        super().__init__()
        self.space = UnicodeText(100, min_length=1)


def play(env, *turns):
    return [env.step(dict(zip(env.possible_agents, texts, strict=True))) for texts in turns]


def test_who_ends_first_waits_for_the_others():
    env = UniformEnd(Mixed())
    shown, infos = env.reset(seed=7)
    assert shown == {"agent_0": "seed 7, turn 0", "agent_1": "seed 7, turn 0"}
    assert infos == {"agent_0": {"seed": 7}, "agent_1": {"seed": 7}}
    first, second, third = play(env, ("a", "b"), ("a", ""), ("a", "b"))

    never = {"agent_0": False, "agent_1": False}
    # The reward of its own last turn is kept, and it is shown its last observation from then on.
    assert first.rewards == {"agent_0": 1.0, "agent_1": 1.0}
    assert first.terminations == first.truncations == never
    assert first.infos["agent_1"] == {"waits": True}
    assert first.infos["agent_0"] == {}
    assert second.rewards == {"agent_0": 0.0, "agent_1": 0.0}
    assert second.observations == {"agent_0": "seed 7, turn 1", "agent_1": "seed 7, turn 0"}
    assert second.infos == {"agent_0": {}, "agent_1": {"waits": True}, "__common__": {"turn": 2}}
    assert second.terminations == second.truncations == never
    assert third.rewards == {"agent_0": 2.0, "agent_1": 0.0}
    # One was terminated, one truncated: terminated.
    assert third.terminations == {"agent_0": True, "agent_1": True}
    assert third.truncations == never
    assert env.agents == []
    with pytest.raises(RuntimeError, match="without a running episode"):
        env.step({})


@pytest.mark.parametrize(
    ("inner", "end", "terminated"),
    [
        (Mixed(), None, True),
        (Other(), None, True),
        (LeaverEnv("terminated"), None, True),
        (LeaverEnv("truncated"), None, False),
        (LeaverEnv("truncated"), "terminated", True),
        (LeaverEnv("terminated"), "truncated", False),
        (Mixed(), "truncated", False),
    ],
)
def test_all_end_alike(inner, end, terminated):
    env = UniformEnd(inner, end=end)
    for seed in range(2):  # the second episode remembers nothing of the first
        env.reset(seed=seed)
        *before, last = play(env, *[("a", "b")] * 3)
        assert set(last.terminations.values()) == {terminated}
        assert set(last.truncations.values()) == {not terminated}
        for step in before:
            assert not any([*step.terminations.values(), *step.truncations.values()])


def test_what_a_waiting_agent_does_is_ignored_but_it_must_do_something():
    env = UniformEnd(StrictActions())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"agent_1 \(''\) must be in its action space"):
        env.step(actions("a", ""))
    env.step(actions("a", "b"))
    with pytest.raises(ValueError, match="lack agent_1"):
        env.step({"agent_0": "a"})
    with pytest.raises(ValueError, match=r"agent_0 \(''\) must be in its action space"):
        env.step(actions("", ""))
    env.step({"agent_0": "a", "agent_1": ""})
    env.step({"agent_0": "a", "agent_1": None})
    assert env.agents == []


def test_a_team_that_ends_together_is_left_alone():
    bare, env = (text_env(num_turns=2) for _ in range(2))
    env = UniformEnd(env)
    assert env.reset(seed=3) == bare.reset(seed=3)
    for texts in (("a", ""), ("\N{SLIGHTLY SMILING FACE}", "\N{REPLACEMENT CHARACTER}")):
        assert env.step(actions(*texts)) == bare.step(actions(*texts))
    assert env.agents == bare.agents == []


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_it_passes_the_conformance_suites(end):
    check_text_env(UniformEnd(LeaverEnv(), end=end))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the suite warns where dicts and live agents differ
        parallel_api_test(UniformEnd(LeaverEnv(), end=end), num_cycles=20)
    check_text_env(UniformEnd(coordination_v0.parallel_env(num_turns=2)))


def test_copies_in_mid_episode_play_on_apart():
    env = UniformEnd(Mixed())
    env.reset(seed=0)
    play(env, ("a", "b"))
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    expected = play(env, *[("a", "b")] * 2)
    for twin in copies:
        assert twin.agents == ["agent_0", "agent_1"]
        assert play(twin, *[("a", "b")] * 2) == expected


def test_bad_input():
    with pytest.raises(ValueError, match=r"end \('both'\) must be None, 'terminated'"):
        UniformEnd(LeaverEnv(), end="both")
    with pytest.raises(TypeError, match="must be a PettingZoo ParallelEnv"):
        UniformEnd("env")
    late = UniformEnd(Latecomer())
    with pytest.raises(
        ValueError, match=r"UniformEnd .*agent_1 is missing in .*Name in possible_agents only"
    ):
        late.reset(seed=0)
    with pytest.raises(RuntimeError, match="without a running episode"):
        late.step(actions("a", "b"))


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (Vanishing, "lets agent_1 vanish"),
        (Blind, "agent_0 vanish, or live on without an observation"),
        (Stingy, "must give agent_1 a reward"),
    ],
)
def test_environments_that_break_the_contract_are_blamed(inner, message):
    env = UniformEnd(inner())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(actions("a", "b"))
