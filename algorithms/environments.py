"""The environments of a trainer, from datasets and callbacks or from the user's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from marlogue.algorithms.config import ActorCriticConfig, default_of
from marlogue.algorithms.items import EnvOrFactory
from marlogue.algorithms.reward_config import REWARD_FIELDS, reward_fields
from marlogue.envs import BatchRunner, TextEnv
from marlogue.envs.reward_drops import Drops
from marlogue.envs.text_env import text_env_inside

ConfigT = TypeVar("ConfigT", bound=ActorCriticConfig)


@dataclass
class Environments:
    """What a trainer plays.

    Attributes:
        train: for training.
        eval: for evaluation; None for none.
        train_runner: plays ``train``.
        args: the configuration, with the environment's numbers of agents and turns.
    """

    train: EnvOrFactory
    eval: EnvOrFactory | None
    train_runner: BatchRunner
    args: Any

    @property
    def shuffles(self) -> bool:
        """Whether the training environment itself draws the order of its rows."""
        inner = text_env_inside(self.train)
        return inner is not None and inner.shuffle

    @property
    def agents(self) -> list[str]:
        """The agents' names."""
        return self.train_runner.possible_agents

    def drops(self) -> list[Drops]:
        """What keeps count of the rewards that are left out: in training, then in evaluations."""
        inner = [text_env_inside(env) for env in (self.train, self.eval)]
        return [env.task.reward.drops for env in inner if env is not None]

    def __enter__(self) -> None:
        """Within, workers of reward functions are kept; afterwards they end, and begin again only
        when they are needed."""

    def __exit__(self, *exception: object) -> None:
        for env in (self.train, self.eval):
            inner = text_env_inside(env)
            if inner is not None:
                inner.task.close()


def make_environments(
    args: ActorCriticConfig,
    *,
    env: EnvOrFactory | None,
    eval_env: EnvOrFactory | None,
    train_dataset: Any,
    eval_dataset: Any,
    **callbacks: Any,
) -> Environments:
    """Build or take over the environments.

    Raises:
        ValueError: when too little or too much is given, or the environment and the configuration
            disagree.
    """
    if env is None:
        if eval_env is not None:
            raise ValueError("eval_env goes with env; pass eval_dataset with train_dataset.")
        train = _text_env(args, "train_dataset", train_dataset, callbacks)
        evaluation = None
        if eval_dataset is not None:
            evaluation = _text_env(args, "eval_dataset", eval_dataset, callbacks)
        return Environments(train, evaluation, BatchRunner(train), args)
    given = [name for name, value in callbacks.items() if value is not None]
    given += [
        name
        for name, value in (("train_dataset", train_dataset), ("eval_dataset", eval_dataset))
        if value is not None
    ]
    if given:
        raise ValueError(
            f"env already has what {', '.join(given)} would say; leave out one or the other (for "
            "evaluation pass eval_env)."
        )
    runner = BatchRunner(env)
    return Environments(env, eval_env, runner, _fitted(args, env, len(runner.possible_agents)))


def _text_env(
    args: ActorCriticConfig, name: str, dataset: Any, callbacks: dict[str, Any]
) -> TextEnv:
    if dataset is None:
        raise ValueError(f"{name} (None) must be given, or env in its place.")
    if callbacks["reward_func"] is None:
        raise ValueError("reward_func (None) must be given, or env in its place.")
    return TextEnv(
        dataset,
        num_agents=args.num_agents,
        num_turns=args.num_turns,
        early_termination_threshold=args.early_termination_threshold,
        external_prompt_passthrough=args.external_prompt_passthrough,
        **args.reward_arguments(),
        **callbacks,
    )


def _fitted(args: ConfigT, env: EnvOrFactory, num_agents: int) -> ConfigT:
    """The configuration with what the environment knows better. A field that was left at its
    default gives way; one that was set to something else is a contradiction."""
    known: dict[str, Any] = {"num_agents": num_agents}
    inner = text_env_inside(env)
    if inner is not None:
        for name in ("num_turns", "early_termination_threshold", "external_prompt_passthrough"):
            known[name] = getattr(inner.task, name)
        known |= reward_fields(inner.task.reward.settings)
    else:
        _refuse_without_effect(args)
    for name, value in known.items():
        said = getattr(args, name)
        if said not in (value, default_of(args, name)):
            raise ValueError(
                f"{name} ({said}) must be the environment's ({value}); set {name}={value}, or "
                "leave it out."
            )
    return replace(args, **known)


def _refuse_without_effect(args: ActorCriticConfig) -> None:
    for name in REWARD_FIELDS:
        said = getattr(args, name)
        if said != default_of(args, name):
            raise ValueError(
                f"{name} ({said!r}) has no effect on this env, which makes its rewards itself; set "
                "it where the environment is made, or leave it out."
            )
