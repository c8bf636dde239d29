"""What all views do alike."""

import pytest
from gymnasium.spaces import Text

from marlogue.envs import UnicodeText, coordination_v0
from marlogue.wrappers import CandidateActions, SingleAgent
from marlogue.wrappers.view import View
from tests.support.strangers import EchoGame


class Late(EchoGame):
    """It has no `agents` before the first reset, as PettingZoo's tutorials write it."""

    def __init__(self, space=None):
        super().__init__()
        del self.agents
        if space is not None:
            self._observations = dict.fromkeys(self.possible_agents, space)


def test_an_environment_without_agents_before_reset():
    for env in (View(Late()), CandidateActions(Late(), ["ant"])):
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step({"ann": "ant", "bob": "ant"})
        env.reset()
        assert env.agents == ["ann", "bob"]


@pytest.mark.parametrize("space", [UnicodeText(2), Text(2)])
def test_errors_of_long_texts_are_short(space):
    class Long(Late):
        def _shown(self):
            return dict.fromkeys(self.agents, "word" * 9_999)

    with pytest.raises(ValueError, match=r"observation of ann .'wordword.*not in the ob") as caught:
        View(Long(space)).reset()
    assert len(str(caught.value)) < 500

    env = View(coordination_v0.parallel_env(max_completion_chars=9))
    env.reset()
    with pytest.raises(ValueError, match=r"the action of agent_0 .'wordword") as caught:
        env.step(dict.fromkeys(env.agents, "word" * 9_999))
    assert len(str(caught.value)) < 300

    env = SingleAgent(env, others=lambda prompt: "word" * 9_999)
    env.reset()
    with pytest.raises(ValueError, match=r"the action .'wordword") as caught:
        env.step("word" * 9_999)
    assert len(str(caught.value)) < 300
    with pytest.raises(ValueError, match="policy of agent_1 in others answered 'word") as caught:
        env.step("red")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("paid", [float("nan"), "1", None])
@pytest.mark.parametrize("made", [View, SingleAgent])
def test_rewards_must_be_finite_numbers(made, paid):
    class Paid(EchoGame):
        def step(self, actions):
            shown, rewards, *rest = super().step(actions)
            return (shown, {**rewards, "ann": paid}, *rest)

    env = made(Paid()) if made is View else made(Paid(), others=lambda word: word)
    env.reset()
    with pytest.raises(ValueError, match=r"gave the reward (nan|'1'|None) \(ann\)"):
        env.step({"ann": "ant", "bob": "bee"} if made is View else "ant")
