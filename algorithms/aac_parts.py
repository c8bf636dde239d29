"""Parts of the trainer of actor-attention-critic: its environments, who plays, what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.aac_acting import ActingTeam
from marlogue.algorithms.aac_diagnostics import floats, schedule_figures
from marlogue.algorithms.annealing import as_anneal
from marlogue.algorithms.curriculum import Stage
from marlogue.algorithms.items import EnvOrFactory
from marlogue.algorithms.streams import ACT, derived_seed
from marlogue.algorithms.team_vector import TeamVector, make_team_vector

if TYPE_CHECKING:
    from marlogue.algorithms.aac import AACTrainer


def chosen_device(name: str | None) -> torch.device:
    """The device of a name; None for a GPU where there is one."""
    if name is not None:
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def team_of(trainer: AACTrainer, env: EnvOrFactory, env_kwargs: Mapping[str, Any]) -> TeamSpec:
    """The agents of an environment."""
    # With the guidance, so that an environment to train in without any is refused now.
    guidance = trainer.guidance if env is trainer.env else None
    with make_team_vector(env, guidance=guidance, env_kwargs=env_kwargs) as vector:
        return vector.team


def make_vector(trainer: AACTrainer, stage: Stage) -> TeamVector:
    """The environments of a stage."""
    args = trainer.args
    return make_team_vector(
        trainer.env,
        num_envs=args.num_envs,
        backend=args.env_backend,
        num_workers=args.num_workers,
        seed=args.seed,
        guidance=trainer.guidance,
        env_kwargs=stage.env_kwargs,
        max_restarts=args.max_restarts - trainer.restarts,
    )


def make_players(trainer: AACTrainer, vector: TeamVector) -> ActingTeam:
    """The policies, as they play in these environments from now on."""
    seed = derived_seed(trainer.args.seed, ACT, trainer.steps)
    prepare = trainer.learner.prepare.observations
    return ActingTeam(trainer.networks.actors, vector.num_envs, prepare, seed)


def latest_figures(trainer: AACTrainer, guidance_weight: float) -> dict[str, float]:
    """What the log shows the latest of: schedules, replay, steps that were skipped."""
    assert trainer.memory is not None
    args, learner, progress = trainer.args, trainer.learner, trainer.progress
    discrete, prioritized = trainer.team.discrete, args.replay == "prioritized"
    changing = schedule_figures(
        temperature=trainer.networks.temperature,
        epsilon=as_anneal(args.epsilon)(progress) if discrete else None,
        noise=None if discrete else as_anneal(args.noise)(progress),
        importance_exponent=as_anneal(args.priority_beta)(progress) if prioritized else None,
        guidance_weight=guidance_weight if trainer.guidance is not None else None,
    )
    return {
        **floats(changing),
        **trainer.memory.figures(),
        **learner.skipped.figures(),
        "replay/steps": float(len(trainer.memory)),
        "train/agent_learning_rate": learner.actor_steps.learning_rate,
        "train/critic_learning_rate": learner.critic_steps.learning_rate,
    }
