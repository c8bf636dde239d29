"""The definition of a text environment: everything about it that no episode changes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marlogue.envs.formatters import Formatter, Formatters
from marlogue.envs.reward_settings import RewardSettings
from marlogue.envs.rewards import Reward, RewardFunc, RewardProcessor
from marlogue.envs.rows import Dataset, Rows
from marlogue.envs.transitions import ExternalTransition, Transition

MAX_CHARS = 1_000_000
"""Longest prompt and longest completion, in characters, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class TextTask:
    """What `TextEnv` plays, checked and settled. Made by `text_task`, shared by all episodes."""

    rows: Rows
    agents: tuple[str, ...]
    num_turns: int
    reward: Reward
    formatters: Formatters
    transition: Transition | None
    early_termination_threshold: float | None
    external_prompt_passthrough: bool
    max_prompt_chars: int
    max_completion_chars: int

    @property
    def callbacks(self) -> list[Any]:
        """The user's functions and objects that are called."""
        transition = None if self.transition is None else self.transition.func
        formatters = [formatter for formatter, _ in self.formatters.calls]
        return [self.reward.func, self.reward.processor, *formatters, transition]

    def close(self) -> None:
        """End what callbacks run in; it begins again when it is needed."""
        self.reward.close()
        if self.transition is not None:
            self.transition.close()


def text_task(
    dataset: Dataset,
    reward_func: RewardFunc,
    *,
    formatters: Formatter | Sequence[Formatter] | None,
    external_transition: ExternalTransition | None,
    num_agents: int | None,
    agents: Sequence[str] | None,
    num_turns: int,
    reward_processor: RewardProcessor | None,
    reward_settings: RewardSettings,
    early_termination_threshold: float | None,
    external_prompt_passthrough: bool,
    max_prompt_chars: int | None,
    max_completion_chars: int | None,
) -> TextTask:
    """Check the arguments of `TextEnv`, which documents them, and settle the callbacks.

    Raises:
        TypeError: when an argument has a wrong type, or a callback cannot be called as it must.
        ValueError: when a value is out of range, or arguments do not go together.
    """
    names = agent_names(num_agents, agents)
    num_turns = whole_number("num_turns", num_turns)
    if num_turns > 1 and external_transition is None:
        raise ValueError(
            f"num_turns ({num_turns}) needs external_transition, which makes the prompts of the "
            "turns after the first; pass one, or set num_turns=1"
        )
    return TextTask(
        rows=Rows(dataset),
        agents=names,
        num_turns=num_turns,
        reward=Reward(reward_func, names, reward_processor, reward_settings),
        formatters=Formatters(formatters, names),
        transition=None if external_transition is None else Transition(external_transition, names),
        early_termination_threshold=_threshold(early_termination_threshold),
        external_prompt_passthrough=flag(
            "external_prompt_passthrough", external_prompt_passthrough
        ),
        max_prompt_chars=_max_chars("max_prompt_chars", max_prompt_chars),
        max_completion_chars=_max_chars("max_completion_chars", max_completion_chars),
    )


def agent_names(num_agents: int | None, agents: Sequence[str] | None) -> tuple[str, ...]:
    """The agents' names: as given, or `agent_0`, `agent_1`, ... (two of them by default)."""
    if agents is None:
        count = 2 if num_agents is None else whole_number("num_agents", num_agents)
        return tuple(f"agent_{index}" for index in range(count))
    if isinstance(agents, str) or not isinstance(agents, Sequence):
        raise TypeError(f'agents ({agents!r}) must be a list of names, as in ["writer", "critic"]')
    names = tuple(agents)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"agents ({list(names)!r}) must be names (str); {name!r} is none")
        if not name or name == "__common__":
            raise ValueError(f"agents ({list(names)!r}) must not contain {name!r}")
    if not names:
        raise ValueError("agents ([]) must name at least one agent")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"agents ({list(names)!r}) must be unique; rename {', '.join(twice)}")
    if num_agents is not None and whole_number("num_agents", num_agents) != len(names):
        raise ValueError(
            f"num_agents ({num_agents}) must be the number of agents ({len(names)}); leave it out"
        )
    return names


def whole_number(name: str, value: int, least: int = 1) -> int:
    """Check an integer argument; numpy's integers are welcome, True and 1.0 are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} ({value!r}) must be an integer")
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{name} ({number}) must be {least} or more")
    return number


def flag(name: str, value: bool) -> bool:
    """Check a yes-or-no argument: the text "false" would otherwise count as yes."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} ({value!r}) must be True or False")
    return value


def _max_chars(name: str, value: int | None) -> int:
    return MAX_CHARS if value is None else whole_number(name, value)


def _threshold(value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"early_termination_threshold ({value!r}) must be a number or None")
    if not math.isfinite(value):
        raise ValueError(
            f"early_termination_threshold ({value}) must be finite; set None to never end early"
        )
    return float(value)
