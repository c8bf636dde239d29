"""The keys of a configuration: their types, their help, and which learners they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Literal, NamedTuple, get_args

from marlogue.algorithms import AACConfig, ActorCriticConfig, IACConfig, MAACConfig
from marlogue.cli.data import DataSource, EnvSource
from marlogue.cli.errors import UsageError, unknown
from marlogue.cli.lookup import Named

Algorithm = Literal["maac", "iac", "aac"]
Config = ActorCriticConfig | AACConfig
CONFIGS: dict[str, type[ActorCriticConfig] | type[AACConfig]] = {
    "maac": MAACConfig,
    "iac": IACConfig,
    "aac": AACConfig,
}

_ALL: tuple[str, ...] = get_args(Algorithm)
_TEXT = ("maac", "iac")

_Model = str | Named | None
_Models = list[str | Named] | None
_Callable = str | Named | None


class Key(NamedTuple):
    """A key.

    Attributes:
        kind: the type of its value.
        text: help.
        learners: the algorithms that it is for.
    """

    kind: Any
    text: str
    learners: tuple[str, ...] = _ALL


#: Keys of a configuration beside ``args``.
KEYS: dict[str, Key] = {
    "agent_model": Key(
        _Model,
        "the model that every agent starts from: smollm2, a folder, a hub name, or a name with "
        "kwargs of a function that makes a model with its tokenizer",
        _TEXT,
    ),
    "agents": Key(_Models, "one model per agent, instead of agent_model", _TEXT),
    "critic_model": Key(_Model, "the model of the critic, or of each critic", _TEXT),
    "critics": Key(_Models, "a list of critics' models, instead of critic_model", _TEXT),
    "model_config": Key(
        dict[str, Any] | None,
        "how models are loaded and prompted: dtype, attn_implementation, model_kwargs, "
        "critic_model_kwargs, critic_value_head_hidden_dim, chat_template, system_prompt",
        _TEXT,
    ),
    "env": Key(str | EnvSource | None, "the environment: a task's name, or name, kwargs and rows"),
    "eval_env": Key(str | EnvSource | None, "the environment for evaluation"),
    "curriculum": Key(
        list[dict[str, Any]] | None,
        "stages of the training, each with arguments of env and until, the share of the training "
        "at which it ends",
        ("aac",),
    ),
    "train_dataset": Key(str | DataSource | None, "instead of env: a file, or a hub name", _TEXT),
    "eval_dataset": Key(str | DataSource | None, "the dataset for evaluation", _TEXT),
    "reward_func": Key(_Callable, "dotted path of the reward function", _TEXT),
    "reward_processor": Key(_Callable, "dotted path of a function from reward to reward", _TEXT),
    "formatters": Key(
        str | Named | list[str | Named] | None,
        "dotted path of the formatter, or one per agent",
        _TEXT,
    ),
    "external_transition": Key(
        _Callable, "dotted path of what makes the prompts of later turns", _TEXT
    ),
    "guidance": Key(
        bool | str | Named | None,
        "dotted path of a function of (state, actions, infos) that gives advantages of what the "
        "agents do (AAC: or values of all they could do), or true for the environment's own",
    ),
    "metrics_callback": Key(_Callable, "dotted path of a function from samples to figures", _TEXT),
    "joint_formatter": Key(_Callable, "MAAC: dotted path of what writes the critic's text", _TEXT),
    "callbacks": Key(_Models, "dotted paths of Callback classes, or names with kwargs"),
    "wandb_config": Key(dict[str, Any] | None, "arguments of wandb.init; null for no wandb"),
    "logdir": Key(
        str | None,
        "folder for TensorBoard and what else a run leaves; where it holds a run already, a number "
        "is added, unless args.resume says to go on",
    ),
    "output_dir": Key(str | None, "folder that the trained team is saved to"),
}

#: What a key's mapping stands for.
SPECS: dict[str, type] = {
    "env": EnvSource,
    "eval_env": EnvSource,
    "train_dataset": DataSource,
    "eval_dataset": DataSource,
    **dict.fromkeys(("agent_model", "agents", "critic_model", "critics", "callbacks"), Named),
    **dict.fromkeys(("reward_func", "reward_processor", "formatters"), Named),
    **dict.fromkeys(("external_transition", "metrics_callback", "joint_formatter"), Named),
    "guidance": Named,
}


def keys_of(algorithm: str) -> dict[str, Key]:
    """The keys beside ``args`` that a configuration of this algorithm may have."""
    return {name: key for name, key in KEYS.items() if algorithm in key.learners}


def fields_of(algorithm: str) -> list[str]:
    """The names in ``args``."""
    return [entry.name for entry in fields(CONFIGS[algorithm])]


def unknown_key(what: str, name: str, algorithm: str, known: Iterable[str]) -> UsageError:
    """The error about a key that this algorithm has not: another one may."""
    key = KEYS.get(name.removeprefix("--").partition(".")[0].rstrip("+"))
    if key is not None and algorithm not in key.learners:
        return _belongs(f"{what} {name}", key.learners, algorithm)
    return unknown(what, name, known)


def unknown_field(what: str, name: str, algorithm: str) -> UsageError:
    """The error about a field of ``args`` that this algorithm has not: another one may."""
    others = [other for other in CONFIGS if name in fields_of(other)]
    if others:
        return _belongs(f"{what} args.{name}", others, algorithm)
    return unknown(what, f"args.{name}", [f"args.{one}" for one in fields_of(algorithm)])


def _belongs(what: str, learners: Iterable[str], algorithm: str) -> UsageError:
    named = list(learners)
    return UsageError(
        f"{what} belongs to {' and '.join(named)}, not to {algorithm}; leave it out, or set "
        f"algorithm: {' or '.join(named)}"
    )
