"""Views around views, in the order in which they are meant to stand."""

import copy
import warnings

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from marlogue.envs import coordination_v0
from marlogue.wrappers.action_mask import ActionMask
from marlogue.wrappers.candidates import CandidateActions
from marlogue.wrappers.dict_prompt import DictPrompt
from marlogue.wrappers.embeddings import EmbedObservations, HashedNgrams
from marlogue.wrappers.history import History
from marlogue.wrappers.numeric_state import NumericState
from marlogue.wrappers.token_by_token import TokenByToken
from marlogue.wrappers.tokens import TokenActions, TokenObservations
from marlogue.wrappers.uniform_end import UniformEnd
from marlogue.wrappers.vocabulary import Words
from tests.support.envs import LeaverEnv
from tests.support.strangers import EchoGame, TakingTurns

SAID = Words(["ant", "bee", "red", "quit"], separator="")
READ = Words([*coordination_v0.VOCABULARY, *EchoGame.WORDS, "quit"], unknown="?")


def texts(env):
    return History(UniformEnd(env), 300)


def read(env):
    return TokenObservations(env, READ, 9, prompt_overflow="truncate")


CHAINS = {
    "text": texts,
    "dict": lambda env: DictPrompt(texts(env)),
    "candidates": lambda env: NumericState(
        EmbedObservations(
            CandidateActions(texts(env), ["ant", "red"], fill="ant"), HashedNgrams(8)
        ),
        info_keys=["waits", "history_dropped"],
    ),
    "tokens": lambda env: NumericState(read(TokenActions(texts(env), SAID, 1))),
    "token by token": lambda env: ActionMask(
        NumericState(
            read(TokenByToken(texts(env), SAID, 1)),
            info_keys=["prompt_tokens"],
        )
    ),
}
INNER = {
    "coordination": lambda: coordination_v0.parallel_env(num_turns=2),
    "leaver": LeaverEnv,
    "stranger": EchoGame,
    "in turn": TakingTurns,
}


@pytest.fixture(params=INNER)
def inner(request):
    return INNER[request.param]()


@pytest.fixture(params=CHAINS)
def env(request, inner):
    return CHAINS[request.param](inner)


def sampled(env, shown, draw):
    """An action of each agent, that the mask allows where the observation has one."""
    acted = {}
    for agent in env.agents:
        space = env.action_space(agent)
        space.seed(int(draw.integers(1000)))
        seen = shown[agent]
        masked = isinstance(seen, dict) and "action_mask" in seen
        acted[agent] = space.sample(mask=seen["action_mask"]) if masked else space.sample()
    return acted


def play(env, shown, draw):
    told = [repr(shown)]
    while env.agents:
        result = env.step(sampled(env, shown, draw))
        shown = result.observations
        for agent, observation in shown.items():
            assert env.observation_space(agent).contains(observation), (agent, observation)
        told.append(repr(result))
    return told


def test_the_conformance_suite(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Agent was given info")  # __common__
        warnings.filterwarnings("ignore", message="Agent was given reward")
        parallel_api_test(env, num_cycles=30)


def test_observations_are_contained_and_seeds_give_the_same_episode(env):
    first, second = (play(env, env.reset(seed=3)[0], np.random.default_rng(0)) for _ in range(2))
    assert first == second
    assert len(first) > 1


def test_a_copy_in_mid_episode_plays_on_alike(env):
    shown, _ = env.reset(seed=3)
    shown = env.step(sampled(env, shown, np.random.default_rng(1))).observations
    twin = copy.deepcopy(env)
    assert play(twin, shown, np.random.default_rng(2)) == play(env, shown, np.random.default_rng(2))


@pytest.mark.parametrize("chain", ["candidates", "tokens", "token by token"])
def test_what_numeric_libraries_are_given(chain, inner):
    env = CHAINS[chain](inner)
    _, infos = env.reset(seed=0)
    keys = [{agent: sorted(info) for agent, info in infos.items()}]
    while env.agents:
        shown = env.step({a: 0 if chain != "tokens" else np.array([0]) for a in env.agents})
        keys.append({agent: sorted(info) for agent, info in shown.infos.items()})
        state = env.state()
        assert env.state_space.contains(state)
        assert state.dtype == np.float32
    assert "__common__" not in keys[-1]
    if chain != "tokens":  # info_keys are given
        assert all(key == keys[0] for key in keys)
