"""A row's tests, made to count: each statement that asserts something is tried by itself."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass

from marlogue.envs.callbacks import shortened
from marlogue.envs.code_syntax import function_of, is_future, parse

CHECK = "check"

_HELD = "_marlogue_held"
_FAILED = "_marlogue_failed"
_FIRST = "_marlogue_first"
_ERROR = "_marlogue_error"
MAX_TEST_CHARS = 1_000_000
# The sandbox appends the line of the source after the message's end.
_REPORT = re.compile(
    r"AssertionError: (\d+) of (\d+) tests held(?:; test (\d+): (.*))?\n", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class CountedTests:
    """Tests that say how many of them held.

    Fields:
        code: to be run beside a program. Raises an AssertionError unless all tests held; its
            message is what `read` reads.
        sources: the text of each test.
    """

    code: str
    sources: tuple[str, ...]

    def read(self, message: str) -> tuple[int, str]:
        """How many tests held, and what failed first, of the message of the AssertionError."""
        said = _REPORT.search(message)
        if said is None or int(said[2]) != len(self.sources):
            return 0, message
        source = self.sources[int(said[3])] if said[3] else ""
        return int(said[1]), f"{shortened_text(source, 400)}\n{said[4] or ''}".strip()


@functools.lru_cache(maxsize=1024)
def counted_tests(test: str, entry_point: str) -> CountedTests:
    """Make tests count.

    A test is a statement that holds an `assert`, in the body of the function `check(candidate)`,
    or, where there is none, at the top level: a loop of asserts is one test. `assert True`, and
    any other constant, is none. Other statements are left as they are.

    Args:
        test: Python, in HumanEval's form (`def check(candidate): ...`), or asserts that call the
            entry point by its name.
        entry_point: the function that is tested.

    Raises:
        ValueError: when it does not parse, or asserts nothing.
    """
    try:
        tree = parse(test, MAX_TEST_CHARS)
    except SyntaxError as error:
        raise ValueError(f"test ({shortened(test)}) must be Python; {error}") from None
    check = function_of(tree.body, CHECK)
    body = tree.body if check is None else check.body
    sources: list[str] = []
    counted: list[ast.stmt] = []
    for statement in body:
        if _is_test(statement):
            counted.append(_tried(statement, len(sources)))
            sources.append(ast.unparse(statement))
        else:
            counted.append(statement)
    if not sources:
        raise ValueError(
            f"test ({shortened(test)}) must assert something, at the top level or in a function "
            f"{CHECK}(candidate)"
        )
    body[:] = counted
    call = "" if check is None else f"{CHECK}({entry_point})\n"
    start = next((i for i, s in enumerate(tree.body) if not is_future(s)), len(tree.body))
    tree.body[start:start] = ast.parse(f"{_HELD} = []\n{_FAILED} = []").body
    code = f"{ast.unparse(tree)}\n{call}{_verdict(len(sources))}"
    return CountedTests(code, tuple(sources))


def _is_test(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    asserts = [node for node in ast.walk(statement) if isinstance(node, ast.Assert)]
    return any(not isinstance(node.test, ast.Constant) for node in asserts)


def _tried(statement: ast.stmt, index: int) -> ast.stmt:
    """A test as a statement that notes whether it held."""
    (tried,) = ast.parse(
        "try:\n"
        "    pass\n"
        f"except Exception as {_ERROR}:\n"
        f"    {_FAILED}.append(({index}, type({_ERROR}).__name__, str({_ERROR})))\n"
        "else:\n"
        f"    {_HELD}.append({index})"
    ).body
    assert isinstance(tried, ast.Try)
    tried.body = [statement]
    return tried


def _verdict(total: int) -> str:
    return (
        f"if len({_HELD}) < {total}:\n"
        f"    {_FIRST} = '; test %d: %s: %.300s' % {_FAILED}[0] if {_FAILED} else ''\n"
        f"    raise AssertionError(f'{{len({_HELD})}} of {total} tests held{{{_FIRST}}}\\n')\n"
    )


def shortened_text(text: str, length: int) -> str:
    """A text, with its middle left out where it is too long to be shown."""
    if len(text) <= length:
        return text
    half = max((length - 5) // 2, 1)
    return f"{text[:half]} ... {text[-half:]}"
