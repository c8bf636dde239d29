"""From a configuration to environments, models and a trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents import Critic, LLMPolicy, load_tokenizer
from marlogue.algorithms import Callback, IACConfig, IACTrainer, MAACTrainer, OnPolicyTrainer
from marlogue.algorithms.critic_building import head_generator
from marlogue.algorithms.environments import Environments, make_environments
from marlogue.cli.data import load_rows, make_env
from marlogue.cli.errors import UsageError
from marlogue.cli.lookup import Named, call, find, resolve
from marlogue.cli.options import Settings

TRAINERS: dict[str, Callable[..., OnPolicyTrainer]] = {"maac": MAACTrainer, "iac": IACTrainer}


def environment_arguments(settings: Settings) -> dict[str, Any]:
    """The arguments of a trainer that say what is played.

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
    return make_environments(settings.args, **environment_arguments(settings))


def make_trainer(settings: Settings, callbacks: Sequence[Callback], logdir: Any) -> OnPolicyTrainer:
    """The trainer that a configuration describes."""
    played = environment_arguments(settings)
    count = settings.args.num_agents
    if played["env"] is not None:
        count = len(played["env"].possible_agents)
    arguments: dict[str, Any] = {
        "args": settings.args,
        "model_config": settings["model_config"],
        "metrics_callback": resolve(settings["metrics_callback"], "metrics_callback"),
        "wandb_config": settings["wandb_config"],
        "callbacks": [*_callbacks(settings["callbacks"]), *callbacks],
        "logdir": logdir,
        **played,
    }
    guidance = settings["guidance"]
    given = isinstance(guidance, bool)
    arguments["guidance"] = guidance if given else resolve(guidance, "guidance")
    if settings["joint_formatter"] is not None:
        if settings.algorithm != "maac":
            raise UsageError("joint_formatter is for maac; leave it out")
        arguments["joint_formatter"] = resolve(settings["joint_formatter"], "joint_formatter")
    arguments |= team_arguments(settings, count)
    arguments |= _critic_arguments(settings, count)
    return TRAINERS[settings.algorithm](**arguments)


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


def _callbacks(sources: Sequence[str | Named] | None) -> list[Callback]:
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
