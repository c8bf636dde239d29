"""Episodes of a text environment as values: how one begins, and how many advance by a turn.

An `EpisodeState` is never changed: advancing makes the next one. A reward function that raises
half-way therefore leaves every episode where it was, and copies are free.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from marlogue.envs.actions import checked_completions
from marlogue.envs.callbacks import place
from marlogue.envs.joint_text import joint_text
from marlogue.envs.rewards import JointAction, Scores
from marlogue.envs.rows import Row
from marlogue.envs.task import TextTask
from marlogue.envs.transitions import Played

Infos = dict[str, dict[str, Any]]

COMMON = "__common__"
"""The key in infos of the facts that hold for the whole team."""


REWARD_ERROR = "reward_error"
"""The key in an agent's info of the error for which its reward was left out; only there then."""


class StepResult(NamedTuple):
    """What a PettingZoo parallel step returns; every dict is a fresh one, keyed by agent."""

    observations: dict[str, str]
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: Infos


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an episode starts. The generations of one item share one object.

    Fields:
        item: the row, never handed out without a copy.
        row: its index, None when the item was given in the reset options.
        item_json: the fields of the item that JSON can express, as JSON.
    """

    item: Row
    row: int | None
    item_json: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn that was played, with one entry per agent in each field."""

    prompts: tuple[str, ...]
    completions: tuple[str, ...]
    scores: Scores


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """A running or finished episode.

    Fields:
        origin: where it started.
        prompts: what each agent is being shown; after the end, what it was shown last.
        turns: the turns played so far.
        over: whether the episode has ended.
    """

    origin: Origin
    prompts: tuple[str, ...]
    turns: tuple[Turn, ...] = ()
    over: bool = False


def make_origin(item: Row, row: int | None) -> Origin:
    """Start from a row, which the caller must not change any more."""
    return Origin(item, row, json.dumps({k: v for k, v in item.items() if is_json(k, v)}))


def is_json(key: Any, value: Any) -> bool:
    """Whether JSON can express a field of a row."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(key, str)


def begin(task: TextTask, origin: Origin) -> EpisodeState:
    """Show each agent its first prompt.

    Raises:
        ValueError: when a formatter returns something else than a str that is short enough.
    """
    prompts = task.formatters.first_prompts(origin.item, origin.row)
    _check_lengths(task, prompts, place(origin.row, 0))
    return EpisodeState(origin, prompts)


def first_infos(task: TextTask, state: EpisodeState) -> Infos:
    """The infos of a reset."""
    facts = {"turn": 0, "row": state.origin.row}
    infos: Infos = {
        agent: {**facts, "item": json.loads(state.origin.item_json)} for agent in task.agents
    }
    infos[COMMON] = {**facts, "num_turns": task.num_turns}
    return infos


def observations(task: TextTask, state: EpisodeState) -> dict[str, str]:
    """Agent to prompt."""
    return dict(zip(task.agents, state.prompts, strict=True))


def state_text(state: EpisodeState) -> str:
    """The joint history as the centralised critic reads it: what each agent is being shown."""
    return joint_text(state.prompts)


def advance(
    task: TextTask, states: Sequence[EpisodeState], actions: Sequence[Mapping[str, str]]
) -> list[tuple[EpisodeState, StepResult]]:
    """Play one turn of each episode.

    Args:
        task: the definition that all of them share.
        states: running episodes.
        actions: for each of them agent to completion.

    Raises:
        TypeError: when an action is not a str.
        ValueError: when agents are missing or unknown, a text is too long, or a callback broke
            its contract.
    """
    joint_actions = [
        _joint_action(task, state, action) for state, action in zip(states, actions, strict=True)
    ]
    scores = _score(task, states, joint_actions)
    played = [
        (*state.turns, Turn(state.prompts, joint_action.completions, score))
        for state, joint_action, score in zip(states, joint_actions, scores, strict=True)
    ]
    prompts = _next_prompts(task, states, played)
    return [
        _result(task, state, turns, shown)
        for state, turns, shown in zip(states, played, prompts, strict=True)
    ]


def _joint_action(task: TextTask, state: EpisodeState, actions: Mapping[str, str]) -> JointAction:
    row, turn = state.origin.row, len(state.turns)
    most = task.max_completion_chars
    completions = checked_completions(actions, task.agents, most, place(row, turn))
    return JointAction(row, turn, copy.deepcopy(state.origin.item), state.prompts, completions)


def _score(
    task: TextTask, states: Sequence[EpisodeState], joint_actions: Sequence[JointAction]
) -> list[Scores]:
    """Score joint actions, one reward call per start and turn unless the function is batched."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, state in enumerate(states):
        key = (0, 0) if task.reward.batched else (id(state.origin), len(state.turns))
        groups.setdefault(key, []).append(index)
    calls = [[joint_actions[index] for index in indices] for indices in groups.values()]
    scores: dict[int, Scores] = {}
    for indices, scored in zip(groups.values(), task.reward.score(calls), strict=True):
        scores.update(zip(indices, scored, strict=True))
    return [scores[index] for index in range(len(states))]


def _result(
    task: TextTask, state: EpisodeState, turns: tuple[Turn, ...], prompts: tuple[str, ...]
) -> tuple[EpisodeState, StepResult]:
    scores = turns[-1].scores
    mean = _mean_reward(scores)
    ended_by = _ended_by(task, len(turns), mean)
    after = EpisodeState(state.origin, prompts, turns, over=ended_by is not None)
    infos = _infos(task, after)
    infos[COMMON] = {
        "turn": len(turns),
        "row": state.origin.row,
        "num_turns": task.num_turns,
        "mean_reward": mean,
        "ended_by": ended_by,
    }
    rewards = (0.0 if reward is None else reward for reward in scores.processed)
    return after, StepResult(
        observations=observations(task, after),
        rewards=dict(zip(task.agents, rewards, strict=True)),
        terminations=dict.fromkeys(task.agents, after.over),
        truncations=dict.fromkeys(task.agents, False),
        infos=infos,
    )


def _mean_reward(scores: Scores) -> float | None:
    """The mean processed reward of the agents that got one; None when nobody did."""
    given = [reward for reward in scores.processed if reward is not None]
    return sum(given) / len(given) if given else None


def _ended_by(task: TextTask, turns_played: int, mean: float | None) -> str | None:
    threshold = task.early_termination_threshold
    if turns_played >= task.num_turns:
        return "num_turns"
    if threshold is not None and mean is not None and mean > threshold:
        return "early_termination_threshold"
    return None


def _next_prompts(
    task: TextTask, states: Sequence[EpisodeState], played: Sequence[tuple[Turn, ...]]
) -> list[tuple[str, ...]]:
    """What each episode shows next: what the transition says, or where it is over the same."""
    shown = [state.prompts for state in states]
    going_on = [
        index
        for index, turns in enumerate(played)
        if _ended_by(task, len(turns), _mean_reward(turns[-1].scores)) is None
    ]
    if not going_on:
        return shown
    assert task.transition is not None  # text_task demands it for more than one turn
    told = [_played(task, states[index].origin, played[index]) for index in going_on]
    for index, external in zip(going_on, task.transition.next_prompts(told), strict=True):
        shown[index] = _formatted(task, states[index].origin, external, len(played[index]))
    return shown


def _played(task: TextTask, origin: Origin, turns: tuple[Turn, ...]) -> Played:
    return Played(
        item=origin.item,
        row=origin.row,
        prompts=[turn.prompts for turn in turns],
        completions=[turn.completions for turn in turns],
        rewards=turns[-1].scores.processed,
        infos=_infos(task, EpisodeState(origin, turns[-1].prompts, turns)),
    )


def _formatted(
    task: TextTask, origin: Origin, external: tuple[str, ...], turn: int
) -> tuple[str, ...]:
    prompts = external
    if not task.external_prompt_passthrough:
        prompts = task.formatters.next_prompts(origin.item, external, origin.row, turn)
    _check_lengths(task, prompts, place(origin.row, turn))
    return prompts


def _infos(task: TextTask, state: EpisodeState) -> Infos:
    """Agent to info after a turn; each call makes fresh dicts."""
    scores = state.turns[-1].scores
    left_out = {} if scores.error is None else {REWARD_ERROR: scores.error}
    return {
        agent: {
            "turn": len(state.turns),
            "row": state.origin.row,
            "item": json.loads(state.origin.item_json),
            "raw_reward": raw,
            "reward": processed,
            "abstained": processed is None,
            **left_out,
        }
        for agent, raw, processed in zip(task.agents, scores.raw, scores.processed, strict=True)
    }


def _check_lengths(task: TextTask, prompts: Sequence[str], where: str) -> None:
    for agent, prompt in zip(task.agents, prompts, strict=True):
        if len(prompt) > task.max_prompt_chars:
            raise ValueError(
                f"the prompt of {agent} has {len(prompt)} characters ({where}); at most "
                f"max_prompt_chars ({task.max_prompt_chars}) are allowed; shorten it, or raise "
                "the limit"
            )
