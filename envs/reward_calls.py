"""One call of a reward function: what it is given, and what came of it, an exception included."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from marlogue.envs.callbacks import noted, require_result
from marlogue.envs.reward_values import AgentRewards, read_each

Answer: TypeAlias = list[AgentRewards | ValueError]
"""For each joint action each agent's reward, or what is wrong with them."""

Outcome: TypeAlias = Answer | Exception
"""What came of a call: its answer, or the exception that it ended with."""


class RewardWorkerError(RuntimeError):
    """A worker of reward calls failed, or its function raised what this process has no type for."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is ready to be made; it holds copies that are the function's own.

    Fields:
        args: for each agent its completions, as far as they go by position.
        kwargs: what goes by keyword.
        scope: what is scored, for messages.
        places: row and turn of each joint action, for messages.
    """

    args: tuple[list[str], ...]
    kwargs: dict[str, Any]
    scope: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scorer:
    """A reward function that can be asked; sent to worker processes as it is.

    Fields:
        func: the user's function.
        name: its name, for messages.
        agents: the agents' names.
    """

    func: Callable[..., Any]
    name: str
    agents: tuple[str, ...]

    def __call__(self, call: Call) -> Answer:
        """Call the function and read what it returns.

        Raises:
            Whatever it raises, with a note of where; a RuntimeError in the place of SystemExit.
            ValueError: when the answer as a whole breaks the contract.
        """
        with noted(self._doing(call)):
            try:
                raw = self.func(*call.args, **call.kwargs)
            except SystemExit as error:
                _refuse_exit(error)
                raise
            require_result(raw, "reward_func", self.func)
        return read_each(raw, self.name, self.agents, call.places)

    async def awaited(self, call: Call) -> Answer:
        """The same of an async function."""
        with noted(self._doing(call)):
            try:
                raw = await self.func(*call.args, **call.kwargs)
            except SystemExit as error:
                _refuse_exit(error)
                raise
        return read_each(raw, self.name, self.agents, call.places)

    def too_late(self, call: Call, timeout: float, more: str = "") -> TimeoutError:
        """The error about a call that took longer than it may."""
        error = TimeoutError(
            f"reward_func ({self.name}) took longer than reward_timeout ({timeout:g} s){more}"
        )
        error.add_note(f"while {self._doing(call)}")
        return error

    def lost(self, call: Call, what: str) -> RewardWorkerError:
        """The error about a call whose worker failed."""
        error = RewardWorkerError(f"the worker that ran reward_func ({self.name}) {what}")
        error.add_note(f"while {self._doing(call)}")
        return error

    def _doing(self, call: Call) -> str:
        return f"calling reward_func ({self.name}) for {call.scope}"


def attempt(make: Callable[[Call], Answer], call: Call) -> Outcome:
    """The answer of a call, or the exception that it ended with."""
    try:
        return make(call)
    except Exception as error:
        return error


async def attempt_awaited(make: Callable[[Call], Awaitable[Answer]], call: Call) -> Outcome:
    """The same of a call that is awaited."""
    try:
        return await make(call)
    except Exception as error:
        return error


def scope_of(places: Sequence[str]) -> str:
    """The rows and turns of a call, in a few words."""
    different = list(dict.fromkeys(places))
    shown = "; ".join(different[:4]) + ("; ..." if len(different) > 4 else "")
    return f"{shown} ({len(places)} joint action(s))"


def _refuse_exit(error: SystemExit) -> None:
    """A reward function that calls `sys.exit`, or code of a model that it runs, must not end a
    training in silence. What a signal handler raises meanwhile is not the function's."""
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return
        traceback = traceback.tb_next
    raise RuntimeError(
        f"reward_func tried to end the process (SystemExit: {error.code!r})"
    ) from error


def _code_of(handler: Any) -> Any:
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
