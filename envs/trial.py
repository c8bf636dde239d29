"""Playing an environment under test, for the checks in `marlogue.envs.checks`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


class ConformanceError(AssertionError):
    """An environment breaks the contract that learners rely on; the message says where."""


@dataclass(frozen=True)
class Trial:
    """An environment under test, and how to play it.

    Fields:
        env: the environment.
        seed: of the episodes.
        max_turns: an episode that is longer counts as endless.
        leaving: whether agents may end before the others, or in another way.
    """

    env: ParallelEnv
    seed: int
    max_turns: int
    leaving: bool

    def require(self, holds: bool, fault: str) -> None:
        """Raise `ConformanceError` unless the condition holds."""
        if not holds:
            raise ConformanceError(f"{self.env}: {fault}")

    def reset(self, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the seeded episode; actions are sampled anew from the beginning, too."""
        for index, agent in enumerate(self.env.possible_agents):
            self.env.action_space(agent).seed(self.seed + index)
        returned = self.env.reset(seed=self.seed, options=options)
        self.require(
            isinstance(returned, tuple)
            and len(returned) == 2
            and all(isinstance(part, dict) for part in returned),
            f"reset must return two dicts (observations, infos), not {returned!r}",
        )
        shown, infos = returned
        return shown, infos

    def step(self) -> Step:
        """Let every live agent sample an action, and play a turn."""
        acting = list(self.env.agents)
        actions = {agent: self.env.action_space(agent).sample() for agent in acting}
        returned = self.env.step(actions)
        self.require(
            isinstance(returned, tuple)
            and len(returned) == len(PARTS)
            and all(isinstance(part, dict) for part in returned),
            f"step must return five dicts ({', '.join(PARTS)}), not {returned!r}",
        )
        step = Step(acting, list(self.env.agents), dict(zip(PARTS, returned, strict=True)))
        flags = step.parts["terminations"], step.parts["truncations"]
        ended = [a for a in step.live if any(flag.get(a, False) for flag in flags)]
        self.require(
            not ended, f"agents ({step.live}) must not hold {', '.join(ended)} after their end"
        )
        return step

    def steps(self) -> Iterator[Step]:
        """Play the episode to its end."""
        turn = 0
        while self.env.agents:
            self.require(
                turn < self.max_turns,
                f"the episode has not ended after max_turns ({self.max_turns}) turns",
            )
            yield self.step()
            turn += 1


@dataclass(frozen=True)
class Step:
    """One turn: who acted, who lives on, and what came back by the names in `PARTS`."""

    acting: list[str]
    live: list[str]
    parts: dict[str, dict[str, Any]]
