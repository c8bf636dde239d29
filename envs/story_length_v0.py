"""Two agents write about the same topic: one briefly, the other two to three times as long.

Each can only see its own prompt, and neither is told how long the other's text is: the team has to
settle on lengths that fit together. A model that follows its prompts gets a part of the reward
from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from marlogue.envs.aec import to_aec, to_raw_aec
from marlogue.envs.rows import Row
from marlogue.envs.text_env import TextEnv

LEAST_RATIO = 2.0
MOST_RATIO = 3.0

AGENTS = ("short", "long")

TOPICS = (
    "a lighthouse keeper",
    "a dog that learns to swim",
    "the first snow of the year",
    "a lost umbrella",
    "a train that is always late",
    "an old violin",
    "two neighbours and a hedge",
    "a baker who cannot sleep",
    "a letter from far away",
    "the smallest boat in the harbour",
    "a cat in a library",
    "a clock that runs backwards",
    "a garden on a roof",
    "the last day of summer",
    "a robot that paints",
    "a bridge in the fog",
    "a girl who collects stones",
    "a very slow race",
    "the night before a journey",
    "a king without a crown",
    "a forgotten birthday",
    "a fisherman and a storm",
    "an empty theatre",
    "a map with a hole in it",
    "a mountain village",
    "the sound of rain",
    "a market at dawn",
    "a teacher's first lesson",
    "a tree that was struck by lightning",
    "a hat that nobody wants",
    "a visit to the moon",
    "a quiet bus driver",
    "the key to the cellar",
    "a fox in the city",
    "a concert without music",
    "a gift for a stranger",
    "the oldest bicycle in town",
    "an island that moves",
    "a recipe with one mistake",
    "a window on the river",
)


def dataset() -> list[Row]:
    """The built-in rows: one `topic` each, which is also the `prompt`."""
    return [{"topic": topic, "prompt": topic} for topic in TOPICS]


def short_prompt(item: Row) -> str:
    """What the agent `short` is asked."""
    return f"Write one short sentence about {_topic(item)}."


def long_prompt(item: Row) -> str:
    """What the agent `long` is asked."""
    return f"Write two sentences about {_topic(item)}."


def _topic(item: Row) -> str:
    return str(item["topic"] if "topic" in item else item["prompt"])


def length_reward(short_text: str, long_text: str) -> float:
    """The team reward of two texts.

    With rho = len(long_text) / len(short_text), in characters without surrounding white space:

        reward = 1                  where 2 <= rho <= 3
        reward = exp(-(2 - rho))    where rho < 2
        reward = exp(-(rho - 3))    where rho > 3

    An empty text, of either agent, is worth 0: saying nothing is no way to a good ratio.

    Returns:
        A number from 0 to 1.
    """
    short_length, long_length = len(short_text.strip()), len(long_text.strip())
    if not short_length or not long_length:
        return 0.0
    ratio = long_length / short_length
    return math.exp(-max(LEAST_RATIO - ratio, 0.0, ratio - MOST_RATIO))


def reward(short_texts: Sequence[str], long_texts: Sequence[str]) -> list[float]:
    """Team rewards of joint actions, see `length_reward`."""
    return [length_reward(*texts) for texts in zip(short_texts, long_texts, strict=True)]


def parallel_env(**kwargs: Any) -> TextEnv:
    """Make the environment.

    Args:
        kwargs: those of `TextEnv`, in place of the task's own. A dataset of your own needs the
            field `topic` (or `prompt`).
    """
    settings: dict[str, Any] = {
        "dataset": dataset(),
        "reward_func": reward,
        "formatters": (short_prompt, long_prompt),
        "name": "story_length_v0",
    }
    if "num_agents" not in kwargs:
        settings["agents"] = AGENTS
    return TextEnv(**{**settings, **kwargs})


def raw_env(**kwargs: Any) -> AECEnv:
    """Make the environment in PettingZoo's AEC form, without checks of the order of calls."""
    return to_raw_aec(parallel_env(**kwargs))


def env(**kwargs: Any) -> AECEnv:
    """Make the environment in PettingZoo's AEC form."""
    return to_aec(parallel_env(**kwargs))
