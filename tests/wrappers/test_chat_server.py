"""ChatServer: OpenAI's protocol over loopback, answered by a real policy."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from marlogue.agents import LLMPolicy, SamplingParams, tiny_model
from marlogue.envs import coordination_v0
from marlogue.wrappers.chat_server import ChatServer


@pytest.fixture(scope="module")
def policy():
    return LLMPolicy(*tiny_model(coordination_v0.VOCABULARY, seed=0))


@pytest.fixture(scope="module")
def server(policy):
    with ChatServer({"tiny": policy}, SamplingParams(max_new_tokens=4)) as made:
        yield made


def ask(server, path="/chat/completions", **body):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "dawn"}], **body}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_the_answer_is_the_policys(server, policy):
    answer = ask(server, seed=7)
    expected = policy.act(["dawn"], SamplingParams(max_new_tokens=4), [(7,)])[0]
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert choice["finish_reason"] == ("length" if expected.truncated else "stop")
    counts = {"prompt_tokens": 1, "completion_tokens": len(expected.ids)}
    assert answer["usage"] == {**counts, "total_tokens": 1 + len(expected.ids)}
    assert ask(server, seed=7)["choices"] == answer["choices"]


def test_requests_without_a_seed_differ(server):
    assert len({ask(server)["choices"][0]["message"]["content"] for _ in range(10)}) > 3


def test_a_request_says_how_to_sample(server):
    greedy = {ask(server, temperature=0)["choices"][0]["message"]["content"] for _ in range(5)}
    assert len(greedy) == 1
    assert ask(server, max_tokens=1)["usage"]["completion_tokens"] == 1
    assert ask(server, max_completion_tokens=2, temperature=None)["usage"]["total_tokens"] <= 3


def test_the_last_prompt_is_the_one(server):
    messages = [
        {"role": "user", "content": "night"},
        {"role": "assistant", "content": "black"},
        {"role": "user", "content": "dawn"},
    ]
    assert ask(server, messages=messages, seed=1)["choices"] == ask(server, seed=1)["choices"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"model": "huge"}, "model ('huge') must be one of ['tiny']"),
        ({"model": ["tiny"]}, "model (['tiny']) must be one of ['tiny']"),
        ({"stream": True}, "stream (True) must be False"),
        ({"n": 2}, "n (2) must be 1"),
        ({"logprobs": True}, "logprobs must be left out"),
        ({"messages": []}, "messages ([]) must be a list of messages"),
        ({"messages": ["dawn"]}, "must be dicts with a role and a content"),
        ({"messages": [{"role": "system", "content": "x"}]}, "give the policy a system_prompt"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "must be a text of the user"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_new_tokens"),
        ({"max_tokens": "many"}, "max_new_tokens"),
        ({"seed": "seven"}, "seed ('seven') must be an integer"),
    ],
)
def test_bad_requests(server, body, said):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, **body)
    assert caught.value.code == 400
    assert said in json.load(caught.value)["error"]["message"]


def test_a_request_that_is_no_object(server):
    with pytest.raises(ValueError, match=r"the request \(\['dawn'\]\) must be an object"):
        server.answer(["dawn"])


def test_other_paths(server):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(server, path="/completions")


class Failing(LLMPolicy):
    def __init__(self, error):
        self.error = error

    def act(self, prompts, params, streams):
        raise self.error


@pytest.mark.parametrize("error", [TypeError("no such thing"), ValueError("no such value")])
def test_a_policy_that_fails(error, caplog):
    with ChatServer({"tiny": Failing(error)}) as server:
        for _ in range(2):  # and the next request is served
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(server)
            assert caught.value.code == 500
            told = json.load(caught.value)["error"]
            assert told == {"message": f"{type(error).__name__}: {error}", "type": "server_error"}
    assert "the policy 'tiny' failed" in caplog.text
    assert "in act\n    raise self.error" in caplog.text  # the traceback


def test_many_requests_at_once(server):
    with ThreadPoolExecutor(100) as threads:
        answers = list(threads.map(lambda seed: ask(server, seed=seed), range(100)))
    assert len({answer["id"] for answer in answers}) == 100


def test_what_is_no_policy():
    with pytest.raises(ValueError, match="must hold a policy"):
        ChatServer({})
    with pytest.raises(TypeError, match=r"policies\['m'\] \(5\) must have an act method"):
        ChatServer({"m": 5})
    with pytest.raises(TypeError, match=r"policies \(5\) must be names and their policies"):
        ChatServer(5)


def test_the_port_is_free_again(policy):
    with ChatServer({"tiny": policy}) as first:
        port = int(first.url.split(":")[2].split("/")[0])
    with ChatServer({"tiny": policy}, port=port) as second:
        assert second.url == first.url
