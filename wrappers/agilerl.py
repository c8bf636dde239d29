"""AgileRL trains on text environments: many agents in parallel, or one language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.optional import require
from marlogue.envs.task import flag, whole_number
from marlogue.wrappers.shares import Share
from marlogue.wrappers.view import ACTION_MASK

with require("agilerl", extra="agilerl"):
    from agilerl.algorithms import IPPO
    from agilerl.vector import AsyncPettingZooVecEnv

KINDS = (Box, Discrete, MultiDiscrete, MultiBinary)
"""The spaces that AgileRL has networks for, alone or put together by `Dict` or `Tuple`."""

Env: TypeAlias = ParallelEnv | Callable[[], ParallelEnv]


def vector_env(
    env: Env,
    num_envs: int = 1,
    *,
    groups: bool = False,
    masks: bool = False,
    context: str | None = None,
) -> AsyncPettingZooVecEnv:
    """Copies of an environment, each in a process of its own, as AgileRL trains on them.

    Around a `TextEnv` the copies divide the rows among them, so that together they play each row
    once per epoch.

    AgileRL's training loops hold a truncated episode for a terminated one: they put both flags
    into one `done`, so that the value of its last observation is not bootstrapped.

    Args:
        env: the parallel environment, of which deep copies are made, or a function that makes it.
        num_envs: number of copies.
        groups: whether agents that share the beginning of their name up to the last `_`, as
            `agent_0` and `agent_1`, form a group with one network. AgileRL goes by names: without
            groups such agents are renamed, to `agent-0` and `agent-1`. With them train by
            `GroupIPPO`: `IPPO` (of AgileRL 2.58) mixes up the samples of a group, and does not
            learn.
        masks: whether infos carry the action masks. MADDPG and MATD3 choose by them; IPPO fails on
            them, and would learn without them. Leave them out there, and set
            `CandidateActions(fill=...)` where there are not always as many candidates.
        context: how processes are started: "fork", "spawn" or "forkserver"; None for Python's
            default.

    Raises:
        TypeError: when a space is not one of numbers, or a mask is in the observations; names the
            agent and the view that helps. When `masks` is no bool.
        ValueError: when `masks` is True, and infos after a first reset have none; in a step, when
            an agent ends before the others.
    """
    num_envs = whole_number("num_envs", num_envs)
    first = Share(env).make()
    check_spaces(first)
    if flag("masks", masks):
        _check_masks(first)
    names = {a: a for a in first.possible_agents} if groups else apart(first.possible_agents)
    makers = [partial(_make, env, index, num_envs, names, masks) for index in range(num_envs)]
    return AsyncPettingZooVecEnv(makers, context=context)


def apart(agents: list[str]) -> dict[str, str]:
    """Names by which AgileRL makes no group out of several agents: agent to new name."""
    groups = Counter(agent.rsplit("_", 1)[0] for agent in agents)
    if max(groups.values(), default=0) < 2:
        return {agent: agent for agent in agents}
    renamed = {agent: agent.replace("_", "-") for agent in agents}
    if len(set(renamed.values())) < len(agents):
        raise ValueError(
            f"agents ({', '.join(agents)}) must have names that differ in more than '_' and '-'; "
            "rename them, or set groups=True"
        )
    return renamed


def check_spaces(env: ParallelEnv) -> None:
    """Refuse spaces on which AgileRL fails, most of them with a bare `AssertionError`.

    Args:
        env: the environment.

    Raises:
        TypeError: names agent, space and the view that helps.
    """
    for agent in env.possible_agents:
        seen, done = env.observation_space(agent), env.action_space(agent)
        if not isinstance(done, KINDS):
            raise TypeError(
                f"AgileRL needs actions that are numbers, and the action space of {agent} is "
                f"{done}; put CandidateActions (Discrete) or TokenActions (MultiDiscrete) around "
                "the environment"
            )
        if isinstance(done, MultiDiscrete) and done.shape == (1,):
            raise TypeError(
                f"AgileRL's IPPO fails on arrays of one number, and the action space of {agent} is "
                f"{done}; set TokenActions(length=2) or more, or use CandidateActions"
            )
        if isinstance(seen, Dict) and ACTION_MASK in seen.spaces:
            raise TypeError(
                f"AgileRL reads masks in infos, and the observation space of {agent} is {seen}; "
                "leave ActionMask out, infos have the mask already"
            )
        if not all(isinstance(part, KINDS) for part in _parts(seen)):
            raise TypeError(
                f"AgileRL needs observations that are numbers, and the observation space of "
                f"{agent} is {seen}; put EmbedObservations (floats) or TokenObservations (token "
                "ids) around the environment"
            )


class GroupIPPO(IPPO):  # type: ignore[misc]
    """AgileRL's IPPO, with the samples of agents that share a network in the right order.

    `IPPO` (of AgileRL 2.58) lists observations and actions of a group agent by agent, but
    advantages and log-probabilities step by step. Here a group is one agent in as many more
    environments, so that the order is the same. Arguments are those of `IPPO`.
    """

    @override
    def assemble_shared_inputs(self, experience: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Samples by group; lists over time become [T, agents * N, ...], others [agents * N]."""
        axis = 1 if any(isinstance(held, list) for held in experience.values()) else 0
        grouped = super().assemble_shared_inputs(experience)
        return {
            group: {group: _joined(list(held.values()), axis)} if held else held
            for group, held in grouped.items()
        }


class _Worker(ParallelEnv):  # type: ignore[misc]
    """What runs in a process: a share of the episodes, with names and values as AgileRL's are."""

    def __init__(self, share: Share, names: Mapping[str, str], masks: bool) -> None:
        self.env = share.make()
        self.plan = share.plan
        self.names = dict(names)
        self.inner = {name: agent for agent, name in names.items()}
        self.masks = masks
        self.metadata = self.env.metadata
        self.render_mode = getattr(self.env, "render_mode", None)
        self.possible_agents = list(self.inner)
        self.agents: list[str] = []

    @override
    def observation_space(self, agent: str) -> Space[Any]:
        return self.env.observation_space(self.inner[agent])

    @override
    def action_space(self, agent: str) -> Space[Any]:
        return self.env.action_space(self.inner[agent])

    @override
    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        seed, options = self.plan(seed, options)
        shown, infos = self.env.reset(seed=seed, options=options)
        self.agents = [self.names[agent] for agent in self.env.agents]
        return self._named(shown), self._masks(infos, shown)

    @override
    def step(self, actions: Mapping[str, Any]) -> StepResult:
        inner = {self.inner[name]: action for name, action in actions.items()}
        shown, rewards, terminations, truncations, infos = self.env.step(
            {agent: _fit(self.env.action_space(agent), action) for agent, action in inner.items()}
        )
        self.agents = [self.names[agent] for agent in self.env.agents]
        gone = [name for name in self.possible_agents if name not in self.agents]
        if self.agents and gone:
            raise ValueError(
                f"{', '.join(gone)} ended before the others, and AgileRL would learn from "
                "undefined observations; put UniformEnd around the text environment, inside of "
                "the other views"
            )
        return StepResult(
            self._named(shown),
            self._named(rewards),
            self._named(terminations),
            self._named(truncations),
            self._masks(infos, shown),
        )

    @override
    def render(self) -> Any:
        return self.env.render()

    @override
    def close(self) -> None:
        self.env.close()

    def _named(self, by_agent: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names[agent]: value for agent, value in by_agent.items()}

    def _masks(self, infos: Mapping[str, Any], shown: Mapping[str, Any]) -> Infos:
        # AgileRL stacks whatever is in infos, and fails where types or shapes differ.
        return {
            self.names[agent]: {ACTION_MASK: infos[agent][ACTION_MASK]} if self.masks else {}
            for agent in shown
        }


def _check_masks(env: ParallelEnv) -> None:
    """Begin an episode, of a copy that plays no other, to see whether infos have masks."""
    shown, infos = env.reset()
    bare = [agent for agent in shown if ACTION_MASK not in infos.get(agent, {})]
    if bare:
        raise ValueError(
            f"masks (True) needs infos with an {ACTION_MASK!r}, and those of {', '.join(bare)} "
            f"have none in {env}; put CandidateActions around the text environment, or set "
            "masks=False"
        )


def _make(env: Env, index: int, num_envs: int, names: Mapping[str, str], masks: bool) -> _Worker:
    return _Worker(Share(env, index, num_envs), names, masks)


def _parts(space: Space[Any]) -> list[Space[Any]]:
    if isinstance(space, Dict):
        return list(space.spaces.values())
    return list(space.spaces) if isinstance(space, Tuple) else [space]


def _fit(space: Space[Any], action: Any) -> Any:
    """The action in the form of its space; AgileRL squeezes arrays and changes their dtype."""
    if isinstance(space, Discrete):
        return int(action)
    return np.asarray(action, dtype=space.dtype).reshape(space.shape)


def _joined(values: list[Any], axis: int) -> Any:
    """The arrays of several agents in one, along the axis of environments."""
    if isinstance(values[0], Mapping):
        return {key: _joined([value[key] for value in values], axis) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(_joined(list(part), axis) for part in zip(*values, strict=True))
    return np.concatenate([np.asarray(value) for value in values], axis=axis)
