"""Environments as somebody writes them who has never heard of Marlogue."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Text
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]


class EchoGame(ParallelEnv):
    """Say the word that you are shown; "quit" leaves early. Stock `Text` spaces, bare infos."""

    metadata = {"name": "echo_game_v0"}  # noqa: RUF012
    WORDS = ("ant", "bee", "cat", "dog")

    def __init__(self, turns: int = 3) -> None:
        self.possible_agents = ["ann", "bob"]
        self.agents: list[str] = []
        self.turns = turns
        self.turn = 0
        self.offset = 0
        self._observations = {agent: Text(12) for agent in self.possible_agents}
        self._actions = {agent: Text(6) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Text:
        return self._observations[agent]

    def action_space(self, agent: str) -> Text:
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        self.turn = 0
        self.offset = 0 if seed is None else seed % len(self.WORDS)
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, str]) -> Any:
        acting = list(self.agents)
        shown = self._shown()
        rewards = {agent: float(actions[agent] == shown[agent]) for agent in acting}
        self.turn += 1
        ended = {a: self.turn == self.turns or actions[a] == "quit" for a in acting}
        shown = self._shown()
        self.agents = [agent for agent in acting if not ended[agent]]
        return shown, rewards, ended, dict.fromkeys(acting, False), {agent: {} for agent in acting}

    def _shown(self) -> dict[str, str]:
        return {
            agent: self.WORDS[(self.turn + self.offset + agent.startswith("b")) % len(self.WORDS)]
            for agent in self.agents
        }


class Pension(EchoGame):
    """Bob leaves after the first turn, and is given 5 when the game ends for ann."""

    def step(self, actions: dict[str, str]) -> Any:
        acting = {a: "quit" if a == "bob" else said for a, said in actions.items()}
        shown, rewards, *rest = super().step(acting)
        return shown, rewards if self.agents else {**rewards, "bob": 5.0}, *rest


class TakingTurns(EchoGame):
    """The same, but only one agent moves at a time; the other one waits."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        shown, _ = super().reset(seed, options)
        return shown, self._waiting()

    def step(self, actions: dict[str, str]) -> Any:
        *rest, _ = super().step(actions)
        return (*rest, self._waiting())

    def _waiting(self) -> dict[str, dict[str, Any]]:
        mover = self.possible_agents[self.turn % 2]
        return {agent: {"waits": agent != mover} for agent in self.possible_agents}
