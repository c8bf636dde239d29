"""What all views of a text environment have in common."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from gymnasium.spaces import Box, Space, Text
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from pettingzoo.utils import BaseParallelWrapper  # type: ignore[import-untyped]

from marlogue.envs.actions import check_agents
from marlogue.envs.callbacks import shortened
from marlogue.envs.declared_spaces import DeclaredSpaces
from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.reward_values import as_finite

ACTION_MASK = "action_mask"
"""The key in an agent's info of an int8 array [K] with 1 for the actions that are allowed now."""


def parallel(env: Any) -> ParallelEnv:
    """The environment itself, if it is a parallel one.

    Raises:
        TypeError: when it is not.
    """
    if not isinstance(env, ParallelEnv):
        raise TypeError(
            f"env ({env!r}) must be a PettingZoo ParallelEnv; convert an AEC environment with "
            "pettingzoo.utils.aec_to_parallel"
        )
    return env


def require_all(env: ParallelEnv, shown: Mapping[str, Any], target: str) -> None:
    """Refuse an episode that an agent is missing from at reset.

    Args:
        env: the environment, which was just reset.
        shown: the observations that its reset returned.
        target: what needs all agents, for the message.

    Raises:
        ValueError: names the agents that are missing.
    """
    agents = list(env.possible_agents)
    absent = [agent for agent in agents if agent not in env.agents or agent not in shown]
    if absent:
        raise ValueError(
            f"{target} needs all of possible_agents ({', '.join(agents)}) at reset; "
            f"{', '.join(absent)} is missing in {env}. Name in possible_agents only those who "
            "begin every episode"
        )


class View(DeclaredSpaces, BaseParallelWrapper):  # type: ignore[misc]
    """A parallel environment seen through other spaces.

    A view changes observations in `observe`, actions in `act`, and declares the spaces that go with
    that by `observation_spaces` and `action_spaces`. Seeds, options, agents and everything else
    are those of the environment inside. Views go around each other; see docs/plugging_in.md for
    the order.

    What the innermost environment shows, and what it is given, is checked against its own
    spaces, and its rewards must be finite numbers; what a policy does, against the view's.

    Args:
        env: the environment to look at.

    Attributes:
        observation_spaces, action_spaces: agent to space.

    Raises:
        TypeError: when `env` is not a PettingZoo `ParallelEnv`.
    """

    shared: ClassVar[tuple[str, ...]] = ()
    """Attributes that a deep copy shares with its original (models, callables of the user); those
    of base classes are shared, too."""

    def __init__(self, env: ParallelEnv) -> None:
        super().__init__(parallel(env))
        agents = list(env.possible_agents)
        self.observation_spaces: dict[str, Space[Any]] = {
            agent: env.observation_space(agent) for agent in agents
        }
        self.action_spaces: dict[str, Space[Any]] = {
            agent: env.action_space(agent) for agent in agents
        }

    def observe(self, agent: str, observation: Any, info: dict[str, Any]) -> Any:
        """What the agent is shown in place of `observation`.

        Args:
            agent: its name; it is in `self.agents` unless the episode has ended for it.
            observation: as the environment inside showed it.
            info: the agent's info, in a dict that may be changed here.
        """
        return observation

    def act(self, agent: str, action: Any) -> Any:
        """What the environment inside is given in place of `action`, which is in the space."""
        return action

    def begin(self) -> None:
        """Forget the last episode; called by `reset` before anything is observed."""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Start an episode; see the environment inside for seed and options."""
        shown, infos = self.env.reset(seed=seed, options=options)
        self.begin()
        return self._show(shown, infos)

    def step(self, actions: Mapping[str, Any]) -> StepResult:
        """Play one turn.

        Raises:
            RuntimeError: when no episode is running.
            ValueError: when agents are missing or unknown, or an action is outside its space. The
                environment is then as it was before.
        """
        self.check_actions(actions)
        inner = {agent: self.act(agent, action) for agent, action in actions.items()}
        return self.step_inside(inner)

    def step_inside(self, actions: Mapping[str, Any]) -> StepResult:
        """Step the environment inside with its own kind of actions, and show the result."""
        for agent, action in actions.items():
            self._check_given(agent, action)
        shown, rewards, terminations, truncations, infos = self.env.step(actions)
        if not isinstance(self.env, View):
            rewards = {
                agent: as_finite(reward, f"the environment gave the reward {reward!r}", agent)
                for agent, reward in rewards.items()
            }
        shown, infos = self._show(shown, infos)
        return StepResult(shown, dict(rewards), dict(terminations), dict(truncations), infos)

    def check_actions(self, actions: Mapping[str, Any]) -> None:
        """Refuse a step before reset or after the end, and actions outside their spaces."""
        if not getattr(self, "agents", None):  # which some environments lack before reset
            raise RuntimeError("step was called without a running episode; call reset first")
        check_agents(actions, self.agents)
        for agent, action in actions.items():
            self.check_action(agent, action)

    def check_action(self, agent: str, action: Any) -> None:
        """Refuse an action outside the agent's space."""
        if not self.action_space(agent).contains(action):
            raise ValueError(
                f"the action of {agent} ({shortened(action)}) must be in its action space, "
                f"{self.action_space(agent)}"
            )

    def _show(
        self, shown: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Infos]:
        fresh = {key: dict(info) for key, info in infos.items()}
        seen = {}
        for agent, observation in shown.items():
            self._check_shown(agent, observation)
            seen[agent] = self.observe(agent, observation, fresh.setdefault(agent, {}))
        return seen, fresh

    def _check_shown(self, agent: str, observation: Any) -> None:
        space = self.env.observation_space(agent)
        if not isinstance(self.env, View) and not space.contains(observation):
            raise ValueError(
                f"the observation of {agent} ({shortened(observation)}) is not in the observation "
                f"space ({space}) that {self.env} declares; mend the environment's space "
                "(marlogue.envs.UnicodeText contains any text)"
            )

    def _check_given(self, agent: str, action: Any) -> None:
        space = self.env.action_space(agent)
        if not isinstance(self.env, View) and not space.contains(action):
            raise ValueError(
                f"{type(self).__name__} makes {shortened(action)} of the action of {agent}, which "
                f"is not in the action space ({space}) that {self.env} declares; mend one or the "
                "other (marlogue.envs.UnicodeText contains any text)"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> View:
        twin = copy.copy(self)
        memo[id(self)] = twin
        shared = {name for kind in type(self).__mro__ for name in kind.__dict__.get("shared", ())}
        for name, value in self.__dict__.items():
            if name not in shared:
                setattr(twin, name, copy.deepcopy(value, memo))
        return twin

    def __str__(self) -> str:
        return f"{type(self).__name__}<{self.env}>"


def holds_texts(space: Space[Any]) -> bool:
    """Whether it is a space of texts, gymnasium's own or another one."""
    # A Box warns when it is asked about a text.
    return isinstance(space, Text) or (not isinstance(space, Box) and space.contains("text"))


def require_texts(env: ParallelEnv, view: str, *, observations: bool, actions: bool) -> None:
    """Refuse an environment that does not speak in texts, where a view needs them.

    Args:
        env: the environment inside.
        view: the view's name, for the message.
        observations: whether observations must be texts.
        actions: whether actions must be texts.

    Raises:
        TypeError: names agent and space.
    """
    for needed, kind in ((observations, "observation"), (actions, "action")):
        for agent in env.possible_agents if needed else ():
            space = getattr(env, f"{kind}_space")(agent)
            if not holds_texts(space):
                raise TypeError(
                    f"{view} needs an environment whose {kind}s are texts; the {kind} space of "
                    f"{agent} is {space}. Put {view} nearer to the text environment than the view "
                    "that changes its texts"
                )


def alike(env: ParallelEnv, target: str) -> tuple[Space[Any], Space[Any]]:
    """The observation and action space that all agents share.

    Args:
        env: the environment.
        target: what needs them alike, for the message.

    Raises:
        ValueError: when agents differ; names them and their spaces.
    """
    shared = []
    for kind in ("observation_space", "action_space"):
        spaces = {agent: getattr(env, kind)(agent) for agent in env.possible_agents}
        first = next(iter(spaces))
        for agent, space in spaces.items():
            if space != spaces[first]:
                raise ValueError(
                    f"{target} needs agents with one {kind}; that of {first} is {spaces[first]}, "
                    f"that of {agent} is {space}. Give the views one length or number of "
                    "candidates for all agents"
                )
        shared.append(spaces[first])
    return shared[0], shared[1]
