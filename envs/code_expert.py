"""An expert that is asked over the OpenAI protocol: any server that speaks it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from typing import Any, Literal
from weakref import WeakKeyDictionary

from marlogue.envs.optional import require
from marlogue.envs.rows import Row

ASK = """\
Two programmers solve this problem together:

{prompt}

One writes a helper function `aux`, the other the function `{entry_point}`, which calls it. This \
is what they have.

The helper's part:

{helper}

The main part:

{main}

What should each of them change? Answer with a JSON object of two texts and nothing else, as in \
{{"helper": "...", "main": "..."}}. Use "" where nothing has to change."""


class ExpertError(RuntimeError):
    """The expert did not answer."""


class Endpoint:
    """An expert behind an OpenAI-compatible endpoint (`POST URL/chat/completions`).

    Its answer should be a JSON object with the texts `helper` and `main`; an answer of another form
    is shown to both agents as it is. Asked about all open episodes together.

    Args:
        url: where the endpoint is, as in "http://localhost:8000/v1".
        model: the model's name there.
        key_variable: the environment variable that holds the key; None for a server that wants
            none. The key itself is never part of a configuration, a checkpoint or a log.
        timeout: seconds that one try may take.
        max_retries: further tries after a refused connection, a time-out, or an answer that says
            to try again (408, 409, 429, 5xx).
        max_concurrent: most questions at once.
        max_tokens: longest answer.
        temperature: of the expert's sampling; None for the server's own.
        on_error: "raise", or "skip": the agents are shown no suggestion then.

    Raises:
        ImportError: when the library `openai` is missing; gives the install line.
        ValueError: when a value is out of range, or the variable is not set.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str | None = "OPENAI_API_KEY",
        timeout: float = 60.0,
        max_retries: int = 2,
        max_concurrent: int = 8,
        max_tokens: int = 1024,
        temperature: float | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        if not re.match(r"https?://[^/]", str(url)):
            raise ValueError(f"url ({url!r}) must be as in http://localhost:8000/v1")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout ({timeout}) must be above 0, and finite; set seconds")
        if max_retries < 0:
            raise ValueError(f"max_retries ({max_retries}) must be 0 or more")
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent ({max_concurrent}) must be 1 or more")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error ({on_error!r}) must be 'raise' or 'skip'")
        self.url = url
        self.model = model
        self.key_variable = key_variable
        self.timeout = timeout
        self.max_retries = max_retries
        self.max_concurrent = max_concurrent
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.on_error = on_error
        self._slots: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
        self._client()

    async def __call__(self, item: Row, helper: str, main: str) -> tuple[str, str]:
        """What the expert suggests to the helper's writer, and to the main function's.

        Raises:
            ExpertError: when there is no answer, unless `on_error` is "skip".
        """
        prompt, name = str(item.get("prompt", "")), str(item.get("entry_point", ""))
        asked = ASK.format(prompt=prompt, entry_point=name, helper=helper, main=main)
        try:
            return suggestions(await self._ask(asked))
        except ExpertError:
            if self.on_error == "raise":
                raise
            return "", ""

    async def _ask(self, text: str) -> str:
        import openai

        loop = asyncio.get_running_loop()
        slots = self._slots.setdefault(loop, asyncio.Semaphore(self.max_concurrent))
        sampling = {} if self.temperature is None else {"temperature": self.temperature}
        try:
            async with slots, self._client() as client:
                answer = await client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": text}],
                    max_tokens=self.max_tokens,
                    **sampling,
                )
            said = answer.choices[0].message.content
        except openai.OpenAIError as error:
            raise self._error(f"{type(error).__name__}: {error}") from error
        except (AttributeError, IndexError, TypeError, ValueError) as error:  # of another form
            raise self._error("the answer is no chat completion") from error
        if not isinstance(said, str):
            raise self._error("the answer holds no text")
        return said

    def _error(self, what: str) -> ExpertError:
        key = os.environ.get(self.key_variable or "", "")
        said = what.replace(key, "***") if key else what
        return ExpertError(
            f"the expert ({self.model} at {self.url}) gave no suggestion: {said}; see to the "
            'server, set timeout or max_retries, or on_error="skip" to go on without'
        )

    def _client(self) -> Any:
        """A new client, which belongs to the event loop that it is used in."""
        with require("openai", extra="expert"):
            import openai

        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=self._key(),
            timeout=self.timeout,
            max_retries=self.max_retries,
        )

    def _key(self) -> str:
        if self.key_variable is None:
            return "none"
        key = os.environ.get(self.key_variable, "")
        if not key:
            raise ValueError(
                f"key_variable ({self.key_variable}) must be an environment variable that holds "
                "the key; set it, or key_variable=None for a server that wants none"
            )
        return key

    def __getstate__(self) -> dict[str, Any]:
        # An event loop belongs to a process.
        return {name: value for name, value in self.__dict__.items() if name != "_slots"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._slots = WeakKeyDictionary()


def suggestions(said: str) -> tuple[str, str]:
    """The texts for the helper's and the main function's writer in an expert's answer."""
    for text in (said, said[said.find("{") : said.rfind("}") + 1]):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and {"helper", "main"} <= found.keys():
            return str(found["helper"]), str(found["main"])
    return said, said
