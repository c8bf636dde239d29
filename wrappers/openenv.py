"""Text environments behind OpenEnv: a team, its texts and its rewards, over the network.

`application` makes the FastAPI application that a server runs (uvicorn, a container, a Space), and
`TeamClient` steps it from anywhere. Every session (one connection of a client) has an episode of
its own. OpenEnv 0.3 makes a new environment for each plain POST to `/reset` or `/step`, so that
episodes of more than one call need the client.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from pydantic import Field

from marlogue.envs.actions import check_agents
from marlogue.envs.copies import Copies
from marlogue.envs.optional import require
from marlogue.envs.reward_values import as_finite
from marlogue.envs.task import whole_number
from marlogue.envs.waiting import waits
from marlogue.wrappers.json_infos import json_infos
from marlogue.wrappers.seats import idle_action
from marlogue.wrappers.single_agent import check_action
from marlogue.wrappers.view import parallel, require_texts

with require("openenv", extra="openenv"):
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server import Action, Environment, Observation, State, create_app
    from openenv.core.env_server.types import EnvironmentMetadata

logger = logging.getLogger(__name__)

Options = dict[str, Any] | None
Plan = Callable[[int | None, Options], tuple[int | None, Options]]


class TeamAction(Action):  # type: ignore[misc]
    """What the team says this turn.

    Fields:
        texts: agent to text, for each live agent; agents that wait may be left out.
    """

    texts: dict[str, str]


class TeamObservation(Observation):  # type: ignore[misc]
    """What the team is shown, and what each agent earned.

    `reward` is the mean over all agents, those that have left included, for clients that read one
    number: over an episode its sum is the mean of the agents' returns. `done` says that no agent is
    live any more.

    Fields:
        prompts: agent to prompt.
        rewards: agent to the reward of this turn; empty after a reset.
        agents: the live agents.
        waiting: those of them whose turn it is not; what they say is ignored.
        terminated, truncated: agents whose episode ended with this turn, by the way it ended.
        infos: agent to info, with arrays as lists.
    """

    prompts: dict[str, str] = Field(default_factory=dict)
    rewards: dict[str, float] = Field(default_factory=dict)
    agents: list[str] = Field(default_factory=list)
    waiting: list[str] = Field(default_factory=list)
    terminated: list[str] = Field(default_factory=list)
    truncated: list[str] = Field(default_factory=list)
    infos: dict[str, dict[str, Any]] = Field(default_factory=dict)


class TeamState(State):  # type: ignore[misc]
    """Where the episode stands; `step_count` counts its turns.

    Fields:
        agents: the live agents.
        returns: agent to the sum of its rewards so far.
        joint: the environment's `state()` where that is a text; None before the first reset and
            for environments without one.
    """

    agents: list[str] = Field(default_factory=list)
    returns: dict[str, float] = Field(default_factory=dict)
    joint: str | None = None


class TeamEnvironment(Environment):  # type: ignore[misc]
    """A text environment as an OpenEnv `Environment`.

    Args:
        env: the environment; this object resets and steps it.
        plan: says how the next episode begins: seed and options of a reset to those that the
            environment is reset with. None: as they are.

    Raises:
        TypeError: when it is no text environment.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: ParallelEnv, plan: Plan | None = None) -> None:
        require_texts(parallel(env), "OpenEnv", observations=True, actions=True)
        super().__init__()
        self.env = env
        self._plan = plan
        self._state = TeamState()
        self._infos: Mapping[str, Any] = {}
        self._begun = False

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> TeamObservation:
        """Begin an episode.

        Args:
            seed, options: as the environment takes them; `{"row": 3}` plays row 3 of a `TextEnv`.
            episode_id: a name for the state.
        """
        if self._plan is not None:
            seed, options = self._plan(seed, options)
        shown, infos = self._noticed(self.env.reset, seed=seed, options=options)
        self._begun = True
        returns = dict.fromkeys(self.env.possible_agents, 0.0)
        self._state = TeamState(episode_id=episode_id, returns=returns)
        return self._observation(shown, infos)

    def step(self, action: TeamAction, timeout_s: float | None = None, **_: Any) -> TeamObservation:
        """Play a turn.

        Raises:
            RuntimeError: when no episode is running.
            ValueError: when agents are missing or unknown, a text is outside its space (too long,
                say), or a reward is NaN or infinite.
        """
        if not self._begun or not self.env.agents:
            raise RuntimeError(
                "step was called without a running episode; call reset first, through one client "
                "(a POST to /step has an environment of its own)"
            )
        texts = dict(action.texts)
        for agent in self.env.agents:
            info = self._infos.get(agent, {})
            if waits(info):
                texts.setdefault(agent, idle_action(self.env.action_space(agent), info))
        check_agents(texts, self.env.agents)
        for agent, text in texts.items():
            check_action(agent, self.env.action_space(agent), text)
        shown, rewards, terminations, truncations, infos = self._noticed(self.env.step, texts)
        self._state.step_count += 1
        earned = {
            agent: as_finite(reward, f"the reward is {reward!r}", f"{agent} in {self.env}")
            for agent, reward in rewards.items()
        }
        for agent, reward in earned.items():
            self._state.returns[agent] += reward
        observation = self._observation(shown, infos)
        observation.rewards = earned
        observation.reward = sum(earned.values()) / len(self._state.returns)
        observation.terminated = [agent for agent, flag in terminations.items() if flag]
        observation.truncated = [agent for agent, flag in truncations.items() if flag]
        return observation

    @property
    def state(self) -> TeamState:
        """Where the episode stands."""
        joint = None
        if self._begun:
            try:
                joint = self.env.state()
            except NotImplementedError:  # PettingZoo's way to say that there is none
                joint = None
        return self._state.model_copy(
            update={
                "agents": list(self.env.agents) if self._begun else [],
                "returns": dict(self._state.returns),
                "joint": joint if isinstance(joint, str) else None,
            }
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and agents of the environment."""
        name = str(getattr(self.env, "metadata", {}).get("name", self.env))
        agents = ", ".join(self.env.possible_agents)
        return EnvironmentMetadata(
            name=name, description=f"{name}: a text environment of {agents}", version="0"
        )

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _observation(
        self, shown: Mapping[str, str], infos: Mapping[str, Mapping[str, Any]]
    ) -> TeamObservation:
        self._infos = infos
        live = list(self.env.agents)
        return TeamObservation(
            done=not live,
            prompts=dict(shown),
            agents=live,
            waiting=[agent for agent in live if waits(infos.get(agent, {}))],
            infos={str(a): json_infos(info, f"infos[{a!r}]") for a, info in infos.items()},
        )

    def _noticed(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception:
            # The server passes the message on to the client, and drops the rest.
            logger.exception("%s of %s failed", call.__name__, self.env)
            raise


class TeamClient(EnvClient[TeamAction, TeamObservation, TeamState]):  # type: ignore[misc]
    """The client of a served team: `reset`, `step` and `state`, all `async`; see `sync`.

    `reset` takes `seed`, `episode_id` and `options`, `step` a `TeamAction`. Both return a
    `StepResult` with the `TeamObservation`, its `reward` and `done`.
    """

    def _step_payload(self, action: TeamAction) -> dict[str, Any]:
        return dict(action.model_dump())

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[TeamObservation]:
        reward, done = payload.get("reward"), bool(payload.get("done", False))
        shown = TeamObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=shown, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> TeamState:
        return TeamState(**payload)


def application(env: ParallelEnv, *, max_sessions: int = 64) -> Any:
    """The FastAPI application that serves an environment to `TeamClient`s.

    Each session plays a copy of its own. Unseeded resets of all sessions together take the rows of
    a `TextEnv` one after the other, as those of one environment would; a seeded reset, or one with
    a row in its options, begins the same episode whatever the others do.

    Args:
        env: a text environment. It is copied, not touched.
        max_sessions: the most sessions at a time.

    Raises:
        TypeError: when it is no text environment.
        ValueError: when there can be no session.
    """
    require_texts(parallel(env), "OpenEnv", observations=True, actions=True)
    sessions = whole_number("max_sessions", max_sessions, 1)
    original = copy.deepcopy(env)
    rows = Copies(original)
    lock = threading.Lock()  # each session runs in a thread of its own

    def plan(seed: int | None, options: Options) -> tuple[int | None, Options]:
        if seed is not None:
            return seed, options
        with lock:
            return rows.plan(None, options)

    def session() -> TeamEnvironment:
        with lock:
            return TeamEnvironment(copy.deepcopy(original), plan)

    return create_app(session, TeamAction, TeamObservation, max_concurrent_envs=sessions)
