"""A policy behind OpenAI's chat protocol, for programs that evaluate what they reach by a URL."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marlogue.agents import Completion, LLMPolicy, SamplingParams

PATH = "/v1/chat/completions"
OVERRIDES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
}
IGNORED = ("model", "messages", "seed", "n", "stream", "stop", "stream_options", "user")


class ChatServer:
    """Serves policies at `POST /v1/chat/completions` on this machine, while the context is entered.

        with ChatServer({"tiny": policy}) as server:
            ...  # server.url is the base URL that OpenAI's clients take

    A policy is shown the last user message alone, as an agent is shown one prompt per turn; write
    what came before into the prompt where it matters. Requests are answered one after the other.

    Args:
        policies: name of the model to policy.
        sampling: how they sample; a request's `temperature`, `top_p` and `max_tokens` go before
            it. None for `SamplingParams()`.
        seed: of the random numbers of requests without a `seed`.
        port: None for one that is free.

    Attributes:
        url: the base URL, as `http://127.0.0.1:8000/v1`.

    Raises:
        ValueError: when there is no policy.
        OSError: when the port is taken.
    """

    def __init__(
        self,
        policies: Mapping[str, LLMPolicy],
        sampling: SamplingParams | None = None,
        *,
        seed: int = 0,
        port: int | None = None,
    ) -> None:
        from marlogue.agents import SamplingParams  # heavy: the module is light without it

        if not policies:
            raise ValueError("policies ({}) must hold a policy; set policies={'name': policy}")
        self.policies = dict(policies)
        self.sampling = sampling or SamplingParams()
        self.seed = seed
        self._requests = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"answer": staticmethod(self.answer)})
        self._server = ThreadingHTTPServer(("127.0.0.1", port or 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> ChatServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The chat completion to a request.

        Raises:
            ValueError: when the request asks for something that there is not.
        """
        if not isinstance(body, Mapping):
            raise ValueError(f"the request ({body!r}) must be an object with model and messages")
        if body.get("model") not in list(self.policies):  # it may be what cannot be hashed
            raise ValueError(f"model ({body.get('model')!r}) must be one of {list(self.policies)}")
        prompt = _last_user_message(body.get("messages"))
        params = self._params(body)
        with self._lock:
            self._requests += 1
            given = body.get("seed")
            stream = (self.seed, self._requests) if given is None else (abs(int(given)),)
            policy = self.policies[body["model"]]
            completion = policy.act([prompt], params, [stream])[0]
        return _chat_completion(body["model"], self._requests, completion)

    def _params(self, body: Mapping[str, Any]) -> SamplingParams:
        for name, fine in (("stream", False), ("n", 1), ("stop", None)):
            if body.get(name, fine) not in (fine, None):
                raise ValueError(f"{name} ({body[name]!r}) must be {fine}; there is no other")
        unknown = [name for name in body if name not in (*IGNORED, *OVERRIDES)]
        if any(body[name] is not None for name in unknown):
            raise ValueError(f"{', '.join(unknown)} must be left out; the policy knows none of it")
        given = {OVERRIDES[name]: body[name] for name in OVERRIDES if body.get(name) is not None}
        return replace(self.sampling, **given)


def _last_user_message(messages: Any) -> str:
    if not isinstance(messages, Sequence) or not messages or isinstance(messages, str):
        raise ValueError(f"messages ({messages!r}) must be a list of messages")
    if any(not isinstance(message, Mapping) for message in messages):
        raise ValueError(f"messages ({messages!r}) must be dicts with a role and a content")
    if any(message.get("role") not in ("user", "assistant") for message in messages):
        raise ValueError(
            "messages must be of user and assistant; give the policy a system_prompt of its own"
        )
    content = messages[-1].get("content")
    if messages[-1]["role"] != "user" or not isinstance(content, str):
        raise ValueError(f"the last of messages ({messages[-1]!r}) must be a text of the user")
    return content


def _chat_completion(model: str, number: int, completion: Completion) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": completion.text},
        "finish_reason": "length" if completion.truncated else "stop",
    }
    read, said = len(completion.prompt_ids), len(completion.ids)
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said},
    }


class _Handler(BaseHTTPRequestHandler):
    answer: Any

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path != PATH:
            self._send(404, _error(f"the path ({self.path}) must be {PATH}"))
            return
        try:
            reply = self.answer(json.loads(raw))
        except (ValueError, TypeError) as error:
            self._send(400, _error(str(error)))
        except Exception as error:
            self._send(500, _error(f"{type(error).__name__}: {error}"))
            raise  # the server prints it with its traceback
        else:
            self._send(200, reply)

    def _send(self, status: int, reply: Mapping[str, Any]) -> None:
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: requests are many."""


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}
