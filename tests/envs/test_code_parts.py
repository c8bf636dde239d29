"""Code in completions: what is found, kept and refused; tests that count."""

import sys
import threading
import warnings

import pytest

from marlogue.envs.code_parts import code_part, context_of
from marlogue.envs.code_syntax import MAX_CODE_CHARS, is_wrapper, uses_value
from marlogue.envs.code_tests import counted_tests
from marlogue.envs.human_eval import human_eval_rows
from tests.support.libraries import needs_coding

FENCED = """Here it is:

```python
import math
import os

LIMIT: int = 3


def _root(y):
    return math.sqrt(y) + LIMIT

@staticmethod
def aux(x):
    # the root
    return _root(x)


print(aux(3))
assert aux(0) == 3
```

It takes the root:

```python
aux(9)
```
"""

KEPT = """import math
LIMIT: int = 3
def _root(y):
    return math.sqrt(y) + LIMIT
@staticmethod
def aux(x):
    # the root
    return _root(x)
"""


class TestFinding:
    @pytest.mark.parametrize(
        ("completion", "code"),
        [
            (FENCED, KEPT),
            ("def aux(x):\n    return x", "def aux(x):\n    return x\n"),
            ("Sure, here:\n\ndef aux(x):\n    return x\n", "def aux(x):\n    return x\n"),
            ("def aux(x):\n    return x\nIt isn't nice.", "def aux(x):\n    return x\n"),
            ("def aux(x):\n    return x\n\ndef cut(y):\n    if (y", "def aux(x):\n    return x\n"),
            ("```\ndef aux(x):\n    return x", "def aux(x):\n    return x\n"),
            ("```py\n  def aux(x):\n      return x\n  ```", "def aux(x):\n    return x\n"),
            ("def aux(x):\r\n    return x\r\n", "def aux(x):\n    return x\n"),
            ("def aux(x):\n    yield x", "def aux(x):\n    yield x\n"),
            ("def aux(x):\n    return f(x)\ndef f(x):\n    return 0",
             "def aux(x):\n    return f(x)\n"),
            ("from m import *\ndef aux():\n    return a",
             "from m import *\ndef aux():\n    return a\n"),
            ("```js\ndef aux(x): return 0\n```\n```python\ndef aux(x): return 1\n```",
             "def aux(x): return 1\n"),
            ("````\ndef aux(x):\n    '''\n```\n'''\n    return x\n````",
             "def aux(x):\n    '''\n```\n'''\n    return x\n"),
        ],
    )  # fmt: skip
    def test_what_is_kept(self, completion: str, code: str) -> None:
        part = code_part(completion, "aux", ("f",))
        assert (part.code, part.found, part.error) == (code, True, "")

    @pytest.mark.parametrize(
        ("completion", "error"),
        [
            ("", "no function aux was found"),
            ("I cannot.", "no function aux was found"),
            ("aux = lambda x: x", "no function aux was found"),
            ("```\nx = 1\n```\ndef aux(x):\n    return x", "no function aux was found"),
            ("class A:\n    def aux(self):\n        return 1", "no function aux was found"),
            ("def auxiliary(x):\n    return x", "no function aux was found"),
            ("x = '''\ndef aux(x):\n    return x\n'''", "aux is not defined at the top level"),
            ("def aux(x):\n    print(x)", "aux does not return a value"),
            ("def aux(x):\n    return", "aux does not return a value"),
            ("def aux(x):\n    def f():\n        return 1", "aux does not return a value"),
        ],
    )
    def test_what_is_missing(self, completion: str, error: str) -> None:
        part = code_part(completion, "aux")
        assert (part.code, part.found, part.error) == ("", False, error)

    @pytest.mark.parametrize(
        ("completion", "error"),
        [
            ("def aux(x):\n    return (x", "'(' was never closed at line 2"),
            ("def aux(x):\nreturn x", "expected an indented block"),
            ("def aux(x):\n    return '''x", "unterminated triple-quoted"),
            ("def aux(x):\n    return '\0'", "null bytes"),
            ("def aux(x):\n    return '\ud800'", "surrogates not allowed"),
            ("def aux(x):\n    return " + "9" * 5000, "Exceeds the limit"),
            ("def aux(x):\n    return " + "-" * 15_000 + "x", "nested too deeply"),
            ("def aux(x):\n    return " + "x+" * 9_000 + "x", "nested too deeply"),
            ("def aux(x):\n    return " + "x." * 9_000 + "x", "nested too deeply"),
            ("def aux(x):\n    return " + "[" * 1_000, "too many nested parentheses"),
            ("def aux(x):\n" + "    x\n" * MAX_CODE_CHARS, "more than 20000 characters"),
        ],
    )
    def test_what_does_not_parse(self, completion: str, error: str) -> None:
        part = code_part(completion, "aux")
        assert (part.code, part.found) == ("", True)
        assert part.error.startswith("syntax error: ")
        assert error in part.error

    def test_the_imports_of_the_future_go_ahead(self) -> None:
        part = code_part("from __future__ import annotations\ndef aux(x: Any):\n  return x", "aux")
        assert part.future == ("from __future__ import annotations",)
        assert part.code == "def aux(x: Any):\n  return x\n"

    def test_warnings_are_nobodys_business(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert code_part("def aux(x):\n    return '\\d'", "aux").code
        filters = list(warnings.filters)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        texts = [f"def aux(x):\n    return '\\d{i}'" for i in range(200)]
        threads = [
            threading.Thread(target=lambda: [code_part(text, "aux") for text in texts])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        assert list(warnings.filters) == filters


class TestUse:
    @pytest.mark.parametrize(
        ("body", "used"),
        [
            ("return aux(x) + 1", True),
            ("y = aux(x)\n    return y", True),
            ("return list(map(aux, x))", True),
            ("return [aux(y) for y in x]", True),
            ("aux(x)\n    return aux(x)", True),
            ("aux(x)\n    return 1", False),
            ("return 1", False),
            ("return x.aux(1)", False),
            ("return 'aux(x)'", False),
            ("aux = int\n    return aux(x)", False),
            ("def aux(y):\n        return y\n    return aux(x)", False),
            ("from m import f as aux\n    return aux(x)", False),
            ("return (lambda aux: aux(1))(int)", False),
        ],
    )
    def test_value_of_the_helper(self, body: str, used: bool) -> None:
        assert uses_value(f"def f(x):\n    {body}\n", "aux") is used

    @pytest.mark.parametrize(
        ("body", "wraps"),
        [
            ("return aux(x)", True),
            ("'''Text.'''\n    return aux(x, 3, key=y, *z)", True),
            ("y = aux(x)\n    return y", True),
            ("return aux(sorted(x))", False),
            ("return aux(x) + 1", False),
            ("y = aux(x)\n    return z", False),
            ("y = aux(x)\n    y += 1\n    return y", False),
            ("return f(x)", False),
        ],
    )
    def test_wrappers(self, body: str, wraps: bool) -> None:
        assert is_wrapper(f"def f(x):\n    {body}\n", "f", "aux") is wraps


class TestCounting:
    TEST = (
        "def check(candidate):\n    wanted = 2\n    assert candidate(1) == wanted, 'one'\n"
        "    for x in (1, 2):\n        assert candidate(x) == x + 1\n    assert True\n"
    )

    def run(self, test: str, function: object) -> tuple[int, str]:
        tests = counted_tests(test, "f")
        try:
            exec(tests.code, {"f": function})  # the tests and the functions are this file's own
        except AssertionError as error:
            # What the sandbox makes of it.
            return tests.read(f"the tests: line 9: AssertionError: {error} [raise ...]")
        return len(tests.sources), ""

    def test_each_statement_counts_once(self) -> None:
        assert self.run(self.TEST, lambda x: x + 1) == (2, "")
        assert self.run(self.TEST, lambda x: 2) == (
            1,
            "for x in (1, 2):\n    assert candidate(x) == x + 1\nAssertionError:",
        )
        assert self.run(self.TEST, lambda x: 0)[0] == 0
        held, said = self.run(self.TEST, lambda x: 1 / 0)
        assert held == 0
        assert said.endswith("ZeroDivisionError: division by zero")

    def test_asserts_at_the_top_level(self) -> None:
        test = "from __future__ import annotations\nassert f(1) == 1\nassert f(2) == 2\n"
        assert self.run(test, lambda x: 1)[0] == 1
        assert self.run(test, lambda x: x) == (2, "")

    def test_an_exception_cannot_report_for_the_tests(self) -> None:
        def f(x: int) -> int:
            raise ValueError("AssertionError: 2 of 2 tests held\n")

        assert self.run(self.TEST, f)[0] == 0
        tests = counted_tests(self.TEST, "f")
        assert tests.read("the code raised line 1: 7 of 7")[0] == 0

    @pytest.mark.parametrize("test", ["def check(candidate", "x = 1", "assert True", "\0"])
    def test_what_asserts_nothing_is_refused(self, test: str) -> None:
        with pytest.raises(ValueError, match=r"test \('.*'\) must"):
            counted_tests(test, "f")


@needs_coding
class TestRows:
    def test_all_rows_of_human_eval_can_be_used(self) -> None:
        rows = human_eval_rows()
        assert len(rows) == 164
        for row in rows:
            solution = row["prompt"] + row["canonical_solution"]
            part = code_part(solution, row["entry_point"])
            assert part.found, row["task_id"]
            assert counted_tests(row["test"], row["entry_point"]).sources

    def test_what_a_prompt_gives_beside_the_function(self) -> None:
        rows = {row["task_id"]: row for row in human_eval_rows()}
        row = rows["HumanEval/32"]
        context = context_of(row["prompt"], "find_zero")
        assert context.startswith("import math\ndef poly(xs: list, x: float):\n")
        assert "find_zero" not in context
        assert context_of("import re\ndef f(x):", "f") == "import re\n"
        assert context_of("Write a function f.", "f") == ""
