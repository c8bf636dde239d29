"""From a configuration to environments, models and a trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents import Critic, LLMPolicy, load_tokenizer
from marlogue.algorithms import (
    AACTrainer,
    Callback,
    IACConfig,
    IACTrainer,
    MAACTrainer,
    OnPolicyTrainer,
)
from marlogue.algorithms.critic_building import head_generator
from marlogue.algorithms.environments import Environments, make_environments
from marlogue.cli.data import env_maker, load_rows, make_env
from marlogue.cli.errors import UsageError
from marlogue.cli.lookup import Named, call, find, resolve
from marlogue.cli.options import Settings

Trainer = OnPolicyTrainer | AACTrainer
TRAINERS: dict[str, Callable[..., Trainer]] = {
    "maac": MAACTrainer,
    "iac": IACTrainer,
    "aac": AACTrainer,
}


def environment_arguments(settings: Settings) -> dict[str, Any]:
    """The arguments of a trainer of texts that say what is played.

    Where nothing is said about evaluation, the rows of the training are evaluated.
    """
    given: dict[str, Any] = {
        "env": make_env(settings["env"], "env"),
        "eval_env": make_env(settings["eval_env"], "eval_env"),
        "train_dataset": load_rows(settings["train_dataset"], "train_dataset"),
        "eval_dataset": load_rows(settings["eval_dataset"], "eval_dataset"),
        "formatters": _formatters(settings["formatters"]),
    }
    for key in ("reward_func", "reward_processor", "external_transition"):
        given[key] = resolve(settings[key], key)
    if given["env"] is None and given["train_dataset"] is None:
        raise UsageError("env must be given, or train_dataset and reward_func in its place")
    if not evaluates_apart(settings):
        given["eval_env"], given["eval_dataset"] = given["env"], given["train_dataset"]
    return given


def evaluates_apart(settings: Settings) -> bool:
    """Whether the configuration says what is evaluated."""
    return settings["eval_env"] is not None or settings["eval_dataset"] is not None


def make_played(settings: Settings) -> Environments:
    """The environments, without a trainer."""
    return make_environments(settings.text_args, **environment_arguments(settings))


def make_trainer(settings: Settings, callbacks: Sequence[Callback[Any]], logdir: Any) -> Trainer:
    """The trainer that a configuration describes."""
    own = _numeric_arguments if settings.algorithm == "aac" else _text_arguments
    return TRAINERS[settings.algorithm](
        args=settings.args,
        guidance=_guidance(settings["guidance"]),
        callbacks=[*_callbacks(settings["callbacks"]), *callbacks],
        wandb_config=settings["wandb_config"],
        logdir=logdir,
        **own(settings),
    )


def _numeric_arguments(settings: Settings) -> dict[str, Any]:
    env = env_maker(settings["env"], "env")
    if env is None:
        raise UsageError("env must be given: the name of a task of vectors, or a dotted path")
    return {
        "env": env,
        "eval_env": env_maker(settings["eval_env"], "eval_env"),
        "curriculum": settings["curriculum"],
    }


def _text_arguments(settings: Settings) -> dict[str, Any]:
    played = environment_arguments(settings)
    count = settings.text_args.num_agents
    if played["env"] is not None:
        count = len(played["env"].possible_agents)
    arguments: dict[str, Any] = {
        "model_config": settings["model_config"],
        "metrics_callback": resolve(settings["metrics_callback"], "metrics_callback"),
        **played,
    }
    if settings["joint_formatter"] is not None:
        if settings.algorithm != "maac":
            raise UsageError("joint_formatter is for maac; leave it out")
        arguments["joint_formatter"] = resolve(settings["joint_formatter"], "joint_formatter")
    arguments |= team_arguments(settings, count)
    arguments |= _critic_arguments(settings, count)
    return arguments


def _guidance(value: bool | str | Named | None) -> Any:
    if isinstance(value, bool):
        return value or None
    return resolve(value, "guidance")


def team_arguments(settings: Settings, count: int) -> dict[str, Any]:
    """``agents`` (or ``agent_model``) and ``tokenizer`` of ``count`` agents."""
    agents, model = settings["agents"], settings["agent_model"]
    if agents is None and isinstance(model, Named):
        agents, model = [model] * count, None
    if agents is None or all(isinstance(source, str) for source in agents):
        return {"agents": agents, "agent_model": model}
    made: list[Any] = []
    tokenizers: list[PreTrainedTokenizerBase] = []
    for index, source in enumerate(agents):
        key = f"agents[{index}]"
        if isinstance(source, str):
            made.append(source)
            tokenizers.append(load_tokenizer(source))
            continue
        agent, tokenizer = _made(source, key)
        if isinstance(agent, LLMPolicy):
            tokenizer = agent.tokenizer
        if tokenizer is None:
            raise UsageError(f"{key} ({source.name}) must make a model and its tokenizer")
        made.append(agent)
        tokenizers.append(tokenizer)
    return {"agents": made, "agent_model": model, "tokenizer": tokenizers}


def _critic_arguments(settings: Settings, count: int) -> dict[str, Any]:
    critics, model = settings["critics"], settings["critic_model"]
    if critics is None and isinstance(model, Named):
        critics, model = [model] * (1 if settings.algorithm == "maac" else count), None
    if critics is None:
        return {"critics": None, "critic_model": model}
    made = [
        source if isinstance(source, str) else _critic(source, settings, index)
        for index, source in enumerate(critics)
    ]
    return {"critics": made, "critic_model": model}


def _critic(source: Named, settings: Settings, index: int) -> Critic | PreTrainedModel:
    critic, tokenizer = _made(source, f"critics[{index}]")
    if tokenizer is None:
        return critic
    width = (settings["model_config"] or {}).get("critic_value_head_hidden_dim")
    if isinstance(settings.args, IACConfig):
        width = settings.args.critic_value_head_hidden_dim or width
    return Critic(
        critic,
        tokenizer,
        value_head_hidden_dim=width,
        generator=head_generator(settings.args.seed, index),
    )


def _made(source: Named, key: str) -> tuple[Any, PreTrainedTokenizerBase | None]:
    """What a function made: a policy, a critic, a model, or a model with its tokenizer."""
    made = call(find(source.name, f"{key}.name"), source.kwargs, key)
    return made if isinstance(made, tuple) else (made, None)


def _callbacks(sources: Sequence[str | Named] | None) -> list[Callback[Any]]:
    made = []
    for index, source in enumerate(sources or []):
        named = Named(source) if isinstance(source, str) else source
        key = f"callbacks[{index}]"
        callback = call(find(named.name, f"{key}.name"), named.kwargs, key)
        if not isinstance(callback, Callback):
            raise UsageError(f"{key} ({named.name}) must be a marlogue.algorithms.Callback")
        made.append(callback)
    return made


def _formatters(value: str | Named | Sequence[str | Named] | None) -> Any:
    if isinstance(value, list):
        return [resolve(one, f"formatters[{index}]") for index, one in enumerate(value)]
    return resolve(value, "formatters")  # type: ignore[arg-type]
