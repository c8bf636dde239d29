"""The whole dialogue as the observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.callbacks import callback_name, kind_of, noted, require_callable, require_result
from marlogue.envs.episodes import StepResult
from marlogue.envs.spaces import UnicodeText
from marlogue.envs.task import whole_number
from marlogue.envs.waiting import waits
from marlogue.wrappers.view import View, require_texts

Turns = Sequence[tuple[str, str]]
"""Prompt and completion of one turn after the other, the oldest first."""


def plain_dialogue(turns: Turns, prompt: str) -> str:
    """Each prompt with the completion on the next line, a blank line, and so on to the prompt."""
    return "".join(f"{asked}\n{answered}\n\n" for asked, answered in turns) + prompt


class History(View):
    """An agent is shown its own dialogue: each turn's prompt and what it answered, then the prompt.

    Of a dialogue that is too long whole turns are left out, the oldest first; their number is
    `infos[agent]["history_dropped"]`. The prompt of the moment is always whole. A turn in which the
    agent waited (`marlogue.envs.WAITS`) is not part of its dialogue.

    Args:
        env: an environment whose observations and actions are texts.
        max_chars: the most characters of an observation.
        formatter: `formatter(turns, prompt) -> str` writes a dialogue: a list of (prompt,
            completion), the oldest first, and the prompt of the moment. Fewer turns must make a
            text that is not longer. It is called again with fewer turns while the text is too long.

    Raises:
        TypeError: when an argument has a wrong type, or the environment does not speak in texts.
        ValueError: in a step, when the prompt alone is too long, or the formatter returns no text.
    """

    shared: ClassVar[tuple[str, ...]] = ("formatter",)

    def __init__(
        self,
        env: ParallelEnv,
        max_chars: int,
        *,
        formatter: Callable[[Turns, str], str] = plain_dialogue,
    ) -> None:
        super().__init__(env)
        require_texts(env, "History", observations=True, actions=True)
        require_callable(formatter, "formatter")
        self.max_chars = whole_number("max_chars", max_chars)
        self.formatter = formatter
        self.observation_spaces = {
            agent: UnicodeText(self.max_chars) for agent in env.possible_agents
        }
        self.begin()

    @override
    def begin(self) -> None:
        self._turns: dict[str, tuple[tuple[str, str], ...]] = {}
        self._prompts: dict[str, str] = {}  # of the agents that do not wait

    @override
    def step(self, actions: Mapping[str, str]) -> StepResult:
        self.check_actions(actions)
        before = self._turns
        answered = {
            agent: (*before.get(agent, ()), (prompt, actions[agent]))
            for agent, prompt in self._prompts.items()
            if agent in actions
        }
        self._turns = {**before, **answered}
        try:
            return self.step_inside(dict(actions))
        except BaseException:
            self._turns = before
            raise

    @override
    def observe(self, agent: str, observation: str, info: dict[str, Any]) -> str:
        self._prompts.pop(agent, None)
        if not waits(info):
            self._prompts[agent] = observation
        turns = list(self._turns.get(agent, ()))
        for dropped in range(len(turns) + 1):
            text = self._written(agent, turns[dropped:], observation)
            if len(text) <= self.max_chars:
                info["history_dropped"] = dropped
                return text
        raise ValueError(
            f"max_chars ({self.max_chars}) must not be less than the characters of a prompt; that "
            f"of {agent} alone has {len(text)}. Raise it"
        )

    def _written(self, agent: str, turns: Turns, prompt: str) -> str:
        with noted(f"writing the dialogue of {agent}, {len(turns)} turn(s) and a prompt"):
            text = self.formatter(turns, prompt)
        require_result(text, "formatter", self.formatter)
        if not isinstance(text, str):
            raise ValueError(
                f"formatter ({callback_name(self.formatter)}) must return a text, not "
                f"{kind_of(text)}"
            )
        return text
