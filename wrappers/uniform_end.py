"""Agents that end before the others stay until all have ended."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.waiting import WAITS
from marlogue.wrappers.view import View, require_all

ENDS = ("terminated", "truncated")


class UniformEnd(View):
    """A team that begins together and ends together, in one way.

    An agent that has ended stays live until the others have ended: it is shown its last observation
    again, what it does is ignored, its reward is 0.0 (unless the environment still gives it one),
    and `infos[agent]["waits"]` is True. When the last agent has ended, all end alike.

    Args:
        env: the environment, all of whose agents are there at reset.
        end: how all end: `"terminated"`, `"truncated"`, or None: terminated if any of them was,
            else truncated.

    Raises:
        TypeError: when `env` is not a PettingZoo `ParallelEnv`.
        ValueError: when `end` is something else; at reset, when agents are missing; in a step,
            when an agent vanishes without having ended, lives on without an observation, or gets
            no reward for its turn.
    """

    agents: list[str]

    def __init__(self, env: ParallelEnv, *, end: str | None = None) -> None:
        super().__init__(env)
        if end is not None and end not in ENDS:
            raise ValueError(f"end ({end!r}) must be None, 'terminated' or 'truncated'")
        self.end = end
        self.agents = []
        self._last: dict[str, Any] = {}
        self._ended: dict[str, bool] = {}  # agent to whether it was terminated

    @override
    def begin(self) -> None:
        self.agents, self._ended = [], {}

    @override
    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        shown, infos = super().reset(seed, options)
        require_all(self.env, shown, "UniformEnd")
        self.agents = list(self.possible_agents)
        self._last = {agent: shown[agent] for agent in self.agents}
        return shown, infos

    @override
    def step(self, actions: Mapping[str, Any]) -> StepResult:
        self.check_actions(actions)
        running = {agent: actions[agent] for agent in self.agents if agent not in self._ended}
        result = self.step_inside(running)
        for agent in running:
            self._follow(agent, result)
        return self._together(result)

    @override
    def check_action(self, agent: str, action: Any) -> None:
        if agent not in self._ended:
            super().check_action(agent, action)

    def _follow(self, agent: str, result: StepResult) -> None:
        """Note what an agent that acted was shown, and whether it has ended."""
        terminated = bool(result.terminations.get(agent, False))
        if terminated or result.truncations.get(agent, False):
            self._ended[agent] = terminated
        elif agent not in self.env.agents or agent not in result.observations:
            raise ValueError(
                f"{self.env} lets {agent} vanish, or live on without an observation; it must "
                "terminate or truncate an agent in its last turn, and show it something until then"
            )
        if agent not in result.rewards:
            raise ValueError(f"{self.env} must give {agent} a reward for its turn, be it 0.0")
        if agent in result.observations:
            self._last[agent] = result.observations[agent]

    def _together(self, result: StepResult) -> StepResult:
        """The result of a step as that of a team of constant size."""
        agents = self.agents
        over = len(self._ended) == len(agents)
        terminated = self.end == "terminated" or (self.end is None and any(self._ended.values()))
        infos = {key: dict(info) for key, info in result.infos.items()}
        for agent in agents:
            info = infos.setdefault(agent, {})
            if agent in self._ended and not over:
                info[WAITS] = True
        if over:
            self.agents = []
        return StepResult(
            observations={agent: copy.deepcopy(self._last[agent]) for agent in agents},
            rewards={agent: result.rewards.get(agent, 0.0) for agent in agents},
            terminations=dict.fromkeys(agents, over and terminated),
            truncations=dict.fromkeys(agents, over and not terminated),
            infos=infos,
        )
