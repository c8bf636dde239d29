"""Text actions as a choice among candidates."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.callbacks import (
    accepted_keywords,
    callback_name,
    callback_signature,
    kind_of,
    noted,
    require_callable,
    require_result,
)
from marlogue.envs.episodes import Infos
from marlogue.envs.task import whole_number
from marlogue.wrappers.view import View, require_texts, waits

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


class CandidateActions(View):
    """Text actions become `Discrete(K)`: the number of one of K texts.

    The agent's info gets `action_mask` (int8 array [K], 1 where there is a text) and `candidates`
    (the texts of the moment). At the end of an episode the mask is all ones and there are no
    candidates. An agent that waits (`marlogue.envs.WAITS`) has one candidate, the empty text.

    Args:
        env: an environment whose actions are texts.
        candidates: where the texts come from:

            - a list of texts, for all agents and turns;
            - the name of a field of the row, `infos[agent]["item"]`, that holds a list of texts
              or a dict from agent to one;
            - a function that returns a list of texts, called by keyword with those of `prompt`,
              `agent` and `info` that it names, once per turn and agent that moves;
            - a `CandidateSource`, such as `SampledCandidates`.
        num_candidates: K; for a plain list its length unless given.
        fill: offered in place of candidates that are missing, for learners that read no masks;
            None masks those instead. With it, whatever a waiting agent chooses is accepted.

    Raises:
        TypeError: when an argument has a wrong type, or the environment's actions are not texts.
        ValueError: when candidates are missing, too many, no texts, or outside the action space of
            the environment; names agent, turn and row. When a masked action is chosen.
    """

    shared: ClassVar[tuple[str, ...]] = ("source",)

    def __init__(
        self,
        env: ParallelEnv,
        candidates: Sequence[str] | str | Callable[..., Sequence[str]] | CandidateSource,
        *,
        num_candidates: int | None = None,
        fill: str | None = None,
    ) -> None:
        super().__init__(env)
        self.source = _source(candidates)
        require_texts(env, "CandidateActions", observations=self.source.reads_prompts, actions=True)
        self.num_candidates = _count(num_candidates, self.source)
        self.fill = fill
        self._check_fill()
        if isinstance(self.source, FixedCandidates):
            for agent in env.possible_agents:
                self._checked(self.source.texts, agent, f"for {agent}")
        self.action_spaces = {agent: Discrete(self.num_candidates) for agent in env.possible_agents}
        self._texts: dict[str, list[str]] = {}
        self._turn = -1

    @override
    def begin(self) -> None:
        self._texts, self._turn = {}, -1

    @override
    def act(self, agent: str, action: Any) -> str:
        texts = self._texts.get(agent)
        if texts is None:
            raise RuntimeError(f"{agent} has no candidates in this turn; call reset")
        if action >= len(texts):
            raise ValueError(
                f"the action of {agent} ({action}) is masked, there are {len(texts)} candidate(s) "
                f"in turn {self._turn}; choose where infos[{agent!r}]['action_mask'] is 1, or set "
                "fill for a learner that reads no masks"
            )
        return texts[int(action)]

    @override
    def _show(
        self, shown: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Infos]:
        seen, fresh = super()._show(shown, infos)
        # Where the source raises, nothing of the turn before may be chosen any more.
        self._texts, self._turn = {}, self._turn + 1
        self._texts = self._propose(seen, fresh)
        for agent in seen:
            texts = self._texts.get(agent)
            mask = np.ones(self.num_candidates, dtype=np.int8)
            if texts is not None:
                mask[len(texts) :] = 0
            fresh[agent]["action_mask"] = mask
            fresh[agent]["candidates"] = list(texts or ())
        return seen, fresh

    def _propose(self, seen: Mapping[str, Any], infos: Infos) -> dict[str, list[str]]:
        texts: dict[str, list[str]] = {}
        requests = []
        for agent in seen:
            if agent in self.agents:
                if waits(infos[agent]):
                    texts[agent] = [""] if self.fill is None else [""] * self.num_candidates
                else:
                    requests.append(Request(agent, seen[agent], infos[agent]))
        if not requests:
            return texts
        with noted(f"making candidates for turn {self._turn} of {self.env}"):
            proposed = list(self.source.propose(requests))
        for (agent, _, info), offered in zip(requests, proposed, strict=True):
            texts[agent] = self._checked(offered, agent, _where(agent, self._turn, info))
            if self.fill is not None:
                texts[agent] += [self.fill] * (self.num_candidates - len(texts[agent]))
        return texts

    def _checked(self, offered: Any, agent: str, where: str) -> list[str]:
        """The offered texts as a list of its own, when they are what they must be."""
        if isinstance(offered, str | bytes) or not isinstance(offered, Sequence):
            raise ValueError(f"candidates {where} must be a list of texts, not {kind_of(offered)}")
        if not 0 < len(offered) <= self.num_candidates:
            raise ValueError(
                f"candidates {where} must be 1 to {self.num_candidates} texts, not {len(offered)}; "
                "set num_candidates to the largest number there is"
            )
        space = self.env.action_space(agent)
        for index, text in enumerate(offered):
            if not isinstance(text, str):
                raise ValueError(
                    f"candidates {where} must be texts; number {index} is {kind_of(text)}"
                )
            if not space.contains(text):
                raise ValueError(
                    f"candidate {index} {where} ({text!r}) must be in the action space of the "
                    f"environment, {space}; change the text or the space"
                )
        return list(offered)

    def _check_fill(self) -> None:
        if self.fill is None:
            return
        if not isinstance(self.fill, str):
            raise TypeError(f"fill ({self.fill!r}) must be a text, or None to mask what is missing")
        for agent in self.env.possible_agents:
            if not self.env.action_space(agent).contains(self.fill):
                raise ValueError(
                    f"fill ({self.fill!r}) must be in the action space of {agent}, "
                    f"{self.env.action_space(agent)}"
                )


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


def _source(candidates: Any) -> CandidateSource:
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


def _count(num_candidates: int | None, source: CandidateSource) -> int:
    count = source.num_candidates if num_candidates is None else num_candidates
    if count is None:
        raise ValueError(
            "num_candidates (None) must be given unless candidates is a plain list; set it to the "
            "largest number of candidates there is"
        )
    return whole_number("num_candidates", count)


def _where(agent: str, turn: int, info: Mapping[str, Any]) -> str:
    row = f", row {info['row']}" if info.get("row") is not None else ""
    return f"for {agent} (turn {turn}{row})"
