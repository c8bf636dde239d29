"""A parallel environment as RLlib's multi-agent environment (new API stack)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gymnasium.spaces import Dict
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.episodes import COMMON, StepResult
from marlogue.envs.optional import require
from marlogue.envs.waiting import WAITS, waits
from marlogue.wrappers.numeric_spaces import is_numeric
from marlogue.wrappers.seats import idle_action

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
      it and adds its rewards to its next one. While all agents wait the episode goes on without
      RLlib. An agent that waits from the beginning to the end has no episode in RLlib, so its
      rewards are not in `episode_return_mean`.
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
        ValueError: in a reset, when an episode ends before any agent had to act; in a step, when an
            agent that has ended is given a reward.
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
        self._owed: dict[str, float] = {}  # earned before anybody had to act
        super().__init__()

    @override
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.plan is not None:
            seed, options = self.plan(seed, options)
        shown, infos = self.env.reset(seed=seed, options=options)
        self._met, self._ended, self._late, self._owed = set(), set(), {}, {}
        self._rest(shown, infos)
        if self._nobody_acts():
            began = self._play(self._idle)
            shown = {agent: began.observations[agent] for agent in self.env.agents}
            infos, self._owed = began.infos, {agent: began.rewards[agent] for agent in shown}
            if not shown:
                raise ValueError(
                    f"an episode of {self.env} ended before any agent had to act, of which RLlib "
                    f"can make nothing; infos must let one agent not wait ({WAITS!r})"
                )
        return self._awake(shown), _known(infos, self.env.agents)

    @override
    def step(self, action_dict: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        shown, rewards, terminations, truncations, infos = self._play({**self._idle, **action_dict})
        over = not self.env.agents
        # RLlib holds an episode for terminated as soon as every agent has a flag of its own.
        terminated = {agent: bool(flag) and not over for agent, flag in terminations.items()}
        truncated = {agent: bool(flag) and not over for agent, flag in truncations.items()}
        met = set(self._met)
        shown = self._awake(shown)
        self._hold(met, shown, terminated, truncated)
        terminated[ALL] = over and any(terminations.values())
        truncated[ALL] = over and not terminated[ALL]
        return shown, rewards, terminated, truncated, infos

    @override
    def render(self) -> Any:
        return self.env.render()

    @override
    def close(self) -> None:
        self.env.close()

    def _play(self, actions: Mapping[str, Any]) -> StepResult:
        """Step until somebody has to act, or the episode is over, and add up what happens."""
        total = StepResult({}, self._owed, {}, {}, {})
        self._owed = {}
        while True:
            before = set(self.env.agents)
            result = StepResult(*self.env.step(actions))
            present = before.union(self.env.agents)
            self._check_leavers(result.rewards, present)
            for agent in present.intersection(result.rewards):
                total.rewards[agent] = total.rewards.get(agent, 0.0) + result.rewards[agent]
            for field in ("observations", "terminations", "truncations"):
                new = getattr(result, field)
                getattr(total, field).update({a: new[a] for a in present.intersection(new)})
            total.infos.update(_known(result.infos, present))
            self._rest(total.observations, total.infos)
            if not self._nobody_acts():
                return total
            actions = self._idle

    def _check_leavers(self, rewards: Mapping[str, Any], present: set[str]) -> None:
        for agent, reward in rewards.items():
            if agent not in present and reward:
                raise ValueError(
                    f"{self.env} gave {agent} the reward {reward!r} after it had ended, which "
                    "RLlib cannot add to an episode that is over for the agent; put UniformEnd "
                    "around the text environment, inside of the other views"
                )

    def _rest(self, shown: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        """Choose what those do who wait, among the agents that go on."""
        self._idle = {
            agent: idle_action(self.action_spaces[agent], infos.get(agent, {}))
            for agent in self.env.agents
            if agent in shown and waits(infos.get(agent, {}))
        }

    def _nobody_acts(self) -> bool:
        return bool(self.env.agents) and set(self._idle) == set(self.env.agents)

    def _awake(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        """The observations of those who act next, and of those who have ended."""
        awake = {agent: seen for agent, seen in shown.items() if agent not in self._idle}
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
            if observation is not None:
                shown[agent] = observation
            terminated[agent] = was_terminated and not over
            truncated[agent] = was_truncated and not over
        self._late = {}
        ending = {agent for agent in terminated if terminated[agent] or truncated[agent]}
        if ending and self._ended | ending >= met:
            for agent in ending:
                flags = terminated.pop(agent), truncated.pop(agent)
                self._late[agent] = shown.pop(agent, None), *flags
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
        if not is_numeric(done):
            raise TypeError(
                f"RLlib has no network that writes texts, and the action space of {agent} is "
                f"{done}; make it Discrete or MultiDiscrete, {VIEWS}"
            )
        if not (texts or is_numeric(seen)):
            raise TypeError(
                f"RLlib has no network that reads texts, and the observation space of {agent} is "
                f"{seen}; pass embed=HashedNgrams(256), or make it a Box, {VIEWS}"
            )


def _known(infos: Mapping[str, Any], agents: Collection[str]) -> dict[str, Any]:
    """The infos that RLlib takes: of agents that have not ended before, and of the team."""
    return {key: info for key, info in infos.items() if key in agents or key == COMMON}
