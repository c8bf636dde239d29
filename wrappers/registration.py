"""Gymnasium ids of the tasks: `gymnasium.make("marlogue/coordination-v0")`.

Importing `marlogue.wrappers` registers an id for each task of `marlogue.envs.TASKS`. Gymnasium does
not look for plug-ins by itself (it gave that up in version 1.0), so either import it first, or let
`make` do so:

    gymnasium.make("marlogue.wrappers:marlogue/coordination-v0")

An id makes a `SingleAgent`; `gymnasium.make_vec` makes a `TextVectorEnv`, unless it is told another
`vectorization_mode`. Both pass their keywords on: `agent`, `others`, `sampling` (and
`autoreset_mode` of the latter) are those of the class, all others those of the task.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import gymnasium

from marlogue.envs import TASKS, TextEnv, coordination_v0, make

NAMESPACE = "marlogue"

SINGLE = "marlogue.wrappers.registration:single_agent"
VECTOR = "marlogue.wrappers.registration:vector"

VIEW_KEYWORDS = ("agent", "others", "sampling")


def knows_the_word(prompt: str) -> str:
    """A partner for `coordination`: the right answer to the cue in the prompt."""
    cue = coordination_v0.first_word(prompt)
    return coordination_v0.ANSWERS.get(cue, coordination_v0.NOTHING)


def writes_a_sentence(prompt: str) -> str:
    """A partner for `story_length`: one sentence on the topic, of 60 to 100 characters."""
    topic = prompt.rpartition(" about ")[2].rstrip(".")
    return f"Nobody here had ever thought much about {topic}, until that morning.".strip()


def writes_the_other_function(prompt: str) -> str:
    """A partner for `code_pair`: a main function that returns what `aux` gives, or a helper that
    returns its arguments."""
    asked = re.search(r"Write only the function (\w+)", prompt)
    name = asked[1] if asked else ""
    returned = "list(args)" if name == "aux" else "aux(*args)"
    return f"def {name}(*args):\n    return {returned}\n"


PARTNERS: Mapping[str, Callable[[str], str]] = {
    "code_pair_v0": writes_the_other_function,
    "coordination_v0": knows_the_word,
    "story_length_v0": writes_a_sentence,
}
"""Task to the policy of the others where `others` is not given."""


def gymnasium_id(task: str) -> str:
    """The id of a task: `coordination_v0` is `marlogue/coordination-v0`."""
    name, _, version = task.rpartition("_v")
    return f"{NAMESPACE}/{name}-v{version}"


def register_all(tasks: Collection[str] = tuple(TASKS)) -> list[str]:
    """Register ids that are not registered yet; returns the ids of all `tasks`."""
    ids = []
    for task in tasks:
        ids.append(gymnasium_id(task))
        if ids[-1] not in gymnasium.registry:
            gymnasium.register(ids[-1], SINGLE, vector_entry_point=VECTOR, kwargs={"task": task})
    return ids


def single_agent(task: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make the `SingleAgent` of a task.

    Args:
        task: a name in `marlogue.envs.TASKS`.
        kwargs: `agent`, `others`, `sampling`, and those of the task.

    Raises:
        ValueError: when a keyword is unknown; names those that are known.
    """
    from marlogue.wrappers.single_agent import SingleAgent

    mine, env = _parts(task, kwargs, VIEW_KEYWORDS)
    return SingleAgent(env, **mine)


def vector(num_envs: int, task: str, **kwargs: Any) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Make the `TextVectorEnv` of a task.

    Args:
        num_envs: how many episodes are played side by side.
        task: a name in `marlogue.envs.TASKS`.
        kwargs: `agent`, `others`, `sampling`, `autoreset_mode`, and those of the task.

    Raises:
        ValueError: when a keyword is unknown; names those that are known.
    """
    from marlogue.wrappers.vector import TextVectorEnv

    mine, env = _parts(task, kwargs, (*VIEW_KEYWORDS, "autoreset_mode"))
    return TextVectorEnv(env, num_envs, **mine)


def _parts(
    task: str, kwargs: dict[str, Any], own: Collection[str]
) -> tuple[dict[str, Any], TextEnv]:
    """The view's keywords, and the environment that the others make."""
    known = [*own, *_task_keywords(task)]
    for name in kwargs:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"{gymnasium_id(task)} has no keyword {name!r}; {hint}It takes {', '.join(known)}"
            )
    mine = {name: value for name, value in kwargs.items() if name in own}
    if mine.get("others") is None:
        mine["others"] = PARTNERS.get(task)
    env = make(task, **{name: value for name, value in kwargs.items() if name not in own})
    return mine, env


def _task_keywords(task: str) -> list[str]:
    """The keywords of a task: its own, and those of `TextEnv` where it passes any on."""
    named: list[str] = []
    for func in (TASKS[task], TextEnv):
        parameters = inspect.signature(func).parameters.values()
        named += [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return list(dict.fromkeys(named))


register_all()
