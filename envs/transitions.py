"""Transitions: what each agent is shown after a turn, made by the user's `external_transition`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from marlogue.envs.callbacks import (
    accepted_keywords,
    callback_name,
    callback_signature,
    kind_of,
    noted,
    place,
    require_callable,
    require_result,
)
from marlogue.envs.reward_values import AgentRewards
from marlogue.envs.rows import Row

ExternalTransition = Callable[..., Sequence[str]]

STANDARD = (
    "prompt",
    "agent_completions",
    "num_agents",
    "prompt_history_per_agent",
    "response_history_per_agent",
)
EXTRAS = ("item", "rewards", "turn_idx", "infos")


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

    Args:
        func: the user's function.
        agents: the agents' names.

    Raises:
        TypeError: when `func` is not callable, is an async function, or demands something else.
    """

    def __init__(self, func: ExternalTransition, agents: Sequence[str]) -> None:
        require_callable(func, "external_transition")
        self.func = func
        self.agents = tuple(agents)
        self.name = callback_name(func)
        self.keywords = _settle_call(func)

    def next_prompts(
        self,
        *,
        item: Row,
        row: int | None,
        turn: int,
        prompts: Sequence[Sequence[str]],
        completions: Sequence[Sequence[str]],
        rewards: AgentRewards,
        infos: dict[str, dict[str, Any]],
    ) -> tuple[str, ...]:
        """Ask for the next prompts.

        Args:
            item: the row.
            row: its index, for messages.
            turn: index of the turn just played.
            prompts: for each turn so far each agent's prompt.
            completions: for each turn so far each agent's answer.
            rewards: each agent's processed reward in this turn.
            infos: agent to info of this turn; it must be a copy already.

        Raises:
            ValueError: when it does not return one prompt (str) per agent.
        """
        agents = range(len(self.agents))
        offered = {
            "prompt": copy.deepcopy(item.get("prompt", "")),
            "agent_completions": list(completions[-1]),
            "num_agents": len(self.agents),
            "prompt_history_per_agent": [[turn[i] for turn in prompts] for i in agents],
            "response_history_per_agent": [[turn[i] for turn in completions] for i in agents],
            "rewards": list(rewards),
            "turn_idx": turn,
            "infos": infos,
        }
        if "item" in self.keywords:
            offered["item"] = copy.deepcopy(item)
        where = place(row, turn)
        with noted(f"calling external_transition ({self.name}) for {where}"):
            returned = self.func(**{name: offered[name] for name in self.keywords})
        require_result(returned, "external_transition", self.func)
        return self._checked(returned, where)

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
