"""All agents must answer a cue with the one word that stands for it.

A task for tests and first steps: the vocabulary is tiny (`VOCABULARY`), an answer is one word, and
a model with random weights and a word-level tokenizer learns it in seconds, when it generates one
token per answer.

Random level, with N agents and chance p of each to say the right word: 0.5 p + 0.5 p^N. Two agents
that choose among the 4 answers earn 0.156; two that choose among all words of `VOCABULARY` and
nothing else earn 0.055.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from marlogue.envs.aec import to_aec, to_raw_aec
from marlogue.envs.rows import Row
from marlogue.envs.text_env import TextEnv

ANSWERS = {"dawn": "red", "noon": "gold", "dusk": "blue", "night": "black"}
"""Cue to the word that the team has to agree on."""

HEARD = "heard"
NOTHING = "nothing"

VOCABULARY = (*ANSWERS, *ANSWERS.values(), HEARD, NOTHING)
"""Every word that occurs in prompts and right answers."""


def dataset() -> list[Row]:
    """The built-in rows: a cue as the `prompt`, and the `answer` to it."""
    return [{"prompt": cue, "answer": answer} for cue, answer in ANSWERS.items()]


def first_word(completion: str) -> str:
    """The answer in a completion: its first word, "" where there is none."""
    return next(iter(completion.split()), "")


def reward(*completions: Sequence[str], batch_items: Sequence[Row]) -> list[float]:
    """Team rewards: half for the share of agents that are right, half for all being right.

    Args:
        completions: one list per agent, with one completion per joint action.
        batch_items: the row that the joint actions belong to.
    """
    answer = batch_items[0]["answer"]
    rewards = []
    for joint_action in zip(*completions, strict=True):
        right = sum(first_word(completion) == answer for completion in joint_action)
        share = right / len(joint_action)
        rewards.append(0.5 * share + 0.5 * (share == 1.0))
    return rewards


def hear_the_others(prompt: str, agent_completions: Sequence[str], num_agents: int) -> list[str]:
    """The prompts of a later turn: the cue again, and what the next agent said.

    A word outside the vocabulary is heard as `nothing`, so that the prompts stay within it.
    """
    said = [first_word(completion) for completion in agent_completions]
    heard = [word if word in VOCABULARY else NOTHING for word in said]
    return [f"{prompt} {HEARD} {heard[(index + 1) % num_agents]}" for index in range(num_agents)]


def parallel_env(**kwargs: Any) -> TextEnv:
    """Make the environment: two agents and one turn, unless told otherwise.

    Args:
        kwargs: those of `TextEnv`, in place of the task's own; `num_turns=2` lets every agent hear
            what the next one said, and answer again. A dataset of your own needs the fields
            `prompt` and `answer`.

    Raises:
        ValueError: when there is only one agent, who has nobody to agree with.
    """
    settings: dict[str, Any] = {
        "dataset": dataset(),
        "reward_func": reward,
        "external_transition": hear_the_others,
        "name": "coordination_v0",
    }
    made = TextEnv(**{**settings, **kwargs})
    if made.max_num_agents < 2:
        raise ValueError("coordination needs somebody to agree with; set num_agents to 2 or more")
    return made


def raw_env(**kwargs: Any) -> AECEnv:
    """Make the environment in PettingZoo's AEC form, without checks of the order of calls."""
    return to_raw_aec(parallel_env(**kwargs))


def env(**kwargs: Any) -> AECEnv:
    """Make the environment in PettingZoo's AEC form."""
    return to_aec(parallel_env(**kwargs))
