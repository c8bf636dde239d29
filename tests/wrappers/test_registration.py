"""Gymnasium ids of the tasks."""

import subprocess
import sys
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from marlogue.envs import TASKS
from marlogue.wrappers import SingleAgent, TextVectorEnv
from marlogue.wrappers.registration import gymnasium_id, register_all
from tests.support.libraries import needs_coding

IDS = register_all()
COORDINATION = "marlogue/coordination-v0"
CODE_PAIR = "marlogue/code_pair-v0"
MARKED = [pytest.param(name, marks=needs_coding if name == CODE_PAIR else []) for name in IDS]


def test_ids():
    assert IDS == [CODE_PAIR, "marlogue/coordination-v0", "marlogue/story_length-v0"]
    assert [gymnasium_id(task) for task in TASKS] == IDS
    assert all(name in gymnasium.registry for name in IDS)


@pytest.mark.parametrize("name", MARKED)
def test_check_env(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name).unwrapped)


def test_make_takes_what_view_and_task_take():
    env = gymnasium.make(COORDINATION, agent="agent_1", others=lambda prompt: "red", num_turns=2)
    assert isinstance(env.unwrapped, SingleAgent)
    assert env.unwrapped.agent == "agent_1"
    assert env.reset(seed=0)[0] == "dawn"
    assert env.step("blue")[:3] == ("dawn heard red", 0.25, False)
    assert env.spec.id == COORDINATION


def test_partners_that_are_there_by_default():
    env = gymnasium.make(COORDINATION)
    for word in ("red", "gold", "blue", "black"):
        env.reset()
        assert env.step(word)[1] == 1.0
    for agent, length in (("short", 30), ("long", 190)):
        env = gymnasium.make("marlogue/story_length-v0", agent=agent)
        env.reset(seed=0)
        assert env.step("x" * length)[1] == 1.0


@needs_coding
def test_the_partner_of_a_programmer():
    row = {
        "prompt": 'def least(x):\n    """The least."""\n',
        "entry_point": "least",
        "test": "def check(candidate):\n    assert candidate([2, 1]) == 1\n",
    }
    env = gymnasium.make(CODE_PAIR, dataset=[row])
    env.reset()
    assert env.step("def aux(x):\n    return min(x)")[1] == 3.0  # a main that adds nothing
    env = gymnasium.make(CODE_PAIR, dataset=[row], agent="agent_1")
    env.reset()
    assert env.step("def least(x):\n    return min(aux(x)[0])")[1] == 4.0


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_environments(mode):
    env = gymnasium.make_vec(
        COORDINATION, num_envs=3, vectorization_mode="vector_entry_point", autoreset_mode=mode.value
    )
    assert isinstance(env, TextVectorEnv)
    assert env.metadata["autoreset_mode"] is mode
    assert env.reset(seed=0)[0] == ("dawn", "noon", "dusk")
    assert env.step(["red"] * 3)[1].tolist() == [1.0, 0.25, 0.25]


def test_it_is_the_default_way_to_vectorise_and_gymnasiums_own_works():
    assert isinstance(gymnasium.make_vec(COORDINATION, num_envs=2), TextVectorEnv)
    env = gymnasium.make_vec(COORDINATION, num_envs=2, vectorization_mode="sync", num_turns=2)
    assert isinstance(env, SyncVectorEnv)
    assert env.reset(seed=0)[0] == ("dawn", "dawn")
    assert env.step(["red", "gold"])[0] == ("dawn heard red", "dawn heard red")


def test_texts_come_out_of_processes_without_shared_memory():
    env = gymnasium.make_vec(
        COORDINATION,
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": False},
        num_turns=2,
    )
    try:
        assert env.reset(seed=0)[0] == ("dawn", "dawn")
        prompts, rewards, *_ = env.step(("red", "gold"))
        assert prompts == ("dawn heard red", "dawn heard red")
        assert rewards.tolist() == [1.0, 0.25]
    finally:
        env.close()


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"agnt": "agent_1"}, r"no keyword 'agnt'; did you mean 'agent'\? It takes agent, others"),
        ({"autoreset_mode": "SameStep"}, "no keyword 'autoreset_mode'"),
        ({"agent": "short"}, "must be one of agent_0, agent_1"),
        ({"others": {"agent_2": len}}, "lacks agent_1 and names agent_2"),
        ({"num_agents": 1}, "set num_agents to 2 or more"),
    ],
)
def test_keywords_that_are_wrong(kwargs, match):
    with pytest.raises(ValueError, match=match):
        gymnasium.make(COORDINATION, **kwargs)


def test_a_fresh_process_makes_it_by_one_name_and_loads_no_model_library():
    script = (
        "import gymnasium, sys\n"
        f"env = gymnasium.make('marlogue.wrappers:{COORDINATION}')\n"
        "env.reset(seed=0)\n"
        "print(env.step('red')[1], 'torch' in sys.modules, 'transformers' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1.0", "False", "False"]
