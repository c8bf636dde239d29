"""What a helper and a main function are worth together: parts of a reward, each of 0 to 1.

The program is what the row's prompt defines beside the function it asks for (imports, given
functions), then the helper's part, then the main part. It runs in a sandbox, against tests that are
counted (`marlogue.envs.code_tests`), and up to twice more, to see what each agent adds:

- without the helper: `aux` is one that returns None, everything else is as it was;
- the helper alone: the main function is `return aux(...)` with the arguments that it got.
"""

from __future__ import annotations

import functools
import hashlib
import keyword
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from marlogue.envs.code_parts import CodePart, code_part, context_of
from marlogue.envs.code_syntax import is_wrapper, parse, uses_value
from marlogue.envs.code_tests import CountedTests, counted_tests
from marlogue.envs.rows import Row

if TYPE_CHECKING:  # many who import the environments have no use for it
    from marlogue.envs.sandbox import Limits, Result, Sandbox, Snippet

HELPER = "aux"
"""The name of the helper function."""

Isolation = Literal["bubblewrap", "rlimits"]

MAX_GRADES = 1024
"""Grades that a grader remembers."""


class Answer(NamedTuple):
    """A joint answer to a row."""

    row: Row
    helper: str
    main: str


@dataclass(frozen=True, slots=True)
class Grade:
    """What a joint answer is worth, and why.

    Fields:
        helper, main: each agent's part of the program.
        held, total: how many tests held, of how many.
        syntax_error: why the program cannot be run; "" where it can, or there is no main function.
        status: how the run ended, as the sandbox says; "" where nothing was run.
        message: what failed first; "" where nothing did.
        uses: the main part uses the helper's value.
        adds: the helper adds to the main function, and the main function to the helper.
        lacks: why not; "" where it does, or was not asked.
    """

    helper: CodePart
    main: CodePart
    held: int = 0
    total: int = 0
    syntax_error: str = ""
    status: str = ""
    message: str = ""
    uses: bool = False
    adds: bool = False
    lacks: str = ""

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the reward, see `Weights`, each from 0 to 1."""
        return {
            "helper": float(self.helper.found),
            "main": float(self.main.found),
            "syntax": float(self.main.usable and not self.syntax_error),
            "tests": self.held / self.total if self.total else 0.0,
            "uses": float(self.uses),
            "adds": float(self.adds),
        }


@dataclass(frozen=True, slots=True)
class Weights:
    """What each part is worth; a reward is their weighted sum, 0 to 4 by default. The numbers are
    those of CoMLRL's coding task.

    Args:
        helper: agent_0's answer has a function `aux` that returns a value.
        main: agent_1's answer has the function that the row asks for, and it returns a value.
        syntax: there is a main function, and the whole program parses. A missing helper is no
            syntax error, one with a syntax error is.
        tests: the share of the row's tests that hold.
        uses: at least one test holds, and the main part uses the value of `aux`.
        adds: that as well, and fewer tests hold without the helper, and fewer with the helper
            alone; nor is the main function of the form `return aux(...)` with mere names and
            constants as arguments.
    """

    helper: float = 0.4
    main: float = 0.6
    syntax: float = 0.5
    tests: float = 1.0
    uses: float = 0.5
    adds: float = 1.0

    def __post_init__(self) -> None:
        for name, weight in asdict(self).items():
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise TypeError(f"weights.{name} ({weight!r}) must be a number")
            if not 0 <= weight < float("inf"):
                raise ValueError(f"weights.{name} ({weight}) must be 0 or more, and finite")

    def of(self, parts: Mapping[str, float]) -> float:
        """The weighted sum of parts."""
        return sum(weight * parts[name] for name, weight in asdict(self).items())


class Grader:
    """Grades joint answers, many at once, and remembers what it graded.

    Args:
        sandbox: where programs run.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._known: OrderedDict[bytes, Grade] = OrderedDict()

    def grade(self, answers: Sequence[Answer]) -> list[Grade]:
        """The grade of each answer.

        Raises:
            ValueError: when a row lacks a field, or its tests cannot be used.
        """
        keys = [_key(answer) for answer in answers]
        known = {key: self._known.get(key) for key in keys}  # once: threads may be here as well
        grades = {key: grade for key, grade in known.items() if grade is not None}
        new = {key: a for key, a in zip(keys, answers, strict=True) if key not in grades}
        grades.update(zip(new, self._graded(list(new.values())), strict=True))
        for key in new:
            self._known[key] = grades[key]
        while len(self._known) > MAX_GRADES:
            self._known.popitem(last=False)
        return [grades[key] for key in keys]

    def _graded(self, answers: Sequence[Answer]) -> list[Grade]:
        programs = [_Program.of(answer) for answer in answers]
        runnable = [program for program in programs if program.runnable]
        for program, result in self._run(runnable, ""):
            program.take_run(result)
        team = [program for program in runnable if program.asks_who_adds()]
        for program, result in self._run(team, _NO_HELPER):
            program.take_without_helper(result)
        rest = [program for program in team if not program.grade.lacks]
        for program, result in self._run(rest, _HELPER_ALONE):
            program.take_helper_alone(result)
        return [program.grade for program in programs]

    def _run(self, programs: Sequence[_Program], ending: str) -> list[tuple[_Program, Result]]:
        snippets = [program.snippet(ending) for program in programs]
        results = self.sandbox.run_many(snippets) if snippets else []
        return list(zip(programs, results, strict=True))


_NO_HELPER = f"\ndef {HELPER}(*args, **kwargs):\n    return None\n"
_HELPER_ALONE = f"\ndef {{main}}(*args, **kwargs):\n    return {HELPER}(*args, **kwargs)\n"


@dataclass(slots=True)
class _Program:
    """A program on its way to a grade."""

    context: str
    tests: CountedTests
    code: str
    grade: Grade

    @classmethod
    def of(cls, answer: Answer) -> _Program:
        prompt, test, name = (field(answer.row, n) for n in ("prompt", "test", "entry_point"))
        helper = code_part(answer.helper, HELPER, (name,))
        main = code_part(answer.main, name, (HELPER,))
        tests = counted_tests(test, name)
        futures = dict.fromkeys((*helper.future, *main.future))
        context = context_of(prompt, name)
        code = "\n".join([*futures, context, helper.code, main.code])
        grade = Grade(helper, main, total=len(tests.sources))
        if main.usable:
            grade = replace(grade, syntax_error=_syntax_error(helper, code))
        return cls(context, tests, code, grade)

    @property
    def runnable(self) -> bool:
        return self.grade.main.usable and not self.grade.syntax_error

    def snippet(self, ending: str) -> Snippet:
        from marlogue.envs.sandbox import Snippet

        name = self.grade.main.name
        return Snippet(
            code=self.code + ending.format(main=name),
            tests=self.tests.code,
            entry_point=name,
            setup=self.context,  # what tests compute with it, the program cannot tamper with
        )

    def take_run(self, result: Result) -> None:
        held, message = self._held(result)
        uses = bool(held and self.grade.helper.usable) and uses_value(self.grade.main.code, HELPER)
        self.grade = replace(
            self.grade, held=held, status=result.status, message=message, uses=uses
        )

    def asks_who_adds(self) -> bool:
        if not self.grade.uses:
            return False
        if is_wrapper(self.grade.main.code, self.grade.main.name, HELPER):
            self._lacks(f"{self.grade.main.name} only returns what {HELPER} gives")
            return False
        return True

    def take_without_helper(self, result: Result) -> None:
        if self._held(result)[0] >= self.grade.held:
            self._lacks(f"{self.grade.main.name} is as good without {HELPER}")

    def take_helper_alone(self, result: Result) -> None:
        if self._held(result)[0] >= self.grade.held:
            self._lacks(f"{HELPER} alone is as good as {self.grade.main.name}")
        else:
            self.grade = replace(self.grade, adds=True)

    def _lacks(self, why: str) -> None:
        self.grade = replace(self.grade, lacks=why)

    def _held(self, result: Result) -> tuple[int, str]:
        """How many tests held, and what failed."""
        if result.status == "passed":
            return self.grade.total, ""
        if result.status == "failed":
            return self.tests.read(result.message)
        return 0, result.message


def field(row: Row, name: str) -> str:
    """A field of a row that has to be a text.

    Raises:
        ValueError: when there is none.
    """
    value = row.get(name)
    if not isinstance(value, str) or not value:
        fields = ", ".join(map(repr, row)) or "none"
        raise ValueError(
            f"the row's {name} ({value!r}) must be a text (its fields: {fields}); rows need "
            "prompt, test and entry_point"
        )
    if name != "entry_point":
        return value
    if not value.isidentifier() or keyword.iskeyword(value) or value == HELPER:
        raise ValueError(f"the row's entry_point ({value!r}) must be a name, and not {HELPER}")
    return value


def _syntax_error(helper: CodePart, code: str) -> str:
    if helper.found and not helper.usable:
        return helper.error
    try:
        parse(code)
    except SyntaxError as error:
        return f"syntax error: {error.msg}"
    return ""


def _key(answer: Answer) -> bytes:
    texts = [*(field(answer.row, n) for n in ("prompt", "test", "entry_point")), *answer[1:]]
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return hashlib.sha256(b"".join(b"%d:%b" % (len(text), text) for text in encoded)).digest()


@functools.lru_cache(maxsize=8)
def shared_grader(limits: Limits, isolation: Isolation, workers: int | None) -> Grader:
    """The grader of this process with these settings, for all environments and their copies.

    Raises:
        SandboxUnavailable: when programs cannot be kept in here.
    """
    from marlogue.envs.sandbox import Sandbox

    return Grader(Sandbox(limits, isolation=isolation, workers=workers))
