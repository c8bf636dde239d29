"""A policy behind OpenAI's chat protocol, for programs that evaluate what they reach by a URL."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from marlogue.envs.callbacks import shortened
from marlogue.wrappers.partners import Answers

if TYPE_CHECKING:
    from marlogue.agents import Completion, LLMPolicy, SamplingParams

logger = logging.getLogger(__name__)

PATH = "/v1/chat/completions"
OVERRIDES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
}
IGNORED = ("model", "messages", "seed", "n", "stream", "stop", "stream_options", "user")


class Request(NamedTuple):
    """What is asked of a policy.

    Fields:
        model: name of the policy.
        prompt: the last message.
        params: how to sample.
        seed: of the random numbers; None for the next ones of the server.
    """

    model: str
    prompt: str
    params: SamplingParams
    seed: int | None


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
        TypeError: when a policy cannot answer prompts.
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

        if not isinstance(policies, Mapping):
            raise TypeError(
                f"policies ({shortened(policies)}) must be names and their policies; set "
                "policies={'name': policy}"
            )
        for name, policy in policies.items():
            if isinstance(policy, type) or not isinstance(policy, Answers):
                raise TypeError(
                    f"policies[{name!r}] ({shortened(policy)}) must have an act method, as a "
                    "marlogue.agents.LLMPolicy has"
                )
        if not policies:
            raise ValueError("policies ({}) must hold a policy; set policies={'name': policy}")
        self.policies = dict(policies)
        self.sampling = sampling or SamplingParams()
        self.seed = seed
        self._requests = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"chat": self})
        self._server = _Server(("127.0.0.1", port or 0), handler)
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
            Exception: whatever the policy raises.
        """
        return self.complete(self.read(body))

    def read(self, body: Mapping[str, Any]) -> Request:
        """Check a request.

        Raises:
            ValueError: when it asks for something that there is not.
        """
        if not isinstance(body, Mapping):
            raise ValueError(f"the request ({body!r}) must be an object with model and messages")
        if body.get("model") not in list(self.policies):  # it may be what cannot be hashed
            raise ValueError(f"model ({body.get('model')!r}) must be one of {list(self.policies)}")
        prompt = _last_user_message(body.get("messages"))
        seed = body.get("seed")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed ({seed!r}) must be an integer")
        return Request(body["model"], prompt, self._params(body), seed)

    def complete(self, request: Request) -> dict[str, Any]:
        """The chat completion to a request that was read.

        Raises:
            Exception: whatever the policy raises.
        """
        with self._lock:
            self._requests += 1
            number, seed = self._requests, request.seed
            stream = (self.seed, number) if seed is None else (abs(seed),)
            policy = self.policies[request.model]
            completion = policy.act([request.prompt], request.params, [stream])[0]
        return _chat_completion(request.model, number, completion)

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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # of connections that wait: programs ask for many answers at once


class _Handler(BaseHTTPRequestHandler):
    chat: ChatServer

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path != PATH:
            self._send(404, _error(f"the path ({self.path}) must be {PATH}"))
            return
        try:
            request = self.chat.read(json.loads(raw))
        except ValueError as error:
            self._send(400, _error(str(error)))
            return
        try:
            reply = self.chat.complete(request)
        except Exception as error:
            # The client is told the message alone.
            logger.exception("the policy %r failed", request.model)
            self._send(500, _error(f"{type(error).__name__}: {error}", "server_error"))
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


def _error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind}}
