"""Games in which one agent moves at a time: what `TurnBased` plays."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from gymnasium.spaces import Space, Text
from pettingzoo import AECEnv  # type: ignore[import-untyped]

from marlogue.envs.spaces import UnicodeText
from marlogue.envs.task import MAX_CHARS, whole_number


@dataclass(frozen=True)
class Turn:
    """What a game says after a reset or a move.

    Fields:
        agent: whose turn it is; None when the game is over.
        observations: agent to text: what `agent` is shown, and whoever else has news. The others
            are shown their last text again ("" before the first).
        rewards: agent to reward, since the last turn; 0 for those that are left out.
        terminated: agents for which the game ended here. Where `agent` is None, all that are left.
        truncated: agents that were cut off here.
        infos: agent to facts that JSON can express.
    """

    agent: str | None
    observations: Mapping[str, str] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: Collection[str] = ()
    truncated: Collection[str] = ()
    infos: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@runtime_checkable
class TurnBasedGame(Protocol):
    """A game for `TurnBased`; whoever is to move says a text."""

    possible_agents: list[str]

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> Turn:
        """Begin: the same seed gives the same game."""
        ...

    def step(self, text: str) -> Turn:
        """Play what the agent whose turn it is says."""
        ...


class AecGame:
    """A PettingZoo `AECEnv` of texts as a `TurnBasedGame`.

    Nothing is lost that a loop over the environment's `agent_iter` would see: agents that are
    terminated or truncated leave when the environment lets them go, with all that they earned.

    Args:
        env: the environment.

    Raises:
        TypeError: when it does not name its possible agents, or its observations or actions are
            not texts.
    """

    def __init__(self, env: AECEnv) -> None:
        agents = getattr(env, "possible_agents", None)
        if not agents:
            raise TypeError(f"env ({env}) must define possible_agents")
        self.env = env
        self.possible_agents: list[str] = list(agents)
        self._earned: dict[str, float] = {}

    def spaces(self) -> tuple[dict[str, Space[Any]], dict[str, Space[Any]]]:
        """The spaces of observations and of actions; these contain "", too, for who waits."""
        shown = {a: self._text_space("observation", a) for a in self.possible_agents}
        said = {a: _with_empty(self._text_space("action", a)) for a in self.possible_agents}
        return shown, said

    def _text_space(self, kind: str, agent: str) -> Space[Any]:
        space: Space[Any] = getattr(self.env, f"{kind}_space")(agent)
        if not isinstance(space, Text) and not space.contains("text"):
            raise TypeError(
                f"the {kind} space of {agent} in {self.env} ({space}) must be one of texts, as "
                "marlogue.envs.UnicodeText is; wrap the environment so that it speaks in texts"
            )
        return space

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> Turn:
        """Begin."""
        self.env.reset(seed=seed, options=None if options is None else dict(options))
        self._earned = {}
        return self._turn({})

    def step(self, text: str) -> Turn:
        """Let the selected agent act."""
        self._settle()
        self._earned[self.env.agent_selection] = 0.0
        self.env.step(text)
        rewards: dict[str, float] = {}
        self._earn(rewards)
        return self._turn(rewards)

    def _turn(self, rewards: dict[str, float]) -> Turn:
        """Let go of agents that have ended, and say what the others see."""
        env = self.env
        shown, infos = {}, {}
        ended: dict[str, set[str]] = {"terminated": set(), "truncated": set()}
        while env.agents and _has_ended(env, agent := env.agent_selection):
            self._settle()
            shown[agent] = env.observe(agent)
            infos[agent] = dict(env.infos[agent])
            if env.terminations[agent]:
                ended["terminated"].add(agent)
            if env.truncations[agent]:
                ended["truncated"].add(agent)
            env.step(None)
            self._earn(rewards)
        for agent in env.agents:
            shown[agent] = env.observe(agent)
            infos[agent] = dict(env.infos[agent])
        mover = env.agent_selection if env.agents else None
        return Turn(mover, shown, rewards, **ended, infos=infos)

    def _earn(self, rewards: dict[str, float]) -> None:
        for agent, reward in self.env.rewards.items():
            rewards[agent] = rewards.get(agent, 0.0) + reward
            self._earned[agent] = self._earned.get(agent, 0.0) + reward

    def _settle(self) -> None:
        """Compare what an agent was seen to earn with what the environment says that it earned."""
        agent, earned = self.env.agent_selection, self._earned.get(self.env.agent_selection, 0.0)
        _, owed, *_ = self.env.last(observe=False)
        if not math.isclose(earned, owed, rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(
                f"last() of {self.env} says that {agent} earned {owed} since it acted, but its "
                f"`rewards` were {earned} in sum; step must clear `rewards`, set them, reset the "
                "acting agent's cumulative reward, and call _accumulate_rewards"
            )

    def render(self) -> Any:
        """What the environment's `render` returns."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _has_ended(env: AECEnv, agent: str) -> bool:
    return bool(env.terminations[agent] or env.truncations[agent])


def _with_empty(space: Space[Any]) -> Space[Any]:
    """The space itself, or where it is a text space without the empty text, one with it."""
    if not isinstance(space, Text) or space.contains(""):
        return space
    if isinstance(space, UnicodeText):
        return UnicodeText(space.max_length)
    return Text(space.max_length, min_length=0, charset=space.character_set)


def text_bound(name: str, value: int | None) -> int:
    """The bound of a text space, given as an argument or not."""
    return MAX_CHARS if value is None else whole_number(name, value)
