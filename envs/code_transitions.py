"""What a helper's and a main function's writer are shown after a turn of `code_pair_v0`.

Each is an `external_transition`: it gives the text that is added to each agent's prompt.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from marlogue.envs.callbacks import kind_of
from marlogue.envs.code_grades import HELPER, Answer, Grade, field
from marlogue.envs.code_parts import CodePart, code_part
from marlogue.envs.code_tests import shortened_text
from marlogue.envs.rows import Row

MAX_SHOWN = 2000
"""Longest piece of code, and longest message, that is shown, in characters."""

Expert = Callable[[Row, str, str], Any]


class Revision:
    """Each agent sees what both wrote, and is asked to improve its own."""

    def __call__(self, item: Row, agent_completions: Sequence[str]) -> list[str]:
        """What is added to each agent's prompt."""
        helper, main = _parts(item, agent_completions)
        return _prompts(helper, main, agent_completions, ("", ""))


class Diagnosis:
    """Each agent also sees what came of it: what is missing, the error, how many tests held, the
    first that did not, and whether the functions add to each other.

    Args:
        grade: gives the grade of each of some answers.
    """

    def __init__(self, grade: Callable[[Sequence[Answer]], list[Grade]]) -> None:
        self.grade = grade

    def __call__(self, item: Row, agent_completions: Sequence[str]) -> list[str]:
        """What is added to each agent's prompt."""
        helper, main = agent_completions
        (grade,) = self.grade([Answer(item, helper, main)])
        found = "\n".join(f"- {fact}" for fact in facts(grade))
        news = f"What came of it:\n{found}"
        return _prompts(grade.helper, grade.main, agent_completions, (news, news))


class ExpertEdits:
    """Each agent also sees what an expert suggests.

    Args:
        expert: called as `expert(row, helper, main)` with both agents' code (what they answered,
            where no code was found in it); returns one text for both agents, or a pair of texts,
            for the helper's writer and the main function's. "" says nothing. An `async def` is
            awaited, for all open episodes together.
    """

    def __init__(self, expert: Expert) -> None:
        if not callable(expert):
            raise TypeError(f"expert ({expert!r}) must be callable: expert(row, helper, main)")
        self.expert = expert

    async def __call__(self, item: Row, agent_completions: Sequence[str]) -> list[str]:
        """What is added to each agent's prompt."""
        helper, main = _parts(item, agent_completions)
        written = [
            part.code or completion
            for part, completion in zip((helper, main), agent_completions, strict=True)
        ]
        answer = self.expert(item, *written)
        said = _pair(await answer if inspect.isawaitable(answer) else answer)
        news = [f"An expert says:\n{shortened_text(s, MAX_SHOWN)}" if s else "" for s in said]
        return _prompts(helper, main, agent_completions, news)


def facts(grade: Grade) -> list[str]:
    """What there is to say about a joint answer, in a few lines."""
    told = [f"{part.name}: {part.error or 'found'}" for part in (grade.helper, grade.main)]
    if grade.syntax_error not in ("", grade.helper.error):
        told.append(grade.syntax_error)
    if not grade.status:
        return [*told, "no test was run"]
    told.append(f"{grade.held} of {grade.total} tests held")
    if grade.status not in ("passed", "failed"):
        told[-1] += f" ({grade.status})"
    if grade.message:
        first = "the first that did not: " if grade.status == "failed" else ""
        told.append(f"{first}{shortened_text(grade.message, MAX_SHOWN)}")
    if grade.lacks:
        told.append(grade.lacks)
    elif grade.held and not grade.uses:
        told.append(f"{grade.main.name} does not use {HELPER}")
    return told


def _pair(said: Any) -> tuple[str, str]:
    if isinstance(said, str):
        return said, said
    if isinstance(said, Sequence) and len(said) == 2 and all(isinstance(s, str) for s in said):
        return said[0], said[1]
    raise ValueError(
        f"expert returned {kind_of(said)}; it must return a text, or two: one for the helper's "
        "writer, one for the main function's"
    )


def _parts(item: Row, completions: Sequence[str]) -> tuple[CodePart, CodePart]:
    helper, main = completions
    name = field(item, "entry_point")
    return code_part(helper, HELPER, (name,)), code_part(main, name, (HELPER,))


def _prompts(
    helper: CodePart, main: CodePart, completions: Sequence[str], news: Sequence[str]
) -> list[str]:
    written = [
        _block(part, completion)
        for part, completion in zip((helper, main), completions, strict=True)
    ]
    prompts = []
    for own, part in enumerate((helper, main)):
        pieces = [
            f"You wrote:\n{written[own]}",
            f"Your team-mate wrote:\n{written[1 - own]}",
            news[own],
            f"Improve your function {part.name}, and write all of it again.",
        ]
        prompts.append("\n\n".join(piece for piece in pieces if piece))
    return prompts


def _block(part: CodePart, completion: str) -> str:
    if part.code:
        return f"```python\n{shortened_text(part.code.rstrip(), MAX_SHOWN)}\n```"
    return shortened_text(completion.strip(), MAX_SHOWN) or "(nothing)"
