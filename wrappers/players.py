"""Teams in which several agents are played by a library's model, and the others are frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.wrappers.partners import Asked, Partners, Policy

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams


class FrozenAgents:
    """The frozen policies of those whom nobody else plays.

    Args:
        env: the environment that they act in.
        players: the agents that somebody else plays; at least one.
        others: agent to policy for each of the rest, or one policy for all of them.
        sampling: how an `LLMPolicy` samples.

    Attributes:
        names: who is frozen.

    Raises:
        TypeError: when a policy cannot be asked.
        ValueError: when a player is unknown or there is none, or policies are missing, or name a
            player or an unknown agent.
    """

    def __init__(
        self,
        env: ParallelEnv,
        players: Sequence[str],
        others: Mapping[str, Policy] | Policy | None,
        sampling: SamplingParams | None = None,
    ) -> None:
        everybody = list(env.possible_agents)
        if not players or not set(players) <= set(everybody):
            raise ValueError(f"agents ({list(players)}) must be some of {', '.join(everybody)}")
        self.names = frozenset(everybody) - frozenset(players)
        if others is not None and not isinstance(others, Mapping):
            others = dict.fromkeys(sorted(self.names), others)
        named: dict[str, Policy] = dict(others or {})
        both = [name for name in named if name in players]
        if both:
            raise ValueError(
                f"others (of {', '.join(map(str, named))}) must not hold {', '.join(both)}, played "
                "by the model; leave them out of others, or out of the agents that it plays"
            )
        first, *more = players
        every = {**named, **dict.fromkeys(more, _never_asked)}
        self._partners = Partners(env, first, every, sampling)

    def answer(self, asked: Sequence[Asked]) -> list[Any]:
        """Their actions; see `Partners.answer`."""
        return self._partners.answer(asked)


def _never_asked(observation: str) -> str:
    raise AssertionError("an agent that is played by a model was asked as a frozen one")
