"""Text actions as a choice among candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Discrete, Text
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.callbacks import callback_name, kind_of, noted, shortened
from marlogue.envs.episodes import Infos
from marlogue.envs.spaces import UnicodeText
from marlogue.envs.task import flag, whole_number
from marlogue.envs.waiting import idle_text, waits
from marlogue.wrappers.candidate_sources import (
    CandidateSource,
    FixedCandidates,
    Request,
    as_source,
)
from marlogue.wrappers.view import ACTION_MASK, View, require_texts


class CandidateActions(View):
    """Text actions become `Discrete(K)`: the number of one of K texts.

    The agent's info gets `action_mask` (int8 array [K], 1 where there is a text) and `candidates`
    (the texts of the moment). At the end of an episode the mask is all ones and there are no
    candidates. An agent that waits (`marlogue.envs.WAITS`) has one candidate, the empty text (or
    the shortest that its action space contains).

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
        show: list the candidates under the prompt, one a line as "0: text". A learner that sees
            only observations needs that when an action's text changes from prompt to prompt.

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
        show: bool = False,
    ) -> None:
        super().__init__(env)
        self.source = as_source(candidates)
        self.show = flag("show", show)
        reads = self.show or self.source.reads_prompts
        require_texts(env, "CandidateActions", observations=reads, actions=True)
        self.num_candidates = _count(num_candidates, self.source)
        self.fill = fill
        self._check_fill()
        if isinstance(self.source, FixedCandidates):
            for agent in env.possible_agents:
                self._checked(self.source.texts, agent, f"for {agent}")
        self.action_spaces = {agent: Discrete(self.num_candidates) for agent in env.possible_agents}
        if self.show:
            self.observation_spaces = {agent: self._listing(agent) for agent in env.possible_agents}
        self._idle = {agent: idle_text(env.action_space(agent)) for agent in env.possible_agents}
        self._texts: dict[str, list[str]] = {}
        self._turn = -1

    def _listing(self, agent: str) -> UnicodeText:
        """The space of a prompt with candidates under it."""
        prompt, text = self.env.observation_space(agent), self.env.action_space(agent)
        for space in (prompt, text):
            if not isinstance(space, Text):
                raise TypeError(
                    f"show (True) needs Text spaces, whose lengths are known; {agent} has {space}"
                )
        line = len(_lines([""] * self.num_candidates)) + self.num_candidates * text.max_length
        return UnicodeText(prompt.max_length + line, min_length=prompt.min_length)

    @override
    def begin(self) -> None:
        self._texts, self._turn = {}, -1

    @override
    def check_action(self, agent: str, action: Any) -> None:
        super().check_action(agent, action)
        texts = self._texts.get(agent)
        if texts is None:
            raise RuntimeError(f"{agent} has no candidates in this turn; call reset")
        if action >= len(texts):
            raise ValueError(
                f"the action of {agent} ({action}) is masked, there are {len(texts)} candidate(s) "
                f"in turn {self._turn}; choose where infos[{agent!r}]['action_mask'] is 1, or set "
                "fill for a learner that reads no masks"
            )

    @override
    def act(self, agent: str, action: Any) -> str:
        return self._texts[agent][int(action)]

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
            fresh[agent][ACTION_MASK] = mask
            fresh[agent]["candidates"] = list(texts or ())
            if self.show and texts is not None and not waits(fresh[agent]):
                seen[agent] += _lines(texts)
        return seen, fresh

    def _propose(self, seen: Mapping[str, Any], infos: Infos) -> dict[str, list[str]]:
        texts: dict[str, list[str]] = {}
        requests = []
        for agent in seen:
            if agent in self.agents:
                if waits(infos[agent]):
                    allowed = 1 if self.fill is None else self.num_candidates
                    texts[agent] = [self._idle[agent]] * allowed
                else:
                    requests.append(Request(agent, seen[agent], infos[agent]))
        if not requests:
            return texts
        with noted(f"making candidates for turn {self._turn} of {self.env}"):
            proposed = list(self.source.propose(requests))
        if len(proposed) != len(requests):
            raise ValueError(
                f"candidates ({callback_name(self.source)}) must propose a list for each of "
                f"{len(requests)} requests, not {len(proposed)} lists"
            )
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
            mend = "set num_candidates to the largest number there is" if offered else "offer one"
            raise ValueError(
                f"candidates {where} must be 1 to {self.num_candidates} texts, not {len(offered)}; "
                f"{mend}"
            )
        space = self.env.action_space(agent)
        for index, text in enumerate(offered):
            if not isinstance(text, str):
                raise ValueError(
                    f"candidates {where} must be texts; number {index} is {kind_of(text)}"
                )
            if not space.contains(text):
                raise ValueError(
                    f"candidate {index} {where} ({shortened(text)}) must be in the action space of "
                    f"the environment, {space}; change the text or the space"
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


def _count(num_candidates: int | None, source: CandidateSource) -> int:
    count = source.num_candidates if num_candidates is None else num_candidates
    if count is None:
        raise ValueError(
            "num_candidates (None) must be given unless candidates is a plain list; set it to the "
            "largest number of candidates there is"
        )
    return whole_number("num_candidates", count)


def _lines(texts: Sequence[str]) -> str:
    """Candidates as they stand under a prompt."""
    return "".join(f"\n{index}: {text}" for index, text in enumerate(texts))


def _where(agent: str, turn: int, info: Mapping[str, Any]) -> str:
    row = f", row {info['row']}" if info.get("row") is not None else ""
    return f"for {agent} (turn {turn}{row})"
