"""The reward contract: how a reward function is called, and what it may return.

A reward function gets the completions of each agent as positional arguments, each a list with one
completion per joint action. `prompts` (one list of turn prompts per agent) and `batch_items` (a
list of rows) go by keyword to functions that name them or take `**kwargs`. How to call it is
settled once, from the signature, when the environment is built.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from marlogue.envs.callbacks import (
    POSITIONAL,
    Parameter,
    accepted_keywords,
    callback_name,
    callback_signature,
    noted,
    place,
    require_callable,
    require_result,
)
from marlogue.envs.reward_values import AgentRewards, as_finite, read_rewards
from marlogue.envs.rows import Row

RewardFunc = Callable[..., Any]
RewardProcessor = Callable[[float], float]
F = TypeVar("F", bound=Callable[..., Any])

OFFERED = ("prompts", "batch_items")
_BATCHED = "__marlogue_batched_reward__"


def batched_reward(func: F) -> F:
    """Mark a reward function that scores all open episodes in one call.

    Unmarked functions are called once per dataset item and turn, so that `batch_items[0]` is the
    row of every joint action they are given. A marked one gets joint actions of different rows,
    with `batch_items[k]` the row of joint action k: use it where one big call is cheaper.
    """
    setattr(func, _BATCHED, True)
    return func


def is_batched(func: RewardFunc) -> bool:
    """Whether a reward function, what a partial wraps, or a class's `__call__` is marked."""
    if getattr(func, _BATCHED, False) or getattr(type(func).__call__, _BATCHED, False):
        return True
    return isinstance(func, functools.partial) and is_batched(func.func)


@dataclass(frozen=True, slots=True)
class JointAction:
    """One joint action to be scored.

    Fields:
        row: index of the dataset row, None for an item that was given in the reset options.
        turn: index of the turn.
        item: the row itself (a copy that the reward function may do with as it likes).
        prompts: what each agent was shown in this turn.
        completions: what each agent answered.
    """

    row: int | None
    turn: int
    item: Row
    prompts: tuple[str, ...]
    completions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """The rewards of one joint action, one per agent; None where the function abstained."""

    raw: AgentRewards
    processed: AgentRewards


class Reward:
    """A reward function with its settled way of being called, and its processor.

    Args:
        func: the user's reward function.
        agents: the agents' names, in the order of the completions.
        processor: applied to each agent's reward; None leaves rewards as they are.

    Raises:
        TypeError: when `func` or `processor` is not callable, is an async function, or when the
            signature of `func` cannot take one list of completions per agent.
    """

    def __init__(
        self,
        func: RewardFunc,
        agents: Sequence[str],
        processor: RewardProcessor | None = None,
    ) -> None:
        require_callable(func, "reward_func")
        if processor is not None:
            require_callable(processor, "reward_processor")
        self.func = func
        self.processor = processor
        self.agents = tuple(agents)
        self.name = callback_name(func)
        self.batched = is_batched(func)
        self.completion_keywords, self.keywords = settle_call(func, len(self.agents))

    def score(self, joint_actions: Sequence[JointAction]) -> list[Scores]:
        """Score joint actions in one call.

        Args:
            joint_actions: of one row and turn, unless the function is a batched one.

        Raises:
            ValueError: when what came back breaks the contract, is NaN or infinite.
        """
        raw = self._call(joint_actions)
        places = [place(action.row, action.turn) for action in joint_actions]
        per_joint_action = read_rewards(raw, self.name, self.agents, places)
        return [
            Scores(rewards, self._process(rewards, where))
            for rewards, where in zip(per_joint_action, places, strict=True)
        ]

    def _call(self, joint_actions: Sequence[JointAction]) -> Any:
        num_agents = range(len(self.agents))
        completions = [[a.completions[i] for a in joint_actions] for i in num_agents]
        items = [a.item for a in joint_actions]
        offered = {
            "prompts": [[a.prompts[i] for a in joint_actions] for i in num_agents],
            "batch_items": items if self.batched else items[:1],
        }
        kwargs: dict[str, Any] = {name: offered[name] for name in self.keywords}
        num_positional = len(self.agents) - len(self.completion_keywords)
        kwargs.update(zip(self.completion_keywords, completions[num_positional:], strict=True))
        with noted(f"calling reward_func ({self.name}) for {_scope(joint_actions)}"):
            raw = self.func(*completions[:num_positional], **kwargs)
        require_result(raw, "reward_func", self.func)
        return raw

    def _process(self, rewards: AgentRewards, where: str) -> AgentRewards:
        if self.processor is None:
            return rewards
        return tuple(
            None if reward is None else self._process_one(reward, f"{agent}, {where}")
            for reward, agent in zip(rewards, self.agents, strict=True)
        )

    def _process_one(self, reward: float, where: str) -> float:
        assert self.processor is not None
        with noted(f"calling reward_processor on {reward} ({where})"):
            processed = self.processor(reward)
        require_result(processed, "reward_processor", self.processor)
        return as_finite(processed, f"reward_processor made {processed!r} of {reward}", where)


def _scope(joint_actions: Sequence[JointAction]) -> str:
    places = list(dict.fromkeys(place(action.row, action.turn) for action in joint_actions))
    shown = "; ".join(places[:4]) + ("; ..." if len(places) > 4 else "")
    return f"{shown} ({len(joint_actions)} joint action(s))"


def settle_call(func: RewardFunc, num_agents: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Settle how a reward function is called with one list of completions per agent.

    Returns:
        The names by which the last agents' completions have to be passed (empty where all go by
        position; `prompts` before them in the signature forces names), and which of `prompts` and
        `batch_items` the function gets.

    Raises:
        TypeError: when no such call fits the signature; names what to change.
    """
    signature = callback_signature(func)
    if signature is None:
        return (), ()
    keywords = accepted_keywords(func, signature, OFFERED)
    complaint = f"reward_func ({callback_name(func)}{signature}) cannot be called: it"
    before: list[Parameter] = []  # slots for completions ahead of `prompts` and `batch_items`
    after: list[Parameter] = []
    has_varargs = False
    ours_seen = False
    for parameter in signature.parameters.values():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            has_varargs = True
        elif parameter.kind in POSITIONAL and parameter.name not in OFFERED:
            (after if ours_seen else before).append(parameter)
        elif parameter.kind is Parameter.POSITIONAL_ONLY:
            raise TypeError(f"{complaint} takes {parameter.name} by position only; move the / up")
        elif parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            ours_seen = True
        elif _is_unknown_demand(parameter):
            raise TypeError(
                f"{complaint} demands the keyword {parameter.name}, which nobody passes; give it "
                f"a default, or bind it with functools.partial(..., {parameter.name}=...)"
            )
    if has_varargs and ours_seen:
        raise TypeError(
            f"{complaint} takes prompts or batch_items ahead of *args; put them behind it, as in "
            "def reward(*completions, prompts, batch_items)"
        )
    slots = before + after
    required = sum(slot.default is Parameter.empty for slot in slots)
    if required > num_agents or (len(slots) < num_agents and not has_varargs):
        count = f"{required} or more" if has_varargs else _span(required, len(slots))
        raise TypeError(
            f"{complaint} takes {count} list(s) of completions, but there are {num_agents} "
            "agents; give it one positional parameter per agent, or *completions"
        )
    num_by_name = max(num_agents - len(before), 0)
    return tuple(slot.name for slot in after[:num_by_name]), keywords


def _is_unknown_demand(parameter: Parameter) -> bool:
    return (
        parameter.kind is Parameter.KEYWORD_ONLY
        and parameter.default is Parameter.empty
        and parameter.name not in OFFERED
    )


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
