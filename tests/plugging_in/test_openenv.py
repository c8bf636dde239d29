"""OpenEnv: a server of its own process, stepped by OpenEnv's client over loopback."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from tests.support.command_line import ROOT
from tests.support.libraries import needs

needs("openenv")

from gymnasium.spaces import Discrete  # noqa: E402
from openenv.core.env_server import Environment  # noqa: E402
from websockets.exceptions import ConnectionClosed  # noqa: E402

from marlogue.envs import UnicodeText, coordination_v0  # noqa: E402
from marlogue.wrappers.openenv import (  # noqa: E402
    TeamAction,
    TeamClient,
    TeamEnvironment,
    application,
)
from tests.support.envs import LeaverEnv  # noqa: E402
from tests.support.strangers import EchoGame, TakingTurns  # noqa: E402

pytestmark = pytest.mark.optional

SERVE = """
import socket, sys
import uvicorn
from marlogue.envs import coordination_v0
from marlogue.wrappers.openenv import application
listening = socket.socket(fileno=int(sys.argv[1]))
app = application(coordination_v0.parallel_env(num_turns=2), max_sessions=2)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run([listening])
"""


@pytest.fixture(scope="module")
def url():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-c", SERVE, str(listening.fileno())]
        server = subprocess.Popen(command, cwd=ROOT, pass_fds=[listening.fileno()])
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            wait_for(address, server)
            yield address
        finally:
            server.terminate()
            server.wait(timeout=30)


def wait_for(address, server, seconds=100):
    for _ in range(10 * seconds):
        with contextlib.suppress(urllib.error.URLError, TimeoutError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        assert server.poll() is None, "the server did not start"
        time.sleep(0.1)
    raise TimeoutError(f"no server at {address}")


def said(first, second):
    return TeamAction(texts={"agent_0": first, "agent_1": second})


def test_an_episode_over_the_network_is_that_of_the_environment(url):
    here = coordination_v0.parallel_env(num_turns=2)
    with TeamClient(url).sync() as client:
        for row, answers in ((2, [("blue", "red"), ("blue", "blue")]), (1, [("x", "é😀")] * 2)):
            begun = client.reset(options={"row": row}, episode_id=f"row {row}")
            shown, infos = here.reset(options={"row": row})
            assert begun.observation.prompts == shown
            assert begun.observation.infos == json.loads(json.dumps(infos))
            assert (begun.reward, begun.done, begun.observation.rewards) == (None, False, {})
            for turn, (first, second) in enumerate(answers):
                result = client.step(said(first, second))
                expected = here.step({"agent_0": first, "agent_1": second})
                assert result.observation.rewards == expected.rewards
                assert result.reward == sum(expected.rewards.values()) / 2
                assert result.observation.prompts == expected.observations
                assert result.observation.agents == here.agents
                assert result.done == (turn == 1)
                state = client.state()
                assert state.step_count == turn + 1
                assert state.episode_id == f"row {row}"
                assert state.joint == here.state()
            assert result.observation.terminated == ["agent_0", "agent_1"]
            assert result.observation.truncated == []
            assert state.agents == []


def test_rewards_are_those_of_each_agent():
    env = TeamEnvironment(coordination_v0.parallel_env(reward_func=lambda a, b: [[1.0, 4.0]]))
    env.reset()
    observation = env.step(said("red", "red"))
    assert observation.rewards == {"agent_0": 1.0, "agent_1": 4.0}
    assert observation.reward == 2.5
    assert env.state.returns == {"agent_0": 1.0, "agent_1": 4.0}


def test_who_has_left_counts_in_the_team_reward():
    env = TeamEnvironment(LeaverEnv())
    observation, total = env.reset(), 0.0
    assert len(observation.agents) == 2
    while not observation.done:
        observation = env.step(TeamAction(texts=dict.fromkeys(observation.agents, "a")))
        total += observation.reward
    assert total == sum(env.state.returns.values()) / 2
    assert len(set(env.state.returns.values())) == 2


def test_what_a_stranger_would_not_check():
    class Stranger(EchoGame):
        paid = 1.0

        def step(self, actions):
            shown, _, *rest = super().step(actions)
            return (shown, dict.fromkeys(shown, self.paid), *rest)

    inner = Stranger()
    del inner.agents  # as before the first reset of many environments
    inner._actions = {agent: UnicodeText(3) for agent in inner.possible_agents}
    env = TeamEnvironment(inner)
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(TeamAction(texts={}))
    texts = dict.fromkeys(env.reset().agents, "abc")
    with pytest.raises(ValueError, match=r"\('abcd'\) must be in the action space of ann"):
        env.step(TeamAction(texts={**texts, "ann": "abcd"}))
    with pytest.raises(ValueError, match="unknown or finished eve"):
        env.step(TeamAction(texts={**texts, "eve": "abc"}))
    inner.paid = float("nan")
    with pytest.raises(ValueError, match="the reward is nan"):
        env.step(TeamAction(texts=texts))


def test_sessions_share_the_order_of_rows_and_nothing_else(url):
    with TeamClient(url).sync() as one, TeamClient(url).sync() as other:
        cues = []
        for client in (one, other, other, one):
            cues += set(client.reset().observation.prompts.values())
        assert sorted(cues) == sorted(coordination_v0.ANSWERS)
        one.step(said("red", "red"))
        assert one.state().step_count == 1
        assert other.state().step_count == 0
        for _ in range(2):  # a seed begins the same episode, whatever was played before
            assert one.reset(seed=3).observation.prompts["agent_0"] == "dawn"


def test_mistakes_of_a_client_end_nothing(url):
    with TeamClient(url).sync() as client:
        with pytest.raises(RuntimeError, match="without a running episode; call reset first"):
            client.step(said("red", "red"))
        client.reset(options={"row": 0})
        with pytest.raises(RuntimeError, match="agent_1"):
            client.step(TeamAction(texts={"agent_0": "red"}))
        assert client.step(said("red", "red")).reward == 1.0


def test_the_server_refuses_one_session_too_many(url):
    async def three():
        clients = [TeamClient(url) for _ in range(3)]
        try:
            await clients[0].reset()
            await clients[1].reset()
            # The refusal may come before or after the server has hung up.
            with pytest.raises((RuntimeError, ConnectionClosed), match=r"CAPACITY_REACHED|1000"):
                await clients[2].reset()
        finally:
            for client in clients:
                await client.close()

    asyncio.run(three())


def test_who_waits_may_say_nothing():
    env = TeamEnvironment(TakingTurns(turns=2))
    assert isinstance(env, Environment)
    observation = env.reset(seed=0)
    (waiting,) = observation.waiting
    (mover,) = set(observation.agents) - {waiting}
    shown = observation.prompts[mover]
    following = env.step(TeamAction(texts={mover: shown}))
    assert following.rewards[mover] == 1.0
    assert following.waiting == [mover]


def test_infos_become_json_or_an_error():
    class WithInfos(EchoGame):
        extra = np.arange(2)

        def reset(self, seed=None, options=None):
            shown, infos = super().reset(seed, options)
            infos["ann"]["extra"] = self.extra
            return shown, infos

    env = WithInfos()
    assert TeamEnvironment(env).reset().infos["ann"] == {"extra": [0, 1]}
    env.extra = {"loss": float("nan")}
    with pytest.raises(TypeError, match=r"infos\['ann'\]\['extra'\]\['loss'\] \(nan\) must be"):
        TeamEnvironment(env).reset()
    env.extra = object()
    with pytest.raises(TypeError, match=r"infos\['ann'\]\['extra'\] .* that JSON can express"):
        TeamEnvironment(env).reset()


def test_faults_of_the_environment_are_logged(caplog):
    def reward(first, second):
        raise KeyError("broken")

    env = TeamEnvironment(coordination_v0.parallel_env(reward_func=reward))
    env.reset()
    with pytest.raises(KeyError, match="broken"):
        env.step(said("red", "red"))
    assert "KeyError" in caplog.text


def test_what_cannot_be_served():
    with pytest.raises(ValueError, match=r"max_sessions \(0\)"):
        application(coordination_v0.parallel_env(), max_sessions=0)
    env = EchoGame()
    env._actions = dict.fromkeys(env.possible_agents, Discrete(2))
    with pytest.raises(TypeError, match="OpenEnv needs an environment whose actions are texts"):
        application(env)


def test_example(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/plugging_in/openenv_server.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    before, after = (float(line.split()[-1]) for line in done.stdout.splitlines())
    assert before < 0.3
    assert after == 1.0
