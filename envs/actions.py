"""What agents do in a turn, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def check_agents(actions: Mapping[str, Any], agents: Sequence[str]) -> None:
    """Check that there is an action of every live agent, and of nobody else.

    Raises:
        TypeError: when `actions` is not a mapping.
        ValueError: names the agents that are missing or unknown.
    """
    if not isinstance(actions, Mapping):
        raise TypeError(f"actions ({actions!r}) must be a dict from agent to completion")
    missing = [agent for agent in agents if agent not in actions]
    unknown = [agent for agent in actions if agent not in agents]
    if not missing and not unknown:
        return
    problems = [
        f"{problem} {', '.join(map(str, names))}"
        for problem, names in (("lack", missing), ("name the unknown or finished", unknown))
        if names
    ]
    raise ValueError(
        f"actions {' and '.join(problems)}; give exactly one completion for each of "
        f"{', '.join(map(str, agents))}"
    )


def checked_completions(
    actions: Mapping[str, Any], agents: Sequence[str], most_chars: int, where: str
) -> tuple[str, ...]:
    """The agents' completions in their order.

    Args:
        actions: agent to completion.
        agents: the live agents.
        most_chars: the longest completion, in characters.
        where: row and turn, for messages.

    Raises:
        TypeError: when a completion is not a str.
        ValueError: when agents are missing or unknown, or a completion is too long.
    """
    check_agents(actions, agents)
    for agent in agents:
        text = actions[agent]
        if not isinstance(text, str):
            raise TypeError(
                f"the action of {agent} ({text!r}) must be a completion (str) ({where})"
            )
        if len(text) > most_chars:
            raise ValueError(
                f"the action of {agent} has {len(text)} characters ({where}); at most "
                f"max_completion_chars ({most_chars}) are allowed"
            )
    return tuple(actions[agent] for agent in agents)
