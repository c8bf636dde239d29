"""What a run in the sandbox gives, for code and tests without malice."""

import textwrap
from pathlib import Path

import pytest

from marlogue.envs.sandbox import Limits, Result, Sandbox
from tests.support.sandboxes import LIMITS, nothing_left, sandbox

ADD = "def add(a, b=1, *rest, scale=1):\n    return (a + b + sum(rest)) * scale"


def run(code, tests="", entry_point=None, setup="", **limits):
    """Run in the test's sandbox, with other limits where there are."""
    box = sandbox(Limits(**{**vars(LIMITS), **limits}))
    return box.run(
        textwrap.dedent(code), textwrap.dedent(tests), entry_point=entry_point, setup=setup
    )


def test_passed():
    result = run(ADD, "assert candidate(2) == 3\nassert add(1, 2, 3, scale=2) == 12", "add")
    assert (result.status, result.message, result.passed) == ("passed", "", True)
    assert 0 < result.seconds < 60


def test_failed():
    result = run(ADD, "x = candidate(2)\nassert x == 4, f'got {x}'", "add")
    assert result.status == "failed"
    assert result.message == (
        "the tests: line 2: AssertionError: got 3 [assert x == 4, f'got {x}']"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\n1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("def f(:", "line 1: SyntaxError: invalid syntax"),
        (
            "import nothing_like_it",
            "line 1: ModuleNotFoundError: No module named 'nothing_like_it'",
        ),
        ("x = 1", "NameError: the code defines no function f"),
        ("f = 1", "NameError: the code defines no function f"),
        ("def f():\n    return 1\n\ud800", "UnicodeEncodeError"),
        ("def f():\n    return 1\n\0", "SyntaxError"),
    ],
)
def test_error_of_the_code(code, message):
    result = run(code, "assert candidate() == 1", "f")
    assert result.status == "error"
    assert message in result.message


def test_error_in_a_call_names_both_lines():
    result = run("def f(x):\n    return 1 / x", "\ncandidate(0)", "f")
    assert result.message == (
        "the code raised line 2: ZeroDivisionError: division by zero [candidate(0)]"
    )


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("candidate(", "SyntaxError: '(' was never closed"),
        ("unknown()", "NameError: name 'unknown' is not defined"),
        ("candidate(print)", "the tests pass a value of type builtin_function_or_method"),
        ("pass", "the tests never called the code"),
        ("def verify():\n    candidate(1)", "the tests never called the code"),
    ],
)
def test_error_of_the_tests(tests, message):
    result = run("def f(x):\n    return x", tests, "f")
    assert result.status == "error"
    assert message in result.message


def test_code_without_tests():
    assert run("print('hello')") == Result("passed", "", "hello\n", "", pytest.approx(30, abs=30))
    assert run("raise SystemExit(0)").status == "error"
    assert run("def f(): pass", entry_point="f").status == "passed"
    assert run("def f(): pass", entry_point="g").status == "error"


def test_timeout_memory_violation():
    assert run("while True: pass").status == "timeout"
    assert run("x = ' ' * 10**9").status == "memory"
    assert run("print('x' * 10**6)").status == "violation"


def test_the_tests_are_limited_too():
    code = "def f(x):\n    return x"
    assert run(code, "candidate(1)\nwhile True: pass", "f").status == "timeout"
    assert run(code, "candidate(1)\nx = ' ' * 10**9", "f").status == "memory"
    assert run(code, "import os\nos._exit(0)", "f").status == "error"


def test_output():
    code = "import sys\nprint('code')\ndef f():\n    print('call', file=sys.stderr)\n    return 1"
    result = run(code, "assert candidate() == 1\nprint('tests')", "f")
    assert result.passed
    assert (result.stdout, result.stderr) == ("code\ntests\n", "call\n")


def test_output_is_cut_at_the_limit():
    result = run("print('é' * 100)", output_bytes=5)
    assert result.status == "violation"
    assert result.stdout == "éé\ufffd"


def test_no_name_means_it_is_main_in_the_tests_only():
    code = "name = __name__\ndef f():\n    return name\nif __name__ == '__main__':\n    1 / 0"
    assert run(code, "assert candidate() == 'solution' and __name__ == '__main__'", "f").passed


VALUES = (
    "None, True, 0, -1, 10**30, 0.1, -0.0, 1e308 * 10, 2j, 'é\\ud800', b'\\0', [], (), {}, set()"
)


def test_values_go_through_and_back():
    tests = f"""
        values = [{VALUES}, bytearray(b'x'), frozenset((1, (2,))), range(3), {{(1, 'a'): [None]}}]
        for value in values:
            assert repr(candidate(value)) == repr(value), value
        assert repr(candidate(values)) == repr(values)
        assert type(candidate([True])[0]) is bool
        nan = candidate(float('nan'))
        assert nan != nan
    """
    assert run("def f(x):\n    return x", tests, "f").passed


def test_an_argument_that_the_code_changes_is_the_code_s_own():
    code = "def f(x):\n    x.append(3)\n    return x"
    tests = "x = [1]\nassert candidate(x) == [1, 3]\nassert x == [1]"
    assert run(code, tests, "f").passed


def test_exceptions_are_those_of_the_same_name():
    code = """
        class Own(LookupError):
            pass
        def f(kind):
            if kind == "own":
                raise Own("own", 1)
            if kind == "deep":
                return f(kind)
            raise {"key": KeyError("k"), "value": ValueError("v", 2), "os": OSError(2, "no")}[kind]
    """
    tests = """
        import unittest
        class Tests(unittest.TestCase):
            def test_them(self):
                with self.assertRaises(KeyError) as caught:
                    candidate("key")
                self.assertEqual(caught.exception.args, ("k",))
                with self.assertRaisesRegex(ValueError, "v"):
                    candidate("value")
                with self.assertRaises(LookupError) as caught:
                    candidate("own")
                self.assertEqual(caught.exception.args, ("own", 1))
                self.assertRaises(FileNotFoundError, candidate, "os")
                self.assertRaises(RecursionError, candidate, "deep")
                with self.assertRaises(TypeError):
                    candidate()
        unittest.main()
    """
    result = run(code, tests, "f")
    assert result.passed, result


def test_iterators_are_asked_item_by_item():
    code = """
        def f(n):
            i = 0
            while n is None or i < n:
                yield i
                i += 1
            raise ValueError("over")
        def pairs(x):
            return zip(x, x), map(str, x), {1: 2}.items()
    """
    tests = """
        from itertools import islice
        assert list(islice(candidate(None), 5)) == [0, 1, 2, 3, 4]
        seen = []
        try:
            for i in candidate(2):
                seen.append(i)
        except ValueError as error:
            seen.append(str(error))
        assert seen == [0, 1, "over"]
        assert candidate(0) != []  # as an iterator is not
        zipped, mapped, items = pairs([1, 2])
        assert list(zipped) == [(1, 1), (2, 2)] and next(mapped) == "1"
        assert (1, 2) in items and len(items) == 1
    """
    result = run(code, tests, "f")
    assert result.passed, result


def test_all_functions_of_the_code_can_be_called():
    code = "import functools\ndef f(x):\n    return -x\ng = functools.partial(f, 2)\nclass C: pass"
    tests = (
        "from solution import f as imported\n"
        "assert (candidate(1), f(1), g(), imported(1)) == (-1, -1, -2, -1)"
    )
    assert run(code, tests, "f").passed
    assert "name 'C' is not defined" in run(code, "candidate(1)\nC()", "f").message


def test_what_the_setup_defines_goes_before_what_the_code_defines():
    setup = (
        "import math\ndef square(x):\n    return x * x\ndef root(x):\n    '''To be written.'''\n"
    )
    good = "def square(x):\n    return 0\ndef root(x):\n    return x ** 0.5"
    cheat = "def square(x):\n    return 2\ndef root(x):\n    return 0"
    tests = (
        "def check(candidate):\n"
        "    assert math.isclose(square(candidate(2)), 2)\n"
        "    assert root(4) == 2"
    )
    assert run(good, tests, "root", setup).passed
    assert run(cheat, tests, "root", setup).status == "failed"


@pytest.mark.parametrize("call", ["", "\ncheck(f)", "\ncheck(candidate)"])
def test_check_is_called_once(call):
    tests = f"def check(candidate):\n    assert candidate() == 1{call}"
    assert run("n = 0\ndef f():\n    global n\n    n += 1\n    return n", tests, "f").passed


def test_functions_of_tests_are_called():
    tests = "def test_one():\n    assert f(1) == 1\ndef test_two():\n    assert f(2) == 3\n"
    result = run("def f(x):\n    return x", tests, "f")
    assert (result.status, "line 4" in result.message) == ("failed", True)


def test_unittest_decides_by_its_exit_code():
    tests = """
        import unittest
        class Tests(unittest.TestCase):
            def test(self):
                self.assertEqual(f(1), 2)
        unittest.main()
    """
    assert run("def f(x):\n    return 2 * x", tests, "f").passed
    assert run("def f(x):\n    return x", tests, "f").status == "failed"
    assert run("def f(x):\n    raise SystemExit(0)", tests, "f").status == "failed"


def test_tests_may_have_threads():
    tests = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(candidate, range(200))) == list(range(0, 400, 2))
    """
    result = run("def f(x):\n    return 2 * x", tests, "f")
    assert result.passed, result


def test_libraries_of_the_innocent_work():
    code = """
        import asyncio, dataclasses, os, random, re, tempfile, threading, time, typing
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path

        @dataclasses.dataclass
        class Point:
            x: "typing.Optional[int]" = None

        async def later(x):
            await asyncio.sleep(0.001)
            return x

        def f(x):
            with ThreadPoolExecutor(4) as pool:
                total = sum(pool.map(int, "1234"))
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "a").write_text("text")
                text = Path(folder, "a").read_text()
            return asyncio.run(later(x)), total, text, Point(1).x, os.path.expanduser("~")
    """
    result = run(code, "assert candidate(1) == (1, 10, 'text', 1, '~'), candidate(1)", "f")
    assert result.passed, result


def test_sets_of_texts_are_in_the_same_order_in_every_run():
    code = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    assert len({run(code).stdout for _ in range(4)}) == 1


def test_imports_from(tmp_path):
    sandbox()  # skips where there is none
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "handy.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "other.py").write_text("")
    box = Sandbox(LIMITS, imports_from=[tmp_path / "tools"])
    result = box.run(
        "import handy\nf = handy.twice", "import handy\nassert f(2) == 4", entry_point="f"
    )
    assert result.passed, result
    assert box.run("open('/imports/0/new', 'w')").status == "error"
    assert box.run("import other").status == "error"
    with pytest.raises(ValueError, match=r"imports_from .*none.* must name folders"):
        Sandbox(imports_from=[tmp_path / "none"])


def test_the_documentation_s_example(capsys):
    sandbox()
    text = (Path(__file__).parents[2] / "docs/sandbox.md").read_text(encoding="utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    exec(compile(example, "docs/sandbox.md", "exec"), {})
    promised = [
        line.partition("  # ")[2] for line in example.splitlines() if line.startswith("print(")
    ]
    assert capsys.readouterr().out.replace("passed \n", "passed\n").splitlines() == promised


def test_nothing_is_left_of_ordinary_runs():
    sandbox()
    with nothing_left():
        assert run(ADD, "assert candidate(1) == 2", "add").passed
        assert run(ADD, "assert candidate(1) == 3", "add").status == "failed"
