"""Python that models wrote, as a syntax tree: parsed with care, looked at, and never run."""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Sequence

MAX_CODE_CHARS = 20_000
"""Longer code is not parsed."""

DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
)
"""Statements that give names to things."""

# Filters of warnings belong to the whole process: two threads that set them at once leave them set.
_PARSING = threading.Lock()


def parse(code: str, most: int = MAX_CODE_CHARS) -> ast.Module:
    """Parse code that anybody wrote, of at most so many characters.

    Raises:
        SyntaxError: also where it is too long or too deep, or holds what no code can hold.
    """
    if len(code) > most:
        raise SyntaxError(f"more than {most} characters")
    try:
        with _PARSING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" is the model's business
            return ast.parse(code)
    except (MemoryError, RecursionError):
        raise SyntaxError("nested too deeply") from None
    except SyntaxError:
        raise
    except ValueError as error:  # null bytes, lone surrogates, numbers with too many digits
        raise SyntaxError(str(error)) from None


def lines_of(text: str) -> list[str]:
    """Lines as Python's parser counts them."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def function_of(body: Sequence[ast.stmt], name: str) -> ast.FunctionDef | None:
    """The function of that name; the last one, as Python would have it."""
    found = [s for s in body if isinstance(s, ast.FunctionDef) and s.name == name]
    return found[-1] if found else None


def returns_value(function: ast.FunctionDef) -> bool:
    """Whether a function returns a value or yields; functions within it do not count."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if isinstance(node, ast.Return) and node.value is not None:
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top level defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    stored = (ast.Store, ast.Del)
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, stored)}


def is_future(statement: ast.stmt) -> bool:
    """Whether it is a `from __future__ import`."""
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def is_star(statement: ast.stmt) -> bool:
    """Whether it is a `from ... import *`."""
    return isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"


def text_of(statements: Sequence[ast.stmt], lines: Sequence[str]) -> str:
    """The lines of some statements, decorators included, as they were written."""
    numbers: dict[int, None] = {}
    for statement in statements:
        above = [node.lineno for node in getattr(statement, "decorator_list", ())]
        end = statement.end_lineno or statement.lineno
        numbers.update(dict.fromkeys(range(min([statement.lineno, *above]), end + 1)))
    return "".join(f"{lines[number - 1]}\n" for number in numbers)


def uses_value(code: str, name: str) -> bool:
    """Whether code uses a function that it does not define: names it otherwise than in a call
    whose value is dropped, and does not give its name to something else."""
    tree = parse(code)
    dropped = {
        id(node.value.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    }
    used = False
    for node in ast.walk(tree):
        if _renames(node, name):
            return False
        if isinstance(node, ast.Name) and node.id == name:
            used = used or id(node) not in dropped
    return used


def _renames(node: ast.AST, name: str) -> bool:
    """Whether a node gives a name a meaning of its own."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.arg):
        return node.arg == name
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    return isinstance(node, ast.alias) and (node.asname or node.name) == name


def is_wrapper(code: str, own: str, name: str) -> bool:
    """Whether the function `own` merely returns what the function `name` gives.

    That is so where, the docstring aside, its body is `return NAME(...)`, or `x = NAME(...)` and
    `return x`, and every argument of the call is a name or a constant.
    """
    function = function_of(parse(code).body, own)
    if function is None:
        return False
    has_docstring = isinstance(function.body[0], ast.Expr) and isinstance(
        function.body[0].value, ast.Constant
    )
    match function.body[has_docstring:]:
        case [ast.Return(value=ast.Call() as call)]:
            pass
        case [
            ast.Assign(targets=[ast.Name(id=stored)], value=ast.Call() as call),
            ast.Return(value=ast.Name(id=returned)),
        ] if stored == returned:
            pass
        case _:
            return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    given = [value.value if isinstance(value, ast.Starred) else value for value in given]
    plain = all(isinstance(value, ast.Name | ast.Constant) for value in given)
    return plain and isinstance(call.func, ast.Name) and call.func.id == name
