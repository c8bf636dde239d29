"""Text environments as BenchMARL tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.optional import require
from marlogue.envs.task import whole_number

with require("benchmarl", extra="benchmarl"):
    from benchmarl.environments import TaskClass
    from torchrl.data import Composite
    from torchrl.envs import ActionMask, EnvBase, Transform

from marlogue.wrappers.torchrl import EnvMaker, GroupMap


def task(
    name: str,
    env: ParallelEnv | Callable[[], ParallelEnv],
    *,
    max_steps: int = 1000,
    group_map: GroupMap | None = None,
    info_keys: Sequence[str] = (),
) -> TextTask:
    """Make a BenchMARL task of a numeric view of a text environment, for `benchmarl.Experiment`.

    The environments of an experiment share the rows of a dataset; with `parallel_collection` they
    are in processes of their own, and all play the same rows. A numeric `state()`
    (`NumericState`) is the state of algorithms with a centralised critic or mixer, and the
    `action_mask` of `CandidateActions` reaches every algorithm that takes masks.

    Args:
        name: the name of the task in logs and folders.
        env: the environment with its views (vectors as observations, `Discrete` actions, agents
            that stay until the end: see `UniformEnd`), or a function that makes it. BenchMARL
            writes the task to a file beside its checkpoints, so it must be possible to pickle
            `env` (with cloudpickle: lambdas are, open files and models on a device are not).
        max_steps: no episode of an evaluation is longer than this many steps.
        group_map: group to its agents, each with parameters of its own. Agents of a group must
            have one observation space and one action space. None: all in the group `agents`.
        info_keys: infos to log the mean of; see `torchrl_env`.

    Raises:
        TypeError: when a space is not of these kinds, or `max_steps` is no integer.
        ValueError: when `max_steps` is less than 1, or for the reasons of `torchrl_env`.
    """
    return TextTask(name, env, max_steps=max_steps, group_map=group_map, info_keys=info_keys)


class TextTask(TaskClass):  # type: ignore[misc]
    """What `task` makes."""

    def __init__(
        self,
        name: str,
        env: ParallelEnv | Callable[[], ParallelEnv],
        *,
        max_steps: int,
        group_map: GroupMap | None,
        info_keys: Sequence[str],
    ) -> None:
        max_steps = whole_number("max_steps", max_steps)
        self.env = env
        self.settings: dict[str, Any] = {"group_map": group_map, "info_keys": tuple(info_keys)}
        first = EnvMaker(env, **self.settings).episodes.copies[0]
        _check_spaces(first)
        super().__init__(name, {"env": str(first), "max_steps": max_steps})

    @override
    def get_env_fun(
        self,
        num_envs: int,
        continuous_actions: bool,
        seed: int | None,
        device: torch.device | str,
    ) -> Callable[[], EnvBase]:
        return EnvMaker(self.env, seed=seed, device=device, **self.settings)

    @override
    def supports_continuous_actions(self) -> bool:
        return False

    @override
    def supports_discrete_actions(self) -> bool:
        return True

    @override
    def max_steps(self, env: EnvBase) -> int:
        return int(self.config["max_steps"])

    @override
    def has_render(self, env: EnvBase) -> bool:
        return False

    @override
    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        return env.group_map

    @override
    def observation_spec(self, env: EnvBase) -> Composite:
        return self._spec(env, "observation")

    @override
    def info_spec(self, env: EnvBase) -> Composite | None:
        return self._spec(env, "info")

    @override
    def action_mask_spec(self, env: EnvBase) -> Composite | None:
        return self._spec(env, "action_mask")

    @override
    def state_spec(self, env: EnvBase) -> Composite | None:
        spec = env.observation_spec
        return Composite({"state": spec["state"].clone()}) if "state" in spec else None

    @override
    def action_spec(self, env: EnvBase) -> Composite:
        return env.full_action_spec

    @override
    def get_env_transforms(self, env: EnvBase) -> list[Transform]:
        # Else the random actions with which off-policy algorithms may begin ignore the masks.
        groups = self.action_mask_spec(env) or ()
        return [ActionMask((group, "action"), (group, "action_mask")) for group in groups]

    @staticmethod
    @override
    def env_name() -> str:
        return "marlogue"

    def _spec(self, env: EnvBase, key: str) -> Composite | None:
        """The part of the observations that is called `key`, in each group; None without one."""
        groups = env.observation_spec.clone()
        parts = {
            group: Composite({key: groups[group][key]}, shape=groups[group].shape)
            for group in env.group_map
            if key in groups[group]
        }
        return Composite(parts) if parts else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "env": cloudpickle.dumps(self.env)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.env = cloudpickle.loads(state["env"])


def _check_spaces(env: ParallelEnv) -> None:
    for agent in env.possible_agents:
        shown, action = env.observation_space(agent), env.action_space(agent)
        if not (isinstance(shown, Box) and len(shown.shape) == 1):
            raise TypeError(
                f"BenchMARL needs vectors as observations; the observation space of {agent} is "
                f"{shown}. Use EmbedObservations, and leave ActionMask out: masks are taken from "
                "the infos"
            )
        if not isinstance(action, Discrete):
            raise TypeError(
                f"BenchMARL needs Discrete actions; the action space of {agent} is {action}. Use "
                "CandidateActions or TokenByToken"
            )
