"""History: an agent's whole dialogue as its observation."""

import copy
import pickle
import warnings

import pytest
from pettingzoo.test import parallel_api_test

from marlogue.envs import UnicodeText, check_text_env, coordination_v0
from marlogue.wrappers.history import History
from marlogue.wrappers.uniform_end import UniformEnd
from tests.support.envs import LeaverEnv, actions, text_env


def said(agent_completions, **_):
    return [f"{len(text)}?" for text in agent_completions]


def counting(**kwargs):
    """The next prompt is how many characters the agent wrote."""
    return text_env(**{"num_turns": 4, "external_transition": said, **kwargs})


def labelled(turns, prompt):
    return "".join(f"Q: {asked} A: {answered} " for asked, answered in turns) + f"Q: {prompt}"


class Waiting(LeaverEnv):
    """agent_1 waits in the second turn."""

    def step(self, actions):
        returned = super().step(actions)
        return *returned[:4], {agent: {"waits": self.turn == 1} for agent in actions}


def test_each_agent_is_shown_its_own_dialogue():
    env = History(counting(), 100)
    assert env.observation_space("agent_0") == UnicodeText(100)
    shown, infos = env.reset(seed=0)
    assert shown == {"agent_0": "x", "agent_1": "x"}
    assert infos["agent_0"]["history_dropped"] == 0
    shown = env.step(actions("", "🙂 one\ntwo")).observations
    assert shown == {"agent_0": "x\n\n\n0?", "agent_1": "x\n🙂 one\ntwo\n\n9?"}
    shown = env.step(actions("\N{REPLACEMENT CHARACTER}", "")).observations
    assert shown["agent_0"] == "x\n\n\n0?\n\N{REPLACEMENT CHARACTER}\n\n1?"
    assert shown["agent_1"] == "x\n🙂 one\ntwo\n\n9?\n\n\n0?"
    # The environment's last prompts are those of the last turn; the next episode begins anew.
    env.step(actions("a", "b"))
    result = env.step(actions("a", "b"))
    assert result.observations["agent_1"].endswith("9?\n\n\n0?\nb\n\n1?\nb\n\n1?")
    assert result.terminations["agent_0"]
    assert env.reset(options={"row": 1})[0] == {"agent_0": "y", "agent_1": "y"}


def test_whole_turns_are_dropped_the_oldest_first():
    # Each turn behind the first is "1?\na\n\n", 6 characters, and the prompt "1?" has 2.
    env = History(counting(num_turns=6), 14)
    env.reset(seed=0)
    shown, dropped = [], []
    for _ in range(5):
        *_, infos = result = env.step(actions("a", "a"))
        shown.append(result.observations["agent_0"])
        dropped.append(infos["agent_0"]["history_dropped"])
    turn = "1?\na\n\n"
    assert shown[:3] == ["x\na\n\n1?", f"x\na\n\n{turn}1?", f"{turn}{turn}1?"]
    assert shown[3:] == [f"{turn}{turn}1?"] * 2
    assert dropped == [0, 0, 1, 2, 3]
    assert len(shown[-1]) == 14  # it fits exactly
    tight = History(counting(), 13)
    tight.reset(seed=0)
    for _ in range(3):
        result = tight.step(actions("a", "a"))
    assert result.observations["agent_0"] == f"{turn}1?"


def test_a_long_answer_drops_its_own_turn_but_the_prompt_is_whole():
    env = History(counting(), 5)
    env.reset(seed=0)
    result = env.step(actions("a long answer", "a"))
    assert result.observations == {"agent_0": "13?", "agent_1": "1?"}
    assert result.infos["agent_0"]["history_dropped"] == 1


def test_a_prompt_that_is_too_long_by_itself():
    env = History(counting(), 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"max_chars \(2\) .* of agent_1 alone has 3. Raise it"):
        env.step(actions("a", "0123456789"))


def test_a_format_of_ones_own():
    env = History(counting(), 20, formatter=labelled)
    assert env.reset(seed=0)[0]["agent_0"] == "Q: x"
    assert env.step(actions("a", "b")).observations["agent_0"] == "Q: x A: a Q: 1?"
    result = env.step(actions("a", "b"))
    assert result.observations["agent_1"] == "Q: 1? A: b Q: 1?"
    assert result.infos["agent_1"]["history_dropped"] == 1


def test_a_turn_in_which_an_agent_waited_is_not_its_own():
    env = History(UniformEnd(LeaverEnv()), 200)
    env.reset(seed=0)
    env.step(actions("a", "b"))
    result = env.step(actions("a", "ignored"))
    assert result.observations["agent_1"] == "seed 0, turn 0\nb\n\nseed 0, turn 0"
    assert result.observations["agent_0"].count("\na\n") == 2

    env = History(Waiting(), 200)
    env.reset(seed=0)
    env.step(actions("a", "b"))
    shown = env.step({"agent_0": "not my turn"}).observations["agent_0"]
    assert shown == "seed 0, turn 0\na\n\nseed 0, turn 1"


def test_a_step_that_fails_is_not_part_of_the_dialogue():
    def reward(first, second):
        if first == ["bad"]:
            raise OSError("judge is away")
        return [1.0]

    env = History(counting(reward_func=reward), 100)
    env.reset(seed=0)
    with pytest.raises(OSError, match="judge is away"):
        env.step(actions("bad", "b"))
    with pytest.raises(ValueError, match="must be in its action space"):
        env.step(actions("a", None))
    assert env.step(actions("a", "b")).observations["agent_0"] == "x\na\n\n1?"


def test_it_is_a_text_environment_like_any_other():
    check_text_env(History(counting(), 500))
    check_text_env(History(UniformEnd(LeaverEnv()), 500))
    check_text_env(History(coordination_v0.parallel_env(num_turns=2), 500))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(History(LeaverEnv(), 500), num_cycles=10)


def test_copies_in_mid_episode():
    env = History(counting(), 100, formatter=labelled)
    env.reset(seed=0)
    env.step(actions("a", "b"))
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    env.step(actions("other", "other"))
    for twin in twins:
        shown = twin.step(actions("c", "d")).observations
        assert shown["agent_0"] == "Q: x A: a Q: 1? A: c Q: 1?"
    assert twins[0].formatter is labelled


def test_bad_input():
    with pytest.raises(ValueError, match=r"max_chars \(0\)"):
        History(counting(), 0)
    with pytest.raises(TypeError, match=r"formatter \(3\) must be callable"):
        History(counting(), 10, formatter=3)
    env = History(counting(), 10, formatter=lambda turns, prompt: turns)
    with pytest.raises(ValueError, match=r"formatter .* must return a text, not a list"):
        env.reset()

    def failing(turns, prompt):
        raise KeyError(prompt)

    with pytest.raises(KeyError) as caught:
        History(counting(), 10, formatter=failing).reset()
    assert "writing the dialogue of agent_0" in str(caught.value.__notes__)
