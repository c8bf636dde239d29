"""BenchMARL 1.5 on any ParallelEnv, with its own networks, losses and loop.

It is used through its public interface and not changed. Importing this needs BenchMARL.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarl.algorithms import MappoConfig, MasacConfig
from benchmarl.environments import TaskClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from numpy.typing import NDArray
from pettingzoo import ParallelEnv
from team_tasks import Policy
from tensordict import TensorDict
from torchrl.data import Composite
from torchrl.envs import EnvBase, PettingZooWrapper
from torchrl.envs.utils import ExplorationType, MarlGroupMapType, set_exploration_type

_GROUP = "agents"
LEARNERS = {"masac": MasacConfig, "mappo": MappoConfig}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is set of BenchMARL; all else is its default.

    Attributes:
        learner: "masac" or "mappo".
        steps: of the training.
        learning_rate: of all optimisers.
        discount: gamma.
        batch_size: of an update.
        collected: steps between trainings.
        updates: optimiser steps in each training (MASAC), or passes over the batch (MAPPO).
        hidden: width of the two hidden layers.
        entropy: MAPPO's coefficient; MASAC adjusts its own, beginning at this.
    """

    learner: str
    steps: int
    learning_rate: float = 5e-4
    discount: float = 0.95
    batch_size: int = 256
    collected: int = 1000
    updates: int = 100
    hidden: int = 128
    entropy: float = 0.01


class AnyTask(TaskClass):  # type: ignore[misc]
    """A ParallelEnv as BenchMARL's task: all agents in one group, discrete actions, no state (the
    critic then reads all agents' observations)."""

    def __init__(self, make: Callable[[], ParallelEnv[Any, Any, Any]], max_cycles: int) -> None:
        super().__init__(name="ANY", config={})
        self._make, self._max_cycles = make, max_cycles

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """One environment at a time; BenchMARL puts several together."""
        return lambda: PettingZooWrapper(
            self._make(),
            group_map=MarlGroupMapType.ALL_IN_ONE_GROUP,
            categorical_actions=True,
            device=device,
            seed=seed,
        )

    def supports_continuous_actions(self) -> bool:
        """No."""
        return False

    def supports_discrete_actions(self) -> bool:
        """Yes."""
        return True

    def has_render(self, env: EnvBase) -> bool:
        """Nothing is drawn."""
        return False

    def max_steps(self, env: EnvBase) -> int:
        """Steps of an episode."""
        return self._max_cycles

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        """All agents in one group."""
        groups: dict[str, list[str]] = env.group_map
        return groups

    def state_spec(self, env: EnvBase) -> Composite | None:
        """None."""
        return None

    def action_mask_spec(self, env: EnvBase) -> Composite | None:
        """None."""
        return None

    def observation_spec(self, env: EnvBase) -> Composite:
        """What the agents see."""
        return Composite({_GROUP: _only(env, "observation")})

    def info_spec(self, env: EnvBase) -> Composite | None:
        """None."""
        return None

    def action_spec(self, env: EnvBase) -> Composite:
        """What the agents can do."""
        return env.full_action_spec

    @staticmethod
    def env_name() -> str:
        """For the names of files."""
        return "any"


class Watch(Callback):  # type: ignore[misc]
    """Calls a function with the steps made so far after each training."""

    def __init__(self, seen: Callable[[int], None]) -> None:
        super().__init__()
        self._seen = seen

    def on_train_end(self, training_td: TensorDict, group: str) -> None:
        """After each training."""
        self._seen(self.experiment.total_frames)


def make_experiment(
    settings: Settings,
    make: Callable[[], ParallelEnv[Any, Any, Any]],
    max_cycles: int,
    seed: int,
) -> Experiment:
    """An experiment that is ready to run, logging nothing; it pickles ``make``."""
    args = ExperimentConfig.get_from_yaml()
    args.max_n_frames, args.lr, args.gamma = (
        settings.steps,
        settings.learning_rate,
        settings.discount,
    )
    args.loggers, args.create_json, args.evaluation, args.render = [], False, False, False
    args.save_folder = tempfile.mkdtemp()
    args.on_policy_collected_frames_per_batch = settings.collected
    args.on_policy_minibatch_size = settings.batch_size
    args.on_policy_n_minibatch_iters = settings.updates
    args.off_policy_collected_frames_per_batch = settings.collected
    args.off_policy_train_batch_size = settings.batch_size
    args.off_policy_n_optimizer_steps = settings.updates
    args.off_policy_memory_size = 100_000
    learner = LEARNERS[settings.learner].get_from_yaml()
    if settings.learner == "mappo":
        learner.entropy_coef = settings.entropy
    else:
        learner.alpha_init = settings.entropy
    model = MlpConfig(
        num_cells=[settings.hidden] * 2,
        layer_class=torch.nn.Linear,
        activation_class=torch.nn.ReLU,
    )
    return Experiment(
        task=AnyTask(make, max_cycles),
        algorithm_config=learner,
        model_config=model,
        seed=seed,
        config=args,
    )


def watch(experiment: Experiment, seen: Callable[[int], None]) -> None:
    """Call ``seen`` with the steps made so far after each training."""
    watching = Watch(seen)
    watching.experiment = experiment  # not given to the experiment, which would pickle it
    experiment.callbacks.append(watching)


def policy_of(experiment: Experiment, greedy: bool) -> Policy:
    """The policy as it is now (and becomes)."""
    kind = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM

    @torch.no_grad()
    def policy(seen: NDArray[np.float32]) -> NDArray[np.int64]:
        rows = TensorDict({"observation": torch.from_numpy(seen)[None]}, [1, len(seen)])
        with set_exploration_type(kind):
            done = experiment.policy(TensorDict({_GROUP: rows}, [1]))
        actions: NDArray[np.int64] = done[_GROUP, "action"][0].numpy()
        return actions

    return policy


def update_of(experiment: Experiment, batch_size: int) -> Callable[[], Any]:
    """One update, as the experiment makes them, from a buffer that its environment fills."""
    batch = next(iter(experiment.collector)).exclude(*experiment._get_excluded_keys(_GROUP))
    rows = experiment.algorithm.process_batch(_GROUP, batch).reshape(-1)
    if len(rows) < batch_size:
        raise ValueError(f"the buffer ({len(rows)}) must hold a batch ({batch_size}).")
    experiment.replay_buffers[_GROUP].extend(rows)
    return lambda: experiment._optimizer_loop(_GROUP)


def _only(env: EnvBase, name: str) -> Composite:
    group = env.observation_spec[_GROUP].clone()
    for key in list(group.keys()):
        if key != name:
            del group[key]
    return group
