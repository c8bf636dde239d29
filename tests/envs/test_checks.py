"""check_text_env: passes what is sound, and each check catches its fault (C55, C57, ...)."""

import copy
import random

import gymnasium
import numpy as np
import pytest

from marlogue.envs import ConformanceError, TextEnv, UnicodeText, check_text_env
from marlogue.envs.checks import CHECKS
from tests.support.envs import ROWS, LeaverEnv, echo, length_reward, text_env


class Sound(TextEnv):
    """What the broken environments below differ from in one way each."""

    def __init__(self, **kwargs):
        settings = {"num_turns": 2, "external_transition": echo, "name": "sound_v0"}
        super().__init__(ROWS, length_reward, **{**settings, **kwargs})


class NewSpaces(Sound):
    def action_space(self, agent):
        return UnicodeText(100)


class TwinNames(Sound):
    def __init__(self):
        super().__init__()
        self.possible_agents = ["agent_0", "agent_0"]


class NoOptions(Sound):
    def reset(self, seed=None, options=None):
        if options:
            raise ConformanceError("unknown option")
        return super().reset(seed)


class ForgottenAgents(Sound):
    """Resets without bringing the agents back."""

    def reset(self, seed=None, options=None):
        returned = super().reset(seed, options)
        self.agents = []
        return returned


class ResetWithoutInfos(Sound):
    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0]


class StockActions(Sound):
    def __init__(self):
        super().__init__()
        self.action_spaces = {a: gymnasium.spaces.Text(100) for a in self.possible_agents}


class NumberActions(Sound):
    def __init__(self):
        super().__init__()
        self.action_spaces = {a: gymnasium.spaces.Discrete(3) for a in self.possible_agents}


class LongObservations(Sound):
    """Its second prompt is longer than its space allows."""

    def __init__(self):
        super().__init__()
        self.observation_spaces = {a: UnicodeText(4) for a in self.possible_agents}


class LongFirstObservations(LongObservations):
    def __init__(self):
        super().__init__()
        self.observation_spaces = {a: UnicodeText(0) for a in self.possible_agents}


class StepChanged(Sound):
    """Changes what step returns; subclasses say how."""

    def step(self, actions):
        last = len(self._state.turns) == self.num_turns - 1
        result = super().step(actions)
        return self.change(copy.deepcopy(result), last)


class NeverEnds(StepChanged):
    def change(self, result, last):
        if last:
            self.reset()
        return result._replace(terminations=dict.fromkeys(result.terminations, False))


class NotEmptied(StepChanged):
    def change(self, result, last):
        self.agents = list(self.possible_agents)
        return result


class UnequalFlags(StepChanged):
    def change(self, result, last):
        if last:
            result.terminations["agent_1"] = False
            result.truncations["agent_1"] = True
        return result


class NumpyFlags(StepChanged):
    def change(self, result, last):
        return result._replace(truncations=dict.fromkeys(result.truncations, np.False_))


class MissingFlags(StepChanged):
    def change(self, result, last):
        return result._replace(terminations={"agent_0": result.terminations["agent_0"]})


class FourParts(StepChanged):
    def change(self, result, last):
        return tuple(result)[:4]


class NoTerminalReward(StepChanged):
    def change(self, result, last):
        return result._replace(rewards={}) if last else result


class NanReward(StepChanged):
    def change(self, result, last):
        result.rewards["agent_1"] = float("nan") if last else 0.0
        return result


class TextReward(StepChanged):
    def change(self, result, last):
        result.rewards["agent_1"] = "1.0"
        return result


class SameDicts(StepChanged):
    rewards_again: dict = {}  # noqa: RUF012

    def change(self, result, last):
        self.rewards_again.clear()
        self.rewards_again.update(result.rewards)
        return result._replace(rewards=self.rewards_again)


class RewrittenDicts(Sound):
    """Writes into the observations that it returned before."""

    def reset(self, seed=None, options=None):
        self.shown, infos = super().reset(seed, options)
        return self.shown, infos

    def step(self, actions):
        result = super().step(actions)
        self.shown.update(agent_0="rewritten")
        return result


class ArrayInfos(StepChanged):
    def change(self, result, last):
        result.infos["agent_0"]["array"] = np.zeros(2)
        return result


class NanInfos(Sound):
    def reset(self, seed=None, options=None):
        shown, infos = super().reset(seed, options)
        infos["__common__"]["score"] = float("nan")
        return shown, infos


class NoInfo(StepChanged):
    def change(self, result, last):
        del result.infos["agent_1"]
        return result


class Unseeded(Sound):
    """Goes on with its rows whatever the seed."""

    def reset(self, seed=None, options=None):
        return super().reset(None, options)


class LaterUnseeded(StepChanged):
    """The first turn is reproducible, the second is not: PettingZoo's seed test is content."""

    count = 0

    def change(self, result, last):
        self.count += 1
        if last:
            result.rewards["agent_0"] += self.count
        return result


class GlobalGenerator(Sound):
    def reset(self, seed=None, options=None):
        random.seed(seed)
        return super().reset(seed, options)


class GlobalNumpy(StepChanged):
    def change(self, result, last):
        np.random.seed(0)  # noqa: NPY002
        return result


class Lambdas(Sound):
    def __init__(self):
        super().__init__(reward_processor=lambda reward: reward)


class SharedEpisode(Sound):
    """Its deep copies are the original."""

    def __deepcopy__(self, memo):
        return self


class ForgetfulCopy(Sound):
    """A copy starts with another episode."""

    def __getstate__(self):
        state = self.__dict__.copy()
        state["_state"] = None
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.reset(options={"row": 2})


class WideState(Sound):
    def __init__(self):
        super().__init__()
        self.state_space = UnicodeText(10)


class Revived(Sound):
    """Answers a step after the end with a new episode."""

    def step(self, actions):
        if not self.agents:
            self.reset()
        return super().step(actions)


BROKEN = {
    "interface": [NewSpaces, TwinNames],
    "containment": [StockActions, NumberActions, LongObservations, LongFirstObservations],
    "reset": [NoOptions, ForgottenAgents, ResetWithoutInfos, NeverEnds, NotEmptied, FourParts],
    "end_flags": [UnequalFlags, NumpyFlags, MissingFlags],
    "after_end": [Revived],
    "rewards": [NoTerminalReward, NanReward, TextReward],
    "infos": [ArrayInfos, NanInfos, NoInfo],
    "fresh_dicts": [SameDicts, RewrittenDicts],
    "seeding": [Unseeded, LaterUnseeded, GlobalGenerator, GlobalNumpy],
    "copies": [Lambdas, SharedEpisode, ForgetfulCopy],
    "state": [WideState],
}
CASES = [(check, broken) for check, all_broken in BROKEN.items() for broken in all_broken]


def test_the_sound_environment_passes():
    check_text_env(Sound(), max_turns=10)
    check_text_env(Sound(shuffle=True, early_termination_threshold=5.0), seed=4, max_turns=10)


def test_every_check_has_a_broken_environment():
    assert list(BROKEN) == list(CHECKS)


@pytest.mark.parametrize(("check", "broken"), CASES)
def test_a_fault_is_caught_by_its_check(check, broken):
    with pytest.raises(ConformanceError):
        check_text_env(broken(), max_turns=10, skip=set(CHECKS) - {check})


@pytest.mark.parametrize(("check", "broken"), CASES)
def test_a_fault_is_caught_in_the_whole_run(check, broken):
    with pytest.raises(ConformanceError):
        check_text_env(broken(), max_turns=10)


def test_messages_name_environment_agent_and_turn():
    with pytest.raises(
        ConformanceError, match=r"sound_v0: the reward of agent_1 in turn 1, the last"
    ):
        check_text_env(NanReward())
    with pytest.raises(ConformanceError, match=r"use marlogue\.envs\.UnicodeText"):
        check_text_env(StockActions())


def test_agents_that_leave_early_have_to_be_announced():
    with pytest.raises(ConformanceError, match="leaving=True"):
        check_text_env(LeaverEnv())
    check_text_env(LeaverEnv(), leaving=True, skip={"after_end"})
    check_text_env(UnequalFlags(), leaving=True)


def test_a_missing_state_is_no_fault():
    check_text_env(LeaverEnv(), leaving=True, skip=set(CHECKS) - {"state"})


def test_unknown_checks_cannot_be_skipped():
    with pytest.raises(ValueError, match=r"skip \(speed\)"):
        check_text_env(Sound(), skip=["speed"])


def test_what_is_no_environment():
    with pytest.raises(ConformanceError, match="ParallelEnv"):
        check_text_env(text_env)


def test_the_global_generators_are_left_as_they_were():
    states = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    check_text_env(Sound())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # noqa: NPY002
