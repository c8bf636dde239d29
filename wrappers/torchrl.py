"""Text environments as TorchRL environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Space, Text, Tuple
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from pettingzoo.utils import BaseParallelWrapper  # type: ignore[import-untyped]

from marlogue.envs.copies import Copies
from marlogue.envs.text_env import TextEnv
from marlogue.wrappers.optional import require

with require("torchrl", extra="torchrl"):
    from torchrl.envs import EnvBase, PettingZooWrapper, SerialEnv

GroupMap: TypeAlias = Mapping[str, Iterable[str]]
"""Name of a group to the names of its agents, whose tensors are stacked."""

Plan: TypeAlias = tuple[int | None, dict[str, Any] | None]
"""Seed and options of a reset."""

ALL_AGENTS = "agents"
"""The one group of `torchrl_env`, unless it is told others."""

MASK = "action_mask"


def torchrl_env(
    env: ParallelEnv | Callable[[], ParallelEnv],
    *,
    num_envs: int | None = None,
    group_map: GroupMap | None = None,
    use_mask: bool = False,
    info_keys: Sequence[str] = (),
    return_state: bool | None = None,
    categorical_actions: bool = True,
    seed: int | None = None,
    device: torch.device | str = "cpu",
) -> EnvBase:
    """Make a TorchRL environment of a numeric view of a text environment.

    Its tensordicts hold, for N agents in the group `agents`: `("agents", "observation")`,
    `("agents", "action")`, `("agents", "reward")` [N, 1], `("agents", "done")` (`terminated`,
    `truncated`) [N, 1], `("agents", "action_mask")` [N, K] where the agents' infos hold an
    `action_mask`, every other info under `("agents", "info")`, and `state` where the environment
    has a numeric one. An episode is done when it has ended for all agents.

    Args:
        env: the environment with its views, or a function that makes it. It is copied, not
            changed. Observations and actions must be numeric.
        num_envs: None makes one environment, without a batch dimension; a number makes a
            `SerialEnv` of so many, which share the rows of a dataset: together they play what the
            one environment would play.
        group_map: group to its agents. Agents of a group must have one observation space and one
            action space. None: all agents in the group `agents`.
        use_mask: add `("agents", "mask")` [N], False for an agent that has left the episode before
            the others. Required where agents do that.
        info_keys: the infos to add, as floats under `("agents", "info", key)`; 0.0 where the
            environment gives none, or None.
        return_state: add `state`, from `env.state()`. None: where `env.state_space` is numeric.
        categorical_actions: whether a discrete action is an index, or else one-hot.
        seed: the seed of the first episode.
        device: where the tensors are.

    Raises:
        TypeError: when a space, or an info of `info_keys`, is not numeric, or `env` is not a
            `ParallelEnv`.
        ValueError: when groups do not hold each agent once, agents of a group differ, or `num_envs`
            is less than 1.
    """
    make = EnvMaker(
        env,
        group_map=group_map,
        use_mask=use_mask,
        info_keys=info_keys,
        return_state=return_state,
        categorical_actions=categorical_actions,
        seed=seed,
        device=device,
    )
    if num_envs is None:
        return make()
    if num_envs < 1:
        raise ValueError(f"num_envs ({num_envs}) must be at least 1; set None for a single one")
    return SerialEnv(num_envs, make)


class EnvMaker:
    """Makes TorchRL environments that share the rows of one text environment.

    What `torchrl_env` uses for each environment; pass it as `create_env_fn` to TorchRL's own
    `SerialEnv` or collectors. In other processes the rows cannot be shared: give the environment
    `shuffle=True` there, and each process a seed.

    Args:
        env, group_map, use_mask, info_keys, return_state, categorical_actions, seed, device: as
            in `torchrl_env`.
    """

    def __init__(
        self,
        env: ParallelEnv | Callable[[], ParallelEnv],
        *,
        group_map: GroupMap | None = None,
        use_mask: bool = False,
        info_keys: Sequence[str] = (),
        return_state: bool | None = None,
        categorical_actions: bool = True,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.episodes = _SharedEpisodes(env)
        first = self.episodes.copies[0]
        self.group_map = _checked_groups(group_map, list(first.possible_agents))
        for group, agents in self.group_map.items():
            _check_spaces(first, group, agents)
        numeric_state = is_numeric(getattr(first, "state_space", None))
        if return_state and not numeric_state and hasattr(first, "state_space"):
            raise TypeError(
                f"return_state (True) needs a numeric state; state_space is {first.state_space}. "
                "Put NumericState around the environment"
            )
        self.info_keys = tuple(info_keys)
        self.settings = {
            "use_mask": use_mask,
            "return_state": numeric_state if return_state is None else return_state,
            "categorical_actions": categorical_actions,
            "seed": seed,
            "device": torch.device(device),
        }

    def __call__(self) -> EnvBase:
        """Make the next environment."""
        groups = {group: list(agents) for group, agents in self.group_map.items()}
        copy = _OneOfMany(self.episodes, self.info_keys)
        with warnings.catch_warnings():
            # TorchRL names the version it was tested with; our tests run with later ones.
            warnings.filterwarnings("ignore", message="PettingZoo in TorchRL is tested")
            # An agent that has ended is masked; the episode goes on for the others.
            return PettingZooWrapper(copy, group_map=groups, done_on_any=False, **self.settings)


def is_numeric(space: Space[Any] | None) -> bool:
    """Whether there is a space, and no text anywhere in it."""
    if isinstance(space, Dict):
        return all(is_numeric(part) for part in space.spaces.values())
    if isinstance(space, Tuple):
        return all(is_numeric(part) for part in space.spaces)
    if isinstance(space, Box):
        return True
    return space is not None and not isinstance(space, Text) and not space.contains("text")


class _SharedEpisodes:
    """Copies of an environment, and which episode each of them plays next."""

    def __init__(self, env: ParallelEnv | Callable[[], ParallelEnv]) -> None:
        self.copies = Copies(env)
        self.has_rows = isinstance(self.copies[0].unwrapped, TextEnv)
        self.handed_out = 0
        self.seeded: set[int] = set()
        self.unplayed: list[Plan] = []

    def next_copy(self) -> int:
        index = self.handed_out
        self.handed_out += 1
        self.copies.grow(self.handed_out)
        return index

    def plan(self, index: int, seed: int | None, options: Mapping[str, Any] | None) -> Plan:
        # Vectorised environments seed their parts one by one, each with another seed. The first
        # one begins the order of the rows anew, the others go on with it.
        goes_on = self.has_rows and bool(self.seeded) and index not in self.seeded
        if seed is None and options is None and self.unplayed:
            return self.unplayed.pop(0)
        if seed is None:
            return self.copies.plan(None, options)
        if goes_on:
            self.seeded.add(index)
            return seed, self.copies.plan(None, options)[1]
        self.seeded, self.unplayed = {index}, []
        return self.copies.plan(seed, options)


class _OneOfMany(BaseParallelWrapper):  # type: ignore[misc]
    """One copy, which asks the others what is left to play, and checks what TorchRL would not."""

    def __init__(self, episodes: _SharedEpisodes, info_keys: tuple[str, ...]) -> None:
        self._index = episodes.next_copy()
        super().__init__(episodes.copies[self._index])
        self._episodes = episodes
        self._info_keys = info_keys
        self._unplayed: Plan | None = None
        self._only_looked_at = True

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        # TorchRL resets to read the specs and to set a seed, and once more to begin: an episode
        # that was only looked at is played then, so that no row is lost.
        plan = self._unplayed
        if plan is None or seed is not None or options is not None:
            plan = self._episodes.plan(self._index, seed, options)
        self._unplayed = plan if self._only_looked_at or seed is not None else None
        self._only_looked_at = False
        observations, infos = self._episodes.copies.reset(self._index, *plan)
        return observations, self._numeric(infos)

    def step(self, actions: Mapping[str, Any]) -> Any:
        self._unplayed = None
        acting = {agent: actions[agent] for agent in self.agents}
        observations, rewards, terminations, truncations, infos = self.env.step(acting)
        if not self.agents and len({*terminations.values()}) + len({*truncations.values()}) > 2:
            raise ValueError(
                f"an episode of {self.env} ended terminated for some agents and truncated for "
                f"others ({terminations}, {truncations}), of which TorchRL makes neither; put "
                "UniformEnd around the environment"
            )
        return observations, rewards, terminations, truncations, self._numeric(infos)

    def close(self) -> None:
        if self._unplayed is not None:
            self._episodes.unplayed.append(self._unplayed)
            self._unplayed = None
        self.env.close()

    def _numeric(self, infos: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        return {
            agent: {
                **{key: _number(agent, key, infos[agent].get(key)) for key in self._info_keys},
                **({MASK: infos[agent][MASK]} if MASK in infos[agent] else {}),
            }
            for agent in self.possible_agents
            if agent in infos
        }


def _number(agent: str, key: str, value: Any) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, bool | int | float | np.number | np.bool_):
        raise TypeError(
            f"infos[{agent!r}][{key!r}] ({value!r}) must be a number, of which TorchRL makes a "
            f"tensor; take {key!r} out of info_keys"
        )
    return float(value)


def _checked_groups(group_map: GroupMap | None, agents: list[str]) -> dict[str, list[str]]:
    if group_map is None:
        return {ALL_AGENTS: agents}
    groups = {group: list(members) for group, members in group_map.items()}
    if sorted(name for members in groups.values() for name in members) != sorted(agents):
        raise ValueError(f"group_map ({groups}) must hold each of the agents {agents} once")
    return groups


def _check_spaces(env: ParallelEnv, group: str, agents: list[str]) -> None:
    for kind in ("observation_space", "action_space"):
        spaces = {agent: getattr(env, kind)(agent) for agent in agents}
        for agent, space in spaces.items():
            if not is_numeric(space):
                raise TypeError(
                    f"the {kind} of {agent} ({space}) holds text, of which TorchRL makes no "
                    "tensor; put views around the environment, such as EmbedObservations("
                    "CandidateActions(env, [...]), HashedNgrams(64))"
                )
            if space != spaces[agents[0]]:
                raise ValueError(
                    f"the agents of a group must have one {kind}; in group {group!r} that of "
                    f"{agents[0]} is {spaces[agents[0]]}, that of {agent} is {space}. Give the "
                    "views one length or number of candidates for all agents, or set group_map so "
                    "that they are in different groups"
                )
