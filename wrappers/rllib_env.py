"""A parallel environment as RLlib's multi-agent environment (new API stack)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space, Text
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.episodes import COMMON
from marlogue.envs.waiting import waits
from marlogue.wrappers.optional import require
from marlogue.wrappers.view import ACTION_MASK

with require("ray.rllib", extra="rllib"):
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

ALL = "__all__"

VIEWS = (
    "as in EmbedObservations(CandidateActions(env, [...]), HashedNgrams(256)), or by tokens, as in "
    "TokenObservations(TokenActions(env, ...)); see docs/plugging_in.md"
)


class MultiAgentView(MultiAgentEnv):  # type: ignore[misc]
    """A parallel environment as a `MultiAgentEnv`.

    What RLlib's own `ParallelPettingZooEnv` does otherwise:

    - An agent that waits (`marlogue.envs.WAITS`) is shown nothing, so that RLlib takes no sample of
      it and adds its rewards to its next one.
    - A team of which some end terminated and others truncated in one step is terminated, where
      RLlib would wait for ever; a team that is truncated is not terminated as well, so that
      values are bootstrapped.
    - Infos have no keys but those of agents that have not ended, and `__common__`.

    Args:
        env: the environment.
        texts: whether observations may be texts, because the configuration has an `EmbedTexts`.
        plan: makes the seed and options of a reset out of those given; see `Share.plan`.

    Raises:
        TypeError: when observations or actions are texts; names the views that help.
    """

    def __init__(
        self,
        env: ParallelEnv,
        *,
        texts: bool = False,
        plan: Callable[..., tuple[int | None, Any]] | None = None,
    ) -> None:
        check_spaces(env, texts)
        self.env = env
        self.plan = plan
        self.metadata = dict(env.metadata)
        self.render_mode = getattr(env, "render_mode", None)
        self.agents = list(env.possible_agents)
        self.possible_agents = list(env.possible_agents)
        self.observation_spaces = {a: env.observation_space(a) for a in self.possible_agents}
        self.action_spaces = {a: env.action_space(a) for a in self.possible_agents}
        self.observation_space = Dict(self.observation_spaces)
        self.action_space = Dict(self.action_spaces)
        self._idle: dict[str, Any] = {}
        self._met: set[str] = set()
        self._ended: set[str] = set()
        self._late: dict[str, tuple[Any, bool, bool]] = {}
        super().__init__()

    @override
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.plan is not None:
            seed, options = self.plan(seed, options)
        shown, infos = self.env.reset(seed=seed, options=options)
        self._met, self._ended, self._late = set(), set(), {}
        return self._awake(shown, infos), _known(infos, self.env.agents)

    @override
    def step(self, action_dict: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        acting = list(self.env.agents)
        shown, rewards, terminations, truncations, infos = self.env.step(
            {**self._idle, **action_dict}
        )
        over = not self.env.agents
        # RLlib holds an episode for terminated as soon as every agent has a flag of its own.
        terminated = {agent: bool(flag) and not over for agent, flag in terminations.items()}
        truncated = {agent: bool(flag) and not over for agent, flag in truncations.items()}
        met = set(self._met)
        shown = self._awake(shown, infos)
        self._hold(met, shown, terminated, truncated)
        terminated[ALL] = over and any(terminations.values())
        truncated[ALL] = over and not terminated[ALL]
        return shown, dict(rewards), terminated, truncated, _known(infos, acting)

    @override
    def render(self) -> Any:
        return self.env.render()

    @override
    def close(self) -> None:
        self.env.close()

    def _awake(self, shown: Mapping[str, Any], infos: Mapping[str, Any]) -> dict[str, Any]:
        """The observations of those who act next, and of those who have ended."""
        live = [agent for agent in self.env.agents if agent in shown]
        waiting = {agent for agent in live if waits(infos.get(agent, {}))}
        if len(waiting) == len(live):  # RLlib needs somebody to act
            waiting = set()
        self._idle = {a: _idle(self.action_spaces[a], infos.get(a, {})) for a in waiting}
        awake = {agent: seen for agent, seen in shown.items() if agent not in waiting}
        self._met.update(awake)
        return awake

    def _hold(
        self,
        met: set[str],
        shown: dict[str, Any],
        terminated: dict[str, bool],
        truncated: dict[str, bool],
    ) -> None:
        """Tell RLlib a step later that an agent has ended, if it would end the whole episode.

        It does so when all agents that it was shown before have ended, though others, who waited
        so far, go on.
        """
        over = not self.env.agents
        for agent, (observation, was_terminated, was_truncated) in self._late.items():
            shown[agent] = observation
            terminated[agent] = was_terminated and not over
            truncated[agent] = was_truncated and not over
        self._late = {}
        ending = {agent for agent in terminated if terminated[agent] or truncated[agent]}
        if ending and self._ended | ending >= met:
            for agent in ending:
                self._late[agent] = shown.pop(agent), terminated.pop(agent), truncated.pop(agent)
        self._ended |= ending


def check_spaces(env: ParallelEnv, texts: bool = False) -> None:
    """Refuse spaces that RLlib has no network for.

    Args:
        env: the environment.
        texts: whether observations may be texts.

    Raises:
        TypeError: names agent, space and the views that help.
    """
    for agent in env.possible_agents:
        seen, done = env.observation_space(agent), env.action_space(agent)
        if _has_text(done):
            raise TypeError(
                f"RLlib has no network that writes texts, and the action space of {agent} is "
                f"{done}; make it Discrete or MultiDiscrete, {VIEWS}"
            )
        if _has_text(seen) and not texts:
            raise TypeError(
                f"RLlib has no network that reads texts, and the observation space of {agent} is "
                f"{seen}; pass embed=HashedNgrams(256), or make it a Box, {VIEWS}"
            )


def _has_text(space: Space[Any]) -> bool:
    if isinstance(space, Dict):
        return any(_has_text(inner) for inner in space.values())
    return isinstance(space, Text)


def _known(infos: Mapping[str, Any], agents: Sequence[str]) -> dict[str, Any]:
    """The infos that RLlib takes: of agents that have not ended before, and of the team."""
    return {key: info for key, info in infos.items() if key in agents or key == COMMON}


def _idle(space: Space[Any], info: Mapping[str, Any]) -> Any:
    """Some allowed action for an agent that waits, and whose action is ignored."""
    if ACTION_MASK in info:
        return int(np.argmax(info[ACTION_MASK]))
    return int(space.start) if isinstance(space, Discrete) else space.sample()
