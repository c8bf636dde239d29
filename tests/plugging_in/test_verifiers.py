"""verifiers: its own machinery plays a team, whose policies answer through OpenAI's protocol."""

import asyncio
import json
import subprocess
import sys

import pytest

from tests.support.command_line import ROOT
from tests.support.libraries import needs

needs("verifiers")

import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.cli.eval import main as eval_cli  # noqa: E402

from marlogue.agents import LLMPolicy, SamplingParams, tiny_model  # noqa: E402
from marlogue.envs import coordination_v0  # noqa: E402
from marlogue.wrappers.chat_server import ChatServer  # noqa: E402
from marlogue.wrappers.verifiers import environment, plugin  # noqa: E402
from tests.support.strangers import EchoGame, Pension, TakingTurns  # noqa: E402

pytestmark = pytest.mark.optional


@pytest.fixture(scope="module")
def server():
    vocabulary = [*coordination_v0.VOCABULARY, *EchoGame.WORDS]
    model, tokenizer = tiny_model(vocabulary, seed=0)
    with ChatServer(
        {"tiny": LLMPolicy(model, tokenizer)}, SamplingParams(max_new_tokens=2)
    ) as made:
        yield made


def play(env, server, times=1, **context):
    """The episodes of all tasks, each played `times` times."""
    client = vf.EvalClientConfig(base_url=server.url, api_key_var="NO_KEY_NEEDED")
    context = vf.ModelContext(**{"model": "tiny", "client": client, **context})

    async def everything():
        async with env.serving():
            slots = [slot for task in env.taskset for slot in env.slots(task, times)]
            return await asyncio.gather(*(env.run_slot(slot, context) for slot in slots))

    return asyncio.run(everything())


def talk(trace):
    """What the agent was shown and said, in turns."""
    messages = trace.branches[-1].messages
    assert [message.role for message in messages] == ["user", "assistant"] * (len(messages) // 2)
    return [message.content for message in messages]


def test_every_agent_has_a_trace_and_the_rewards_of_the_environment(server):
    env = environment("team_task", coordination_v0.parallel_env(num_turns=2))
    tasks = list(env.taskset)
    assert [task.data.row for task in tasks] == [0, 1, 2, 3]
    assert tasks[2].data.prompts == {"agent_0": "dusk", "agent_1": "dusk"}
    episodes = play(env, server, times=2)
    assert len(episodes) == 8
    here = coordination_v0.parallel_env(num_turns=2)
    for episode in episodes:
        assert episode.ok, episode.errors
        traces = {trace.agent.name: trace for trace in episode.traces}
        assert sorted(traces) == ["agent_0", "agent_1"]
        shown, _ = here.reset(options={"row": episode.task.data.row})
        talks = {name: talk(trace) for name, trace in traces.items()}
        returns = dict.fromkeys(talks, 0.0)
        for turn in range(2):
            assert {name: said[2 * turn] for name, said in talks.items()} == shown
            answers = {name: said[2 * turn + 1] or "" for name, said in talks.items()}
            shown, rewards, *_ = here.step(answers)
            returns = {name: returns[name] + rewards[name] for name in returns}
        for name, trace in traces.items():
            assert trace.reward == returns[name]
            assert trace.rewards["episode_return"].score == returns[name]
            assert trace.metrics == {"episode_turns": 2.0, "finished": 1.0}
            assert trace.agent.trainable


def test_one_agent_learns_beside_frozen_ones(server):
    env = environment(
        "beside_frozen",
        coordination_v0.parallel_env(reward_func=lambda a, b: [[0.5, float(b[0] == "red")]]),
        others={"agent_0": lambda prompt: "gold"},
    )
    for episode in play(env, server):
        assert episode.ok, episode.errors
        (trace,) = episode.traces
        assert trace.agent.name == "agent_1"
        assert trace.reward == float(talk(trace)[1] == "red")


def test_a_frozen_language_model_and_seats_that_do_not_train(server):
    model, tokenizer = tiny_model(coordination_v0.VOCABULARY, seed=1)
    heard = []

    def reward(first, second):
        heard.extend(second)
        return [0.0]

    team = coordination_v0.parallel_env(reward_func=reward)
    for _ in range(2):
        env = environment(
            "language_models",
            team,
            others={"agent_1": LLMPolicy(model, tokenizer)},
            learners=[],
            sampling=SamplingParams(max_new_tokens=3),
        )
        assert not any(e.traces[0].agent.trainable for e in play(env, server, times=3))
    assert sorted(heard[:12]) == sorted(heard[12:])
    assert len(set(heard[:12])) > 6


def test_only_who_moves_is_asked(server):
    env = environment("taking_turns", TakingTurns(turns=4), seeds=[0])
    (episode,) = play(env, server)
    assert episode.ok, episode.errors
    turns = {trace.agent.name: trace.metrics["episode_turns"] for trace in episode.traces}
    assert turns == {"ann": 2.0, "bob": 2.0}


def test_a_seat_is_paid_after_it_left(server):
    env = environment("pension", Pension(), ["bob"], {"ann": lambda prompt: prompt}, seeds=[0])
    (episode,) = play(env, server)
    assert episode.ok, episode.errors
    (trace,) = episode.traces
    assert trace.reward == 5.0
    assert trace.metrics == {"episode_turns": 1.0, "finished": 1.0}


def test_a_limit_of_verifiers_ends_the_episode(server):
    config = {"agent_0": {"max_turns": 1}}
    env = environment("limited", coordination_v0.parallel_env(num_turns=2), config=config)
    for episode in play(env, server):
        assert episode.ok
        for trace in episode.traces:
            assert trace.metrics["finished"] == 0.0
            assert trace.metrics["episode_turns"] <= 2.0


def test_faults_are_in_the_records(server):
    def reward(first, second):
        raise KeyError("broken reward")

    env = environment("broken_reward", coordination_v0.parallel_env(reward_func=reward))
    for episode in play(env, server):
        assert not episode.ok
        assert "broken reward" in episode.last_error.message
    env = environment("no_such_model", coordination_v0.parallel_env())
    for episode in play(env, server, model="huge"):
        assert not episode.ok
        assert any("must be one of" in error.message for t in episode.traces for error in t.errors)


def test_what_is_refused():
    env = coordination_v0.parallel_env()
    with pytest.raises(ValueError, match=r"name \('json'\) must be .* not of one that exists"):
        environment("json", env)
    with pytest.raises(ValueError, match="must not hold agent_0, played by the model"):
        plugin(env, ["agent_0"], {"agent_0": str, "agent_1": str})
    with pytest.raises(ValueError, match="lacks agent_1"):
        plugin(env, ["agent_0"])
    with pytest.raises(ValueError, match=r"learners \(\['bob'\]\)"):
        plugin(env, learners=["bob"])
    with pytest.raises(ValueError, match="'agent 1' must have a name that can be an option"):
        plugin(coordination_v0.parallel_env(agents=["agent 1", "agent 2"]))
    with pytest.raises(ValueError, match=r"seeds \(None\) must be given"):
        environment("no_rows", EchoGame())
    with pytest.raises(TypeError, match=r"seeds\[0\] \('a'\) must be an integer"):
        plugin(env, seeds=["a"])


def test_the_command_line_finds_a_module(server, tmp_path, monkeypatch):
    (tmp_path / "my_task.py").write_text(
        "from marlogue.envs import coordination_v0\n"
        "from marlogue.wrappers.verifiers import plugin\n"
        "Rows, Play, Chat = plugin(coordination_v0.parallel_env())\n"
        '__all__ = ["Rows", "Play", "Chat"]\n'
    )
    arguments = ["my_task", "-m", "tiny", "-r", "2", "-o", "out", "--no-push"]
    client = ["--client.base-url", server.url, "--client.api-key-var", "NO_KEY_NEEDED"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["vf-eval", *arguments, *client])
    eval_cli.main()
    (written,) = (tmp_path / "out").glob("*/traces.jsonl")
    episodes = [json.loads(line) for line in written.read_text().splitlines()]
    assert sorted(episode["task"]["data"]["row"] for episode in episodes) == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    for episode in episodes:
        assert episode["ok"]
        assert {trace["agent"]["name"] for trace in episode["traces"]} == {"agent_0", "agent_1"}


def test_example(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/plugging_in/verifiers_eval.py"), "--epochs", "60"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    before, after = (float(line.split()[-1]) for line in done.stdout.splitlines())
    assert before < 0.2
    assert after > 0.8
