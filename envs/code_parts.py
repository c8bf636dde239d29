"""From a completion to one agent's part of a program: found, parsed, and cut to what is needed.

The rules, for the function that the agent is asked for:

- Where the completion has fenced blocks (lines of three or more backticks), the code is the first
  block marked as Python, or not marked at all, in which a line `def NAME(` stands; a block that is
  not closed goes to the end. Where it has none, the completion is code from its first line at the
  left margin that begins like code (`import`, `from`, `def`, `class`, `async def`, `@`, `NAME =`).
- What follows the first statement at the left margin that does not parse is left out: text behind
  the code, or a statement that the limit of tokens cut off.
- Kept are the function, and those imports, functions, classes and assignments at the top level
  that it needs, directly or through another of them. Everything else (examples of use, tests,
  prints) is left out, and so are functions that are other agents' to write.

Text is only parsed here, never run; what is too long or too deep for the parser counts as code
with a syntax error.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from marlogue.envs.callbacks import shortened
from marlogue.envs.code_syntax import (
    DEFINITIONS,
    bound_names,
    function_of,
    is_future,
    is_star,
    lines_of,
    parse,
    returns_value,
    text_of,
)

MAX_CUTS = 10

_FENCE = re.compile(r"[ \t]*(`{3,})[ \t]*([^\s`]*)[^`]*$")
_BEGINS = re.compile(r"(import|from|def|class|async[ \t]+def)[ \t]|@\w|[A-Za-z_]\w*[ \t]*=[^=]")
_MARKS = ("", "python", "python3", "py")


@dataclass(frozen=True, slots=True)
class CodePart:
    """What one agent wrote of the program.

    Fields:
        name: the function that it was asked for.
        code: what is kept of its code, with a newline at the end; "" where there is nothing, or
            nothing that parses.
        future: its `from __future__` imports, which have to stand at a program's beginning.
        found: a line `def NAME(` was found and, where the code parses, the function returns a
            value (or yields).
        error: what keeps the code from being run; "" where it is fine.
    """

    name: str
    code: str
    future: tuple[str, ...]
    found: bool
    error: str

    @property
    def usable(self) -> bool:
        """Whether there is code that can be run."""
        return bool(self.code)


def code_part(completion: str, name: str, others: Collection[str] = ()) -> CodePart:
    """Find the function `name` in a completion, by the rules at the head of this module.

    Args:
        completion: what the agent answered.
        name: the function that it was asked for.
        others: functions that other agents write; definitions of them are left out.
    """
    header = re.compile(rf"^def[ \t]+{re.escape(name)}[ \t]*[(\[]", re.MULTILINE)
    code = _code_of(completion, header)
    if not header.search(code):
        return CodePart(name, "", (), False, f"no function {name} was found")
    try:
        body, code = _parse_beginning(code, header)
        return _kept(body, code, name, others)
    except SyntaxError as error:
        return CodePart(name, "", (), True, _syntax_error(error))


def context_of(prompt: str, entry_point: str) -> str:
    """What a row's prompt defines beside the function that it asks for: imports, and functions
    that its text builds on. "" where the prompt is no Python."""
    for text in (prompt, f"{prompt}\n    pass\n"):  # a header without a docstring needs a body
        try:
            body = parse(text).body
        except SyntaxError:
            continue
        lines = lines_of(text)
        statements = [s for s in body if isinstance(s, DEFINITIONS) and not is_future(s)]
        return text_of([s for s in statements if entry_point not in bound_names(s)], lines)
    return ""


def _code_of(completion: str, header: re.Pattern[str]) -> str:
    lines = lines_of(completion)
    blocks = _fenced(lines)
    if blocks is None:
        start = next((i for i, line in enumerate(lines) if _BEGINS.match(line)), len(lines))
        return "\n".join(lines[start:])
    texts = [textwrap.dedent("\n".join(block)) for block in blocks]
    return next((text for text in texts if header.search(text)), "")


def _fenced(lines: Sequence[str]) -> list[list[str]] | None:
    """The lines of each fenced block that may be Python; None where there is no fence at all."""
    blocks: list[list[str]] = []
    fence = ""
    seen = False
    wanted = False
    for line in lines:
        mark = _FENCE.match(line) if "```" in line else None
        if mark is None:
            if fence and wanted:
                blocks[-1].append(line)
        elif not fence:
            fence, seen = mark[1], True
            wanted = mark[2].lower() in _MARKS
            if wanted:
                blocks.append([])
        elif len(mark[1]) >= len(fence) and not mark[2]:
            fence = ""
        elif wanted:
            blocks[-1].append(line)
    return blocks if seen else None


def _parse_beginning(code: str, header: re.Pattern[str]) -> tuple[list[ast.stmt], str]:
    """Parse code, without what follows the first statement that does not parse.

    Raises:
        SyntaxError: the first error, where nothing is left of the function that is looked for.
    """
    first: SyntaxError | None = None
    for _ in range(MAX_CUTS):
        try:
            return parse(code).body, code
        except SyntaxError as error:
            first = first or error
            code = _cut(code, error.lineno)
        if not header.search(code):
            break
    assert first is not None
    raise first


def _cut(code: str, line: int | None) -> str:
    """Code before the statement at the left margin that a line (from 1) belongs to."""
    lines = lines_of(code)
    last = min(line or 1, len(lines)) - 1
    while last > 0 and not re.match(r"[^\s#)\]}]", lines[last]):
        last -= 1
    return "\n".join(lines[:last])


def _kept(body: list[ast.stmt], code: str, name: str, others: Collection[str]) -> CodePart:
    function = function_of(body, name)
    if function is None:
        return CodePart(name, "", (), False, f"{name} is not defined at the top level")
    if not returns_value(function):
        return CodePart(name, "", (), False, f"{name} does not return a value")
    lines = lines_of(code)
    future = tuple(text_of([s], lines).strip() for s in body if is_future(s))
    own = [s for s in body if isinstance(s, DEFINITIONS) and not is_future(s)]
    own = [s for s in own if bound_names(s).isdisjoint(others)]
    return CodePart(name, text_of(_needed(own, name), lines), future, True, "")


def _needed(statements: Sequence[ast.stmt], name: str) -> list[ast.stmt]:
    """The statements that bind a name, and those that bind what they need, in their order."""
    wanted, todo = {name}, [name]
    kept: set[int] = {i for i, s in enumerate(statements) if is_star(s)}
    while todo:
        needed = todo.pop()
        for index, statement in enumerate(statements):
            if index in kept or needed not in bound_names(statement):
                continue
            kept.add(index)
            names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            todo.extend(names - wanted)
            wanted |= names
    return [statement for index, statement in enumerate(statements) if index in kept]


def _syntax_error(error: SyntaxError) -> str:
    where = f" at line {error.lineno} ({shortened((error.text or '').strip())})"
    return f"syntax error: {error.msg}{where if error.lineno else ''}"
