"""The reward contract: how a reward function is called, and what it may return.

A reward function gets the completions of each agent as positional arguments, each a list with one
completion per joint action. `prompts` (one list of turn prompts per agent) and `batch_items` (a
list of rows) go by keyword to functions that name them or take `**kwargs`. How to call it is
settled once, from the signature, when the environment is built. Where calls are made, and what
becomes of one that fails, is in `marlogue.envs.reward_settings`.
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
from marlogue.envs.reward_callers import make_caller
from marlogue.envs.reward_calls import Call, Outcome, Scorer, scope_of
from marlogue.envs.reward_drops import Drops
from marlogue.envs.reward_settings import RewardSettings
from marlogue.envs.reward_values import AgentRewards, as_finite
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
    """The rewards of one joint action, one per agent; None where the function abstained.

    Fields:
        raw: as the reward function gave them.
        processed: after the reward processor.
        error: why they were left out: an error in one line, and its traceback below; None where
            they were not.
    """

    raw: AgentRewards
    processed: AgentRewards
    error: str | None = None


class Reward:
    """A reward function with its settled way of being called, and its processor.

    Args:
        func: the user's reward function, which may be `async def`.
        agents: the agents' names, in the order of the completions.
        processor: applied to each agent's reward; None leaves rewards as they are.
        settings: how calls are made, and what becomes of one that fails.

    Attributes:
        drops: what was left out so far.

    Raises:
        TypeError: when `func` or `processor` is not callable, when the signature of `func` cannot
            take one list of completions per agent, or when `func` is to go to worker processes
            and cannot be pickled.
    """

    def __init__(
        self,
        func: RewardFunc,
        agents: Sequence[str],
        processor: RewardProcessor | None = None,
        settings: RewardSettings | None = None,
    ) -> None:
        require_callable(func, "reward_func", awaited=True)
        if processor is not None:
            require_callable(processor, "reward_processor")
        self.func = func
        self.processor = processor
        self.settings = RewardSettings() if settings is None else settings
        self.agents = tuple(agents)
        self.name = callback_name(func)
        self.batched = is_batched(func)
        self.completion_keywords, self.keywords = settle_call(func, len(self.agents))
        self.drops = Drops(self.name, self.settings.max_dropped_share)
        self._caller = make_caller(Scorer(func, self.name, self.agents), self.settings)

    def score(self, groups: Sequence[Sequence[JointAction]]) -> list[list[Scores]]:
        """Score joint actions, with a call for each group.

        Args:
            groups: each of joint actions of one row and turn, unless the function is a batched one.

        Returns:
            The scores of each group.

        Raises:
            Whatever the function raises, with a note of where.
            ValueError: when what came back breaks the contract, is NaN or infinite.
            TimeoutError: when a call took too long.
            RewardWorkerError: when a worker died, or too many hang.
            TooManyDroppedError: when too much was dropped.

        With `on_error="drop"` only the last two are raised, and of workers only what no call is to
        blame for.
        """
        drop = self.settings.on_error == "drop"
        outcomes = self._caller.run([self._call(group) for group in groups], stop=not drop)
        scores = [self._read(*pair) for pair in zip(groups, outcomes, strict=True)]
        if drop:
            self.drops.count([(sum(s.error is not None for s in g), len(g)) for g in scores])
        return scores

    def close(self) -> None:
        """End workers; another `score` begins new ones."""
        self._caller.close()

    def _call(self, joint_actions: Sequence[JointAction]) -> Call:
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
        places = tuple(place(action.row, action.turn) for action in joint_actions)
        return Call(tuple(completions[:num_positional]), kwargs, scope_of(places), places)

    def _read(self, joint_actions: Sequence[JointAction], outcome: Outcome) -> list[Scores]:
        if isinstance(outcome, Exception):
            return [self._dropped(self.drops.describe(outcome))] * len(joint_actions)
        return [
            self._finish(found, place(action.row, action.turn))
            for action, found in zip(joint_actions, outcome, strict=True)
        ]

    def _finish(self, found: AgentRewards | ValueError, where: str) -> Scores:
        try:
            if isinstance(found, ValueError):
                raise found
            return Scores(found, self._process(found, where))
        except Exception as error:
            if self.settings.on_error == "raise":
                raise
            return self._dropped(self.drops.describe(error))

    def _dropped(self, error: str) -> Scores:
        nothing: AgentRewards = (None,) * len(self.agents)
        return Scores(nothing, nothing, error)

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
