"""TokenByToken: one token per step, a turn when all texts are closed."""

import copy
import pickle
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from pettingzoo.test import parallel_api_test

from marlogue.envs import UnicodeText, coordination_v0
from marlogue.envs.coordination_v0 import ANSWERS
from marlogue.wrappers.token_by_token import TokenByToken
from marlogue.wrappers.tokens import TokenObservations
from marlogue.wrappers.uniform_end import UniformEnd
from marlogue.wrappers.vocabulary import Words
from tests.support.envs import LeaverEnv, text_env
from tests.support.strangers import EchoGame, TakingTurns

WORDS = Words(["red", "gold", "blue"], end="<end>")
RED, GOLD, BLUE, END = range(4)


def coordination(**kwargs):
    return coordination_v0.parallel_env(**{"num_turns": 2, **kwargs})


def act(env, *choices):
    return dict(zip(env.possible_agents, choices, strict=True))


def masks(infos):
    return {a: info["action_mask"].tolist() for a, info in infos.items() if "action_mask" in info}


class Listening(LeaverEnv):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.given = []

    def step(self, actions):
        self.given.append(dict(actions))
        return super().step(actions)


class Turns(LeaverEnv):
    """The agents move in turn; the one that does not is told to wait."""

    def reset(self, seed=None, options=None):
        self.given = []
        shown, _ = super().reset(seed, options)
        return shown, self._infos()

    def step(self, actions):
        self.given.append(dict(actions))
        self.turn += 1
        over = dict.fromkeys(self.agents, self.turn == 3)
        returned = self._shown(), dict.fromkeys(self.agents, 1.0), over, dict.fromkeys(over, False)
        if self.turn == 3:
            self.agents = []
        return *returned, self._infos()

    def _infos(self):
        return {a: {"waits": i != self.turn % 2} for i, a in enumerate(self.possible_agents)}


OPEN, CLOSED = [1, 1, 1, 1], [0, 0, 0, 1]


def test_a_turn_token_by_token():
    env = TokenByToken(coordination(), WORDS, 2)
    assert env.action_space("agent_0") == Discrete(4)
    shown, infos = env.reset(seed=0)
    assert shown == {"agent_0": "dawn", "agent_1": "dawn"}
    assert masks(infos) == {"agent_0": OPEN, "agent_1": OPEN}
    assert infos["agent_0"]["action_mask"].dtype == np.int8
    assert infos["agent_0"]["row"] == 0

    # One writes on, the other has closed its text, and waits.
    shown, rewards, terminations, truncations, infos = env.step(act(env, GOLD, END))
    assert shown == {"agent_0": "dawn\ngold", "agent_1": "dawn"}
    assert rewards == {"agent_0": 0.0, "agent_1": 0.0}
    assert not any([*terminations.values(), *truncations.values()])
    assert masks(infos) == {"agent_0": OPEN, "agent_1": CLOSED}
    assert infos["agent_1"]["waits"] is True
    assert "waits" not in infos["agent_0"]
    assert env.unwrapped.state() == "[Agent 0] dawn\n\n[Agent 1] dawn"
    assert env.state() == env.unwrapped.state() + "\n[Agent 0] gold\n\n[Agent 1] "

    # max_tokens closes the other text: the turn is played.
    shown, rewards, _, _, infos = env.step(act(env, RED, END))
    assert shown == {"agent_0": "dawn heard nothing", "agent_1": "dawn heard gold"}
    assert masks(infos) == {"agent_0": OPEN, "agent_1": OPEN}
    assert infos["agent_0"]["raw_reward"] == 0.0
    assert infos["__common__"]["turn"] == 1
    assert not infos["agent_1"].get("waits")

    # Both right, in one step each.
    env.step(act(env, RED, RED))
    shown, rewards, terminations, _, infos = env.step(act(env, END, END))
    assert rewards == {"agent_0": 1.0, "agent_1": 1.0}
    assert terminations == {"agent_0": True, "agent_1": True}
    assert masks(infos) == {"agent_0": OPEN, "agent_1": OPEN}
    assert shown == {"agent_0": "dawn heard nothing", "agent_1": "dawn heard gold"}
    assert env.agents == []
    with pytest.raises(RuntimeError, match="without a running episode"):
        env.step({})


def test_empty_texts():
    env = TokenByToken(Listening(), WORDS, 3)
    env.reset()
    env.step(act(env, END, END))
    assert env.given == [{"agent_0": "", "agent_1": ""}]
    assert env.agents == ["agent_0"]  # agents may leave before the others
    env.step({"agent_0": RED})
    env.step({"agent_0": END})
    assert env.given[1:] == [{"agent_0": "red"}]


def test_a_text_that_must_not_be_empty():
    echo = Words([*EchoGame.WORDS, "quit"], end="<end>", separator="")
    env = TokenByToken(EchoGame(turns=2), echo, 1)
    _, infos = env.reset(seed=0)
    assert masks(infos)["bob"] == [1, 1, 1, 1, 1, 0]
    with pytest.raises(ValueError, match=r"bob \(5, '<end>'\) is masked, its text must not be emp"):
        env.step(act(env, 0, 5))
    assert env.step(act(env, 0, 1)).rewards == {"ann": 1.0, "bob": 1.0}
    _, _, terminations, _, infos = env.step(act(env, 1, 2))
    assert terminations == {"ann": True, "bob": True}
    assert masks(infos)["bob"] == [1] * 6

    env = TokenByToken(EchoGame(), Words(["a", "b"], end="<end>", separator=""), 3)
    env.reset()
    *_, infos = env.step(act(env, 0, 1))
    assert masks(infos)["ann"] == [1, 1, 1]  # there is something now

    # Whoever waits there says the least that is allowed.
    env = TokenByToken(TakingTurns(turns=2), echo, 1)
    _, infos = env.reset(seed=0)
    assert masks(infos)["bob"] == [0, 0, 0, 0, 0, 1]
    env.step(act(env, 0, 5))
    env.step(act(env, 5, 2))
    assert env.agents == []


def test_without_an_end_all_texts_have_max_tokens():
    env = TokenByToken(Listening(), Words(["red", "gold"], separator=""), 2, separator=" > ")
    env.reset(seed=1)
    assert env.step(act(env, 0, 1)).observations["agent_1"] == "seed 1, turn 0 > gold"
    env.step(act(env, 1, 0))
    assert env.given == [{"agent_0": "redgold", "agent_1": "goldred"}]


def test_nothing_is_left_of_a_text_that_was_played():
    class Remembering(EchoGame):
        def state(self):
            return f"turn {self.turn}"

        def _shown(self):
            return super()._shown() if self.turn == 0 else {}

    env = TokenByToken(Remembering(turns=1), Words(["ant", "bee"], separator=""), 2)
    env.reset(seed=0)
    env.step(act(env, 0, 1))
    assert env.state() == "turn 0\n[Agent 0] ant\n\n[Agent 1] bee"
    assert env.step(act(env, 0, 1)).observations == {}  # it shows nothing at the end
    assert env.state() == "turn 1"


def test_masked_actions():
    env = TokenByToken(coordination(), WORDS, 2)
    env.reset(seed=0)
    env.step(act(env, RED, END))
    before = env.state()
    with pytest.raises(ValueError, match=r"agent_1 \(1, 'gold'\) is masked.*set ignore_masked"):
        env.step(act(env, RED, GOLD))
    for wrong in (4, -1, 0.5, "red", None):
        with pytest.raises(ValueError, match=r"agent_0 .* must be in its action space"):
            env.step(act(env, wrong, END))
    with pytest.raises(ValueError, match="lack agent_1"):
        env.step({"agent_0": RED})
    assert env.state() == before
    assert env.step(act(env, END, END)).rewards["agent_0"] == 0.25

    lenient = TokenByToken(coordination(), WORDS, 2, ignore_masked=True)
    lenient.reset(seed=0)
    lenient.step(act(lenient, RED, END))
    shown = lenient.step(act(lenient, END, GOLD)).observations
    assert shown["agent_0"] == "dawn heard nothing"  # not "gold"


def test_agents_that_wait_are_closed_from_the_start():
    env = TokenByToken(Turns(), WORDS, 2)
    for _ in range(2):
        _, infos = env.reset(seed=0)
        assert masks(infos) == {"agent_0": OPEN, "agent_1": CLOSED}
        env.step(act(env, RED, END))
        *_, infos = env.step(act(env, END, END))
        assert masks(infos) == {"agent_0": CLOSED, "agent_1": OPEN}
        env.step(act(env, END, END))
        env.step(act(env, GOLD, END))
        *_, infos = env.step(act(env, END, END))
        assert env.given == [
            {"agent_0": "red", "agent_1": ""},
            {"agent_0": "", "agent_1": ""},
            {"agent_0": "gold", "agent_1": ""},
        ]
        assert masks(infos) == {"agent_0": OPEN, "agent_1": OPEN}
        assert env.agents == []


def test_a_waiting_agent_without_an_end_token_chooses_the_first():
    env = TokenByToken(Turns(), Words(["red", "gold"]), 1)
    _, infos = env.reset()
    assert masks(infos)["agent_1"] == [1, 0]
    env.step(act(env, 1, 0))
    assert env.given == [{"agent_0": "gold", "agent_1": ""}]


def test_around_a_team_that_ends_together():
    env = TokenByToken(UniformEnd(LeaverEnv()), WORDS, 1)
    env.reset(seed=0)
    _, rewards, _, _, infos = env.step(act(env, RED, RED))
    assert rewards == {"agent_0": 1.0, "agent_1": 1.0}
    assert masks(infos) == {"agent_0": OPEN, "agent_1": CLOSED}
    env.step(act(env, RED, END))
    result = env.step(act(env, RED, END))
    assert result.rewards == {"agent_0": 2.0, "agent_1": 0.0}
    assert result.terminations == {"agent_0": True, "agent_1": True}


def test_a_turn_that_fails_leaves_the_environment_as_it_was():
    failing = [True]

    def reward(first, second):
        if failing[0]:
            raise OSError("judge is away")
        return [float(len(first[0]))]

    env = TokenByToken(text_env(reward_func=reward), WORDS, 2)
    env.reset(seed=0)
    env.step(act(env, RED, END))
    before = env.state()
    with pytest.raises(OSError, match="judge is away"):
        env.step(act(env, END, END))
    assert env.state() == before
    assert env.agents == ["agent_0", "agent_1"]
    failing[0] = False
    assert env.step(act(env, END, END)).rewards["agent_0"] == 3.0


def test_reset_forgets_what_was_written():
    env = TokenByToken(coordination(), WORDS, 3)
    for _ in range(2):
        shown, infos = env.reset(seed=0)
        assert shown == {"agent_0": "dawn", "agent_1": "dawn"}
        assert masks(infos) == {"agent_0": OPEN, "agent_1": OPEN}
        env.step(act(env, RED, END))


def test_copies_made_in_mid_turn_play_on_apart():
    env = TokenByToken(coordination(), WORDS, 2)
    env.reset(seed=0)
    env.step(act(env, RED, END))
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    env.step(act(env, END, END))
    for twin in twins:
        assert twin.state().endswith("\n[Agent 0] red\n\n[Agent 1] ")
        assert twin.step(act(env, GOLD, END)).observations["agent_1"] == "dawn heard red"
    assert twins[0].vocabulary is env.vocabulary


def test_spaces_hold_the_longest_texts():
    env = TokenByToken(coordination(max_prompt_chars=18), WORDS, 3)
    space = env.observation_space("agent_0")
    assert space == UnicodeText(18 + 1 + 3 * 4 + 2)
    env.reset(seed=0)
    while env.agents:
        result = env.step(act(env, *[GOLD if env.state().count("gold") < 4 else END] * 2))
        assert all(space.contains(text) for text in result.observations.values())
        assert env.state_space.contains(env.state())


@pytest.mark.parametrize("inner", [coordination, lambda: UniformEnd(LeaverEnv()), LeaverEnv])
def test_it_passes_the_conformance_suite(inner):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Agent was given info")  # __common__
        parallel_api_test(TokenByToken(inner(), WORDS, 3, ignore_masked=True), num_cycles=50)


def test_token_observations_around_it():
    seen = Words([*ANSWERS, "heard", "nothing", *WORDS.words])
    env = TokenObservations(TokenByToken(coordination(), WORDS, 2), seen, 6)
    env.reset(seed=0)
    shown, *_ = env.step(act(env, BLUE, END))
    assert seen.decode(shown["agent_0"][:2].tolist()) == "dawn blue"
    assert shown["agent_0"][2:].tolist() == [env.pad] * 4


def test_bad_input():
    with pytest.raises(ValueError, match=r"max_tokens \(0\)"):
        TokenByToken(coordination(), WORDS, 0)
    with pytest.raises(TypeError, match=r"separator \(None\)"):
        TokenByToken(coordination(), WORDS, 1, separator=None)
    with pytest.raises(TypeError, match=r"ignore_masked \('no'\)"):
        TokenByToken(coordination(), WORDS, 1, ignore_masked="no")
    with pytest.raises(TypeError, match="must have the method encode"):
        TokenByToken(coordination(), ["red"], 1)
    with pytest.raises(ValueError, match=r"max_tokens \(3\) must be so small .* 14 characters"):
        TokenByToken(coordination(max_completion_chars=13), WORDS, 3)
    with pytest.raises(TypeError, match="actions are texts"):
        TokenByToken(TokenByToken(coordination(), WORDS, 1), WORDS, 1)
