"""Text environments as TorchRL environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.optional import require
from marlogue.envs.task import whole_number
from marlogue.wrappers.numeric_spaces import is_numeric
from marlogue.wrappers.torchrl_episodes import OneOfMany, SharedEpisodes

with require("torchrl", extra="torchrl"):
    from torchrl.envs import EnvBase, PettingZooWrapper, SerialEnv

GroupMap: TypeAlias = Mapping[str, Iterable[str]]
"""Name of a group to the names of its agents, whose tensors are stacked."""

ALL_AGENTS = "agents"
"""The one group of `torchrl_env`, unless it is told others."""


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
    `action_mask` (that of `CandidateActions`; the view `ActionMask` is not needed), and `state`
    where the environment has a numeric one. An episode is done when it has ended for all agents.

    Args:
        env: the environment with its views, or a function that makes it. It is copied, not
            changed. Observations and actions must be numeric.
        num_envs: None makes one environment, without a batch dimension; a number makes a
            `SerialEnv` of so many, which share the rows of a dataset: together they play what the
            one environment would play. Random actions of a `SerialEnv` ignore masks, unless
            TorchRL's own transform `ActionMask(("agents", "action"), ("agents", "action_mask"))` is
            put around it.
        group_map: group to its agents. Agents of a group must have one observation space and one
            action space. None: all agents in the group `agents`.
        use_mask: add `("agents", "mask")` [N], False for an agent that has left the episode before
            the others. Required where agents do that.
        info_keys: the infos to add, as floats under `("agents", "info", key)`; 0.0 where the
            environment gives none, or None.
        return_state: add `state`, from `env.state()`. None: where `env.state_space` is numeric.
        categorical_actions: whether a discrete action is an index, or else one-hot.
        seed: the seed of the first episode; several environments get one each, counted from it.
        device: where the tensors are.

    Raises:
        TypeError: when a space, or an info of `info_keys`, is not numeric, `env` is not a
            `ParallelEnv`, or another argument has a wrong type.
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
    return SerialEnv(whole_number("num_envs", num_envs), make)


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
        self.episodes = SharedEpisodes(env)
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
        if isinstance(info_keys, str):
            raise TypeError(f"info_keys ({info_keys!r}) must be a list of keys")
        self.info_keys = tuple(info_keys)
        self.seed = None if seed is None else whole_number("seed", seed, 0)
        self.settings: dict[str, Any] = {
            "use_mask": use_mask,
            "return_state": numeric_state if return_state is None else return_state,
            "categorical_actions": categorical_actions,
            "device": torch.device(device),
        }

    def __call__(self) -> EnvBase:
        """Make the next environment."""
        groups = {group: list(agents) for group, agents in self.group_map.items()}
        copy = OneOfMany(self.episodes, self.info_keys, self.settings["use_mask"])
        seed = None if self.seed is None else self.seed + copy.index
        with warnings.catch_warnings():
            # TorchRL names the version it was tested with; our tests run with later ones.
            warnings.filterwarnings("ignore", message="PettingZoo in TorchRL is tested")
            # An agent that has ended is masked; the episode goes on for the others.
            return PettingZooWrapper(
                copy, group_map=groups, done_on_any=False, seed=seed, **self.settings
            )


def _checked_groups(group_map: GroupMap | None, agents: list[str]) -> dict[str, list[str]]:
    if group_map is None:
        return {ALL_AGENTS: agents}
    if not isinstance(group_map, Mapping):
        raise TypeError(f"group_map ({group_map!r}) must be a dict from group to its agents")
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
