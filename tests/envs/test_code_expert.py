"""The expert behind an OpenAI-compatible endpoint: a real server on loopback."""

import asyncio
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from marlogue.envs import BatchRunner, Start, code_pair_v0
from marlogue.envs.code_expert import Endpoint, ExpertError, suggestions
from tests.envs.test_code_pair import HELPER, MAIN, ROW
from tests.support.envs import actions
from tests.support.libraries import has, needs_coding

pytestmark = [needs_coding, pytest.mark.skipif(not has("openai"), reason="openai is not installed")]

KEY = "sk-secret-of-this-test"
ADVICE = '{"helper": "return a list", "main": ""}'


def completion(text: Any) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    about = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
    return json.dumps({**about, "choices": [choice]}).encode()


class Server(ThreadingHTTPServer):
    """Gives the answers of a script, (status, body) each, the last one for ever."""

    daemon_threads = True

    def __init__(self, script: list[tuple[int, bytes]], hang: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.hang = script, hang
        self.asked: list[tuple[str, Message, Any]] = []
        self.over = threading.Event()
        self.together = threading.Barrier(1)
        self.lock, self.at_work, self.most_at_work = threading.Lock(), 0, 0

    def count(self, step: int) -> None:
        with self.lock:
            self.at_work += step
            self.most_at_work = max(self.most_at_work, self.at_work)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers, json.loads(body)))
        if self.server.hang:
            self.server.over.wait(60)
            return
        self.server.count(1)
        with suppress(threading.BrokenBarrierError):
            self.server.together.wait(1)
        self.server.count(-1)
        script = self.server.script
        status, answer = script.pop(0) if len(script) > 1 else script[0]
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(*script: tuple[int, bytes], hang: bool = False) -> Iterator[Server]:
    server = Server(list(script), hang)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def ask(expert: Endpoint) -> tuple[str, str]:
    return asyncio.run(expert(ROW, HELPER, MAIN))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def test_what_is_asked_and_answered() -> None:
    with serving((200, completion(ADVICE))) as server:
        expert = Endpoint(server.url, "coder", temperature=0.5)
        assert ask(expert) == ("return a list", "")
        ((path, headers, body),) = server.asked
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("coder", 1024, 0.5)
    (message,) = body["messages"]
    assert all(text in message["content"] for text in (ROW["prompt"], HELPER, MAIN))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (ADVICE, ("return a list", "")),
        (f"Sure:\n```json\n{ADVICE}\n```", ("return a list", "")),
        ("Call aux.", ("Call aux.", "Call aux.")),
        ('{"helper": "x"}', ('{"helper": "x"}', '{"helper": "x"}')),
        ("[" * 100_000, ("[" * 100_000,) * 2),
    ],
)
def test_forms_of_an_answer(said: str, expected: tuple[str, str]) -> None:
    assert suggestions(said) == expected


def test_in_an_environment() -> None:
    with serving((200, completion(ADVICE))) as server:
        env = code_pair_v0.parallel_env(
            dataset=[ROW],
            num_turns=2,
            transition="expert",
            expert={"url": server.url, "model": "m", "key_variable": None},
        )
        env = pickle.loads(pickle.dumps(env))
        env.reset()
        shown = env.step(actions(HELPER, MAIN)).observations
        assert all(KEY not in str(headers) for _, headers, _ in server.asked)
    assert "An expert says:\nreturn a list" in shown["agent_0"]
    assert "An expert" not in shown["agent_1"]


def test_episodes_are_asked_about_together_within_a_limit() -> None:
    """A server that waits for a fourth question beside three, for a second."""
    with serving((200, completion("fine"))) as server:
        server.together = threading.Barrier(4)
        expert = {"url": server.url, "model": "m", "max_concurrent": 3, "key_variable": None}
        env = code_pair_v0.parallel_env(
            dataset=[ROW], num_turns=2, transition="expert", expert=expert
        )
        runner = BatchRunner(env)
        episodes = runner.reset([Start(options={"row": 0})], num_generations=6)
        results = runner.step(episodes, [actions(HELPER, MAIN)] * 6)
        runner.close()
    assert all("says:\nfine" in result.observations["agent_0"] for result in results)
    assert (len(server.asked), server.most_at_work) == (6, 3)


def test_a_fault_that_passes_is_tried_again() -> None:
    with serving((503, b"{}"), (200, completion("fine"))) as server:
        assert ask(Endpoint(server.url, "m")) == ("fine", "fine")
        assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (500, f'{{"error": {{"message": "{KEY} is wrong"}}}}'.encode()),
            r"InternalServerError.*\*\*\* is wrong",
        ),
        ((401, b'{"error": {"message": "no"}}'), "AuthenticationError.*no"),
        ((404, b"{}"), "NotFoundError"),
        ((200, b"{}"), "no chat completion"),
        ((200, b'{"choices": []}'), "no chat completion"),
        ((200, b"<html>"), "no chat completion"),
        ((200, completion(None)), "holds no text"),
        ((200, completion(["a"])), "holds no text"),
    ],
)
def test_what_is_no_answer(answer: tuple[int, bytes], message: str) -> None:
    with serving(answer) as server:
        expert = Endpoint(server.url, "m", max_retries=0)
        with pytest.raises(ExpertError, match=message) as caught:
            ask(expert)
        assert f"the expert (m at {server.url}) gave no suggestion" in str(caught.value)
        assert KEY not in str(caught.value)
        expert.on_error = "skip"
        assert ask(expert) == ("", "")


def test_one_that_hangs_or_is_not_there() -> None:
    with serving(hang=True) as server:
        with pytest.raises(ExpertError, match=r"APITimeoutError.*set timeout or max_retries"):
            ask(Endpoint(server.url, "m", timeout=0.2, max_retries=0))
        url = server.url
    with pytest.raises(ExpertError, match="APIConnectionError"):
        ask(Endpoint(url, "m", max_retries=0))


def test_a_failing_expert_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving((404, b"{}")) as server:
        env = code_pair_v0.parallel_env(
            dataset=[ROW],
            num_turns=2,
            transition="expert",
            expert={"url": server.url, "model": "m"},
        )
        env.reset()
        with pytest.raises(ExpertError) as caught:
            env.step(actions(HELPER, MAIN))
    assert "row 0, turn 0" in str(caught.value.__notes__)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"url": "localhost:8000"}, r"url \('localhost:8000'\) must be as in http"),
        ({"timeout": 0}, r"timeout \(0\) must be above 0"),
        ({"max_concurrent": 0}, r"max_concurrent \(0\) must be 1 or more"),
        ({"max_retries": -1}, r"max_retries \(-1\) must be 0 or more"),
        ({"on_error": "drop"}, r"on_error \('drop'\) must be 'raise' or 'skip'"),
        ({"key_variable": "NO_SUCH_KEY"}, r"key_variable \(NO_SUCH_KEY\) must be an environment"),
    ],
)
def test_settings_that_do_not_go(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Endpoint(**{"url": "http://127.0.0.1:9/v1", "model": "m", **kwargs})


def test_the_key_stays_out() -> None:
    expert = Endpoint("http://127.0.0.1:9/v1", "m")
    assert KEY.encode() not in pickle.dumps(expert)
    assert KEY not in repr(vars(expert))


@pytest.mark.parametrize(
    ("missing", "making", "extra"),
    [
        ("openai", "code_expert.Endpoint('http://127.0.0.1:9/v1', 'm')", "expert"),
        ("importlib.metadata", "code_pair_v0.dataset()", "code"),
    ],
)
def test_a_missing_library_is_told_with_the_mend(missing: str, making: str, extra: str) -> None:
    code = (
        "import sys\n"
        "from importlib import metadata\n"
        "from marlogue.envs import code_expert, code_pair_v0\n"
        f"if {missing!r} == 'openai':\n"
        "    sys.modules['openai'] = None\n"
        "else:\n"
        "    sys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
        "try:\n"
        f"    {making}\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert f'install it with: pip install "marlogue[{extra}]"' in done.stdout, done.stderr
