"""Transitions: what each agent is shown after a turn, made by the user's `external_transition`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marlogue.envs.callbacks import (
    accepted_keywords,
    callback_name,
    callback_signature,
    is_async,
    kind_of,
    noted,
    place,
    require_callable,
    require_result,
)
from marlogue.envs.event_loop import NoResult, done_with_loop, shared_loop
from marlogue.envs.reward_values import AgentRewards
from marlogue.envs.rows import Row

ExternalTransition = Callable[..., Any]

STANDARD = (
    "prompt",
    "agent_completions",
    "num_agents",
    "prompt_history_per_agent",
    "response_history_per_agent",
)
EXTRAS = ("item", "rewards", "turn_idx", "infos")


@dataclass(frozen=True, slots=True)
class Played:
    """An episode so far, for a transition.

    Fields:
        item: the row.
        row: its index, for messages.
        prompts: for each turn so far each agent's prompt.
        completions: for each turn so far each agent's answer.
        rewards: each agent's processed reward in the latest turn.
        infos: agent to info of that turn; a copy that may be handed out.
    """

    item: Row
    row: int | None
    prompts: Sequence[Sequence[str]]
    completions: Sequence[Sequence[str]]
    rewards: AgentRewards
    infos: dict[str, dict[str, Any]]

    @property
    def turn(self) -> int:
        """Index of the turn just played."""
        return len(self.prompts) - 1


class Transition:
    """An `external_transition` with its settled way of being called.

    Always by keyword, with those of these that it names (all of them with `**kwargs`):

    - `prompt`: the row's own prompt ("" where it has none); `agent_completions`: what each agent
      just answered; `num_agents`;
    - `prompt_history_per_agent`, `response_history_per_agent`: for each agent a list with its
      prompts and its answers of all turns so far, the last one included;
    - `item`: the row; `rewards`: the processed reward of each agent, None where abstained;
      `turn_idx`: index of the turn just played; `infos`: agent to info of that turn.

    All of them are copies. It must return a list (or another sequence) with one prompt per agent.
    An `async def` is awaited, for all open episodes together.

    Args:
        func: the user's function.
        agents: the agents' names.

    Raises:
        TypeError: when `func` is not callable, or demands something else.
    """

    def __init__(self, func: ExternalTransition, agents: Sequence[str]) -> None:
        require_callable(func, "external_transition", awaited=True)
        self.func = func
        self.is_async = is_async(func)
        self.agents = tuple(agents)
        self.name = callback_name(func)
        self.keywords = _settle_call(func)

    def next_prompts(self, episodes: Sequence[Played]) -> list[tuple[str, ...]]:
        """Ask for the next prompts of episodes, one after the other, or where the function is
        `async def` together.

        Raises:
            Whatever the function raises, with a note of where.
            ValueError: when it does not return one prompt (str) per agent.
        """
        asked = [self._offered(played) for played in episodes]
        if self.is_async:
            return self._await(episodes, asked)
        return [
            self._call(played, keywords) for played, keywords in zip(episodes, asked, strict=True)
        ]

    def close(self) -> None:
        """Let go of the event loop; another call of an async function takes it again."""
        done_with_loop(self)

    def _offered(self, played: Played) -> dict[str, Any]:
        agents = range(len(self.agents))
        offered = {
            "prompt": copy.deepcopy(played.item.get("prompt", "")),
            "agent_completions": list(played.completions[-1]),
            "num_agents": len(self.agents),
            "prompt_history_per_agent": [[turn[i] for turn in played.prompts] for i in agents],
            "response_history_per_agent": [
                [turn[i] for turn in played.completions] for i in agents
            ],
            "rewards": list(played.rewards),
            "turn_idx": played.turn,
            "infos": played.infos,
        }
        if "item" in self.keywords:
            offered["item"] = copy.deepcopy(played.item)
        return {name: offered[name] for name in self.keywords}

    def _call(self, played: Played, keywords: dict[str, Any]) -> tuple[str, ...]:
        where = place(played.row, played.turn)
        with noted(f"calling external_transition ({self.name}) for {where}"):
            returned = self.func(**keywords)
        require_result(returned, "external_transition", self.func)
        return self._checked(returned, where)

    async def _awaited(self, played: Played, keywords: dict[str, Any]) -> Any:
        where = place(played.row, played.turn)
        try:
            with noted(f"calling external_transition ({self.name}) for {where}"):
                returned = await self.func(**keywords)
            return self._checked(returned, where)
        except Exception as error:
            return error

    def _await(
        self, episodes: Sequence[Played], asked: Sequence[dict[str, Any]]
    ) -> list[tuple[str, ...]]:
        found = shared_loop(self).run(
            [
                functools.partial(self._awaited, played, keywords)
                for played, keywords in zip(episodes, asked, strict=True)
            ],
            stop=lambda result: not isinstance(result, tuple),
        )
        for played, result in zip(episodes, found, strict=True):
            if isinstance(result, Exception):
                raise result
            if isinstance(result, NoResult):
                where = place(played.row, played.turn)
                raise RuntimeError(f"external_transition ({self.name}) cancelled itself ({where})")
        return [result for result in found if isinstance(result, tuple)]

    def _checked(self, returned: Any, where: str) -> tuple[str, ...]:
        complaint = f"external_transition ({self.name}) returned"
        expected = f"expected a list with one prompt (str) for each of {', '.join(self.agents)}"
        if isinstance(returned, str | bytes) or not isinstance(returned, Sequence):
            raise ValueError(f"{complaint} {kind_of(returned)} ({where}); {expected}")
        prompts = tuple(returned)
        if len(prompts) != len(self.agents):
            missing = ", ".join(self.agents[len(prompts) :])
            problem = f"none for {missing}" if missing else f"for {len(self.agents)} agents"
            raise ValueError(
                f"{complaint} {len(prompts)} prompt(s), {problem} ({where}); {expected}"
            )
        for agent, prompt in zip(self.agents, prompts, strict=True):
            if not isinstance(prompt, str):
                raise ValueError(f"{complaint} {kind_of(prompt)} for {agent} ({where}); {expected}")
        return prompts


def _settle_call(func: ExternalTransition) -> tuple[str, ...]:
    signature = callback_signature(func)
    if signature is None:
        return STANDARD
    keywords = accepted_keywords(func, signature, (*STANDARD, *EXTRAS))
    try:
        signature.bind(**dict.fromkeys(keywords))
    except TypeError as error:
        raise TypeError(
            f"external_transition ({callback_name(func)}{signature}) cannot be called with "
            f"keywords out of {', '.join((*STANDARD, *EXTRAS))}: {error}"
        ) from None
    return keywords
