"""Where the candidates of `CandidateActions` come from."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from marlogue.envs.callbacks import (
    accepted_keywords,
    callback_name,
    callback_signature,
    noted,
    require_callable,
    require_result,
)

KEYWORDS = ("prompt", "agent", "info")
"""What a callable that makes candidates may ask for."""


class Request(NamedTuple):
    """An agent that needs candidates.

    Fields:
        agent: its name.
        prompt: what it is shown.
        info: its info, read only.
    """

    agent: str
    prompt: Any
    info: Mapping[str, Any]


class CandidateSource(ABC):
    """Makes the candidates of all agents that move in a turn, at once.

    Attributes:
        num_candidates: the most texts in a list; None when that is not known beforehand.
        reads_prompts: whether prompts must be texts.
    """

    num_candidates: int | None = None
    reads_prompts: bool = False

    @abstractmethod
    def propose(self, requests: Sequence[Request]) -> Sequence[Sequence[str]]:
        """One list of texts for each request."""


class FixedCandidates(CandidateSource):
    """The same texts for everybody, always."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.num_candidates = len(self.texts)

    @override
    def propose(self, requests: Sequence[Request]) -> list[list[str]]:
        return [self.texts for _ in requests]


class FieldCandidates(CandidateSource):
    """The texts that stand in a field of the row."""

    def __init__(self, field: str) -> None:
        self.field = field

    @override
    def propose(self, requests: Sequence[Request]) -> list[Any]:
        return [self._read(request) for request in requests]

    def _read(self, request: Request) -> Any:
        item = request.info.get("item")
        if not isinstance(item, Mapping) or self.field not in item:
            has = f"has {', '.join(map(repr, item))}" if isinstance(item, Mapping) else "is missing"
            raise ValueError(
                f"candidates ({self.field!r}) must name a field of infos[{request.agent!r}]"
                f"['item'], which {has}; name one that is there, or pass a list or a function"
            )
        held = item[self.field]
        if not isinstance(held, Mapping):
            return held
        if request.agent not in held:
            raise ValueError(
                f"the field {self.field!r} of the row must hold candidates of {request.agent}; it "
                f"holds those of {', '.join(map(str, held))}"
            )
        return held[request.agent]


class CalledCandidates(CandidateSource):
    """The texts that a function returns."""

    def __init__(self, func: Callable[..., Sequence[str]]) -> None:
        require_callable(func, "candidates")
        self.func = func
        self.name = callback_name(func)
        self.keywords = _settle_call(func)
        self.reads_prompts = "prompt" in self.keywords

    @override
    def propose(self, requests: Sequence[Request]) -> list[Any]:
        return [self._call(request) for request in requests]

    def _call(self, request: Request) -> Any:
        offered: dict[str, Any] = {"prompt": request.prompt, "agent": request.agent}
        if "info" in self.keywords:
            offered["info"] = copy.deepcopy(dict(request.info))
        with noted(f"calling candidates ({self.name}) for {request.agent}"):
            returned = self.func(**{name: offered[name] for name in self.keywords})
        require_result(returned, "candidates", self.func)
        return returned


def _settle_call(func: Callable[..., Any]) -> tuple[str, ...]:
    signature = callback_signature(func)
    if signature is None:
        return KEYWORDS
    keywords = accepted_keywords(func, signature, KEYWORDS)
    try:
        signature.bind(**dict.fromkeys(keywords))
    except TypeError as error:
        raise TypeError(
            f"candidates ({callback_name(func)}{signature}) cannot be called with keywords out of "
            f"{', '.join(KEYWORDS)}: {error}"
        ) from None
    return keywords


def as_source(candidates: Any) -> CandidateSource:
    """The source that is meant; see `CandidateActions`.

    Raises:
        TypeError: when it is none.
    """
    if isinstance(candidates, CandidateSource):
        return candidates
    if isinstance(candidates, str):
        return FieldCandidates(candidates)
    if callable(candidates):
        return CalledCandidates(candidates)
    if isinstance(candidates, Sequence) and not isinstance(candidates, bytes):
        return FixedCandidates(candidates)
    raise TypeError(
        f"candidates ({candidates!r}) must be a list of texts, the name of a field of the row, a "
        "function that returns a list of texts, or a CandidateSource"
    )
