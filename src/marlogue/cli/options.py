"""The configuration: YAML files and options, read with jsonargparse and checked key by key."""

from __future__ import annotations

import json
import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from jsonargparse import (  # type: ignore[attr-defined]
    ActionConfigFile,
    ArgumentParser,
    Namespace,
)

from marlogue.algorithms import ActorCriticConfig, IACConfig, MAACConfig
from marlogue.cli.data import DataSource, EnvSource
from marlogue.cli.errors import UsageError, as_usage_errors, unknown
from marlogue.cli.lookup import Named

Algorithm = Literal["maac", "iac"]
CONFIGS: dict[str, type[ActorCriticConfig]] = {"maac": MAACConfig, "iac": IACConfig}

_Model = str | Named | None
_Models = list[str | Named] | None
_Callable = str | Named | None
#: Options of a command's own: type, default and help.
Own = Mapping[str, tuple[Any, Any, str]]

#: Keys of a configuration beside ``args``: their type and help.
KEYS: dict[str, tuple[Any, str]] = {
    "agent_model": (
        _Model,
        "the model that every agent starts from: smollm2, a folder, a hub name, or a name with "
        "kwargs of a function that makes a model with its tokenizer",
    ),
    "agents": (_Models, "one model per agent, instead of agent_model"),
    "critic_model": (_Model, "the model of the critic, or of each critic"),
    "critics": (_Models, "a list of critics' models, instead of critic_model"),
    "model_config": (
        dict[str, Any] | None,
        "how models are loaded and prompted: dtype, attn_implementation, model_kwargs, "
        "critic_model_kwargs, critic_value_head_hidden_dim, chat_template, system_prompt",
    ),
    "env": (str | EnvSource | None, "the environment: a task's name, or name, kwargs and rows"),
    "eval_env": (str | EnvSource | None, "the environment for evaluation"),
    "train_dataset": (str | DataSource | None, "instead of env: a file, or a hub name"),
    "eval_dataset": (str | DataSource | None, "the dataset for evaluation"),
    "reward_func": (_Callable, "dotted path of the reward function"),
    "reward_processor": (_Callable, "dotted path of a function from reward to reward"),
    "formatters": (
        str | Named | list[str | Named] | None,
        "dotted path of the formatter, or one per agent",
    ),
    "external_transition": (_Callable, "dotted path of what makes the prompts of later turns"),
    "guidance": (
        bool | str | Named | None,
        "dotted path of a function of (state, actions, infos) that gives advantages of what the "
        "agents say, or true for the environment's own",
    ),
    "metrics_callback": (_Callable, "dotted path of a function from samples to figures"),
    "joint_formatter": (_Callable, "MAAC: dotted path of what writes the critic's text"),
    "callbacks": (_Models, "dotted paths of Callback classes, or names with kwargs"),
    "wandb_config": (dict[str, Any] | None, "arguments of wandb.init; null for no wandb"),
    "logdir": (
        str | None,
        "folder for TensorBoard and transcripts; where it holds a run already, a number is added",
    ),
    "output_dir": (str | None, "folder that the trained team is saved to"),
}

_SPECS: dict[str, type] = {
    "env": EnvSource,
    "eval_env": EnvSource,
    "train_dataset": DataSource,
    "eval_dataset": DataSource,
    **dict.fromkeys(("agent_model", "agents", "critic_model", "critics", "callbacks"), Named),
    **dict.fromkeys(("reward_func", "reward_processor", "formatters"), Named),
    **dict.fromkeys(("external_transition", "metrics_callback", "joint_formatter"), Named),
    "guidance": Named,
}


@dataclass
class Settings:
    """A configuration that was read.

    Attributes:
        algorithm: "maac" or "iac".
        args: its configuration.
        values: the other keys, see ``KEYS``, and the command's own.
        text: all of it as YAML.
        folders: where the configuration files lie.
    """

    algorithm: str
    args: ActorCriticConfig
    values: dict[str, Any]
    text: str
    folders: list[Path]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


def read(command: str, words: Sequence[str], own: Own) -> Settings:
    """Read the options of a command, and the files that they name.

    Args:
        command: its name, for help and messages.
        words: the command line after it. An option of ``args`` may leave out ``args.``.
        own: the command's own options: type, default and help.

    Raises:
        UsageError: when an option or key is unknown, or a value does not fit.
        SystemExit: after ``--help`` or ``--print_config``.
    """
    files = _config_files(words)
    contents = [(file, _load(file)) for file in files]
    algorithm = _algorithm(words, [content for _, content in contents])
    parser = _parser(command, algorithm, own)
    for file, content in contents:
        _check_keys(content, algorithm, own, str(file))
    words = _spelt_out(_completed(words, algorithm, own), [content for _, content in contents])
    try:
        parsed = parser.parse_args(words)
    except ArgumentError as error:
        raise UsageError(plain(str(error))) from None
    kept = {key: _plain_value(parsed[key]) for key in ("algorithm", *KEYS, "args")}
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)
    with as_usage_errors():
        args = CONFIGS[algorithm](**parsed.args.as_dict())
    values = {key: _unwrapped(parsed[key]) for key in (*KEYS, *own)}
    return Settings(algorithm, args, values, text, [file.parent for file in files])


def plain(message: str) -> str:
    """One line of what jsonargparse says about a value of the wrong type."""
    key = re.search(r'Parser key "([^"]+)"', message)
    value = re.search(r"(?:Given value|Got value): (.*)", message)
    types = re.findall(r"Expected an? (.+?)(?:\. Got value.*)?$", message, flags=re.MULTILINE)
    if key is None or value is None or not types:
        return " ".join(message.split())
    names = [re.sub(r"<class '(?:\w+\.)*(\w+)'>|typing\.", r"\1", kind) for kind in types]
    names = [re.sub(r"dot import path string: .*", "mapping", name) for name in names]
    stray = re.search(r"Option '(.+)' is not accepted", message)
    if stray is not None:
        names.append(f"a mapping without {stray[1]}, which is no key of it")
    names = sorted(dict.fromkeys(names), key=lambda name: name == "NoneType")  # null comes last
    wanted = " or ".join("null" if name == "NoneType" else name for name in names)
    return f"{key[1]} ({value[1].strip()}) must be {wanted}"


def _parser(command: str, algorithm: str, own: Own) -> ArgumentParser:
    parser = ArgumentParser(
        prog=f"marlogue {command}",
        exit_on_error=False,
        description="Keys of the YAML file are options too; later ones win. An option of args may "
        "leave out args. (--seed for --args.seed). Dotted paths are looked up in the current "
        "directory and beside the configuration file, too.",
    )
    parser.add_argument("--config", action=ActionConfigFile, help="a YAML file with these keys")
    for name, (kind, default, text) in own.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    parser.add_argument(
        "--algorithm", type=Algorithm, default="maac", help="the learner; it decides about args"
    )
    for name, (kind, text) in KEYS.items():
        parser.add_argument(f"--{name}", type=kind, default=None, help=text)
    parser.add_class_arguments(CONFIGS[algorithm], "args")
    return parser


def _config_files(words: Sequence[str]) -> list[Path]:
    files = []
    for position, word in enumerate(words):
        if word == "--config" and position + 1 < len(words):
            files.append(Path(words[position + 1]))
        elif word.startswith("--config="):
            files.append(Path(word.partition("=")[2]))
    return files


def _load(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"config ({file}) cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"config ({file}) is no YAML: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"config ({file}) must hold keys and values")
    return content


def _algorithm(words: Sequence[str], contents: Sequence[Mapping[str, Any]]) -> str:
    """The learner, which has to be known before the rest can be read."""
    said = [content["algorithm"] for content in contents if "algorithm" in content]
    for position, word in enumerate(words):
        if word == "--algorithm" and position + 1 < len(words):
            said.append(words[position + 1])
        elif word.startswith("--algorithm="):
            said.append(word.partition("=")[2])
    algorithm = said[-1] if said else "maac"
    if algorithm not in get_args(Algorithm):
        raise UsageError(f"algorithm ({algorithm}) must be one of {', '.join(get_args(Algorithm))}")
    return str(algorithm)


def _fields(algorithm: str) -> list[str]:
    return [entry.name for entry in fields(CONFIGS[algorithm])]


def _check_keys(
    content: Mapping[str, Any],
    algorithm: str,
    own: Mapping[str, Any],
    file: str,
) -> None:
    for key in content:
        if key not in KEYS and key not in own and key not in ("algorithm", "args"):
            known = [*KEYS, *own, "algorithm", "args", *(f"args.{f}" for f in _fields(algorithm))]
            raise unknown(f"{file}: the key", str(key), known)
    args = content.get("args") or {}
    if not isinstance(args, dict):
        raise UsageError(f"{file}: args ({args!r}) must hold the fields of the configuration")
    for key in args:
        if key not in _fields(algorithm):
            raise _unknown_field(f"{file}: the key", str(key), algorithm)
    for key, kind in _SPECS.items():
        given = content.get(key)
        for entry in given if isinstance(given, list) else [given]:
            if isinstance(entry, dict):
                known = [field.name for field in fields(kind)]
                for name in entry:
                    if name not in known:
                        full = [f"{key}.{one}" for one in known]
                        raise unknown(f"{file}: the key", f"{key}.{name}", full)


def _completed(words: Sequence[str], algorithm: str, own: Mapping[str, Any]) -> list[str]:
    """The command line with ``args.`` put in where it was left out, and no unknown option."""
    names = _fields(algorithm)
    known = {"config", "print_config", "help", "algorithm", *KEYS, *own}
    completed: list[str] = []
    for position, word in enumerate(words):
        option, equals, value = word.partition("=")
        before = words[position - 1] if position else ""
        if before.endswith(".rows") and before.startswith("--"):
            completed.append(_slice(word))
            continue
        name = option[2:]
        if not option.startswith("--") or not name:
            completed.append(word)
            continue
        if name in names and name not in known:
            option = f"--args.{name}"
        elif name.startswith("args.") and name[5:] not in names:
            raise _unknown_field("the option", name[5:], algorithm)
        elif any(name in _fields(other) for other in CONFIGS) and name not in known:
            raise _unknown_field("the option", name, algorithm)
        elif not name.startswith("args.") and not _is_known(name, known):
            raise unknown("the option", f"--{name}", [f"--{one}" for one in (*known, *names)])
        value = _slice(value) if option.endswith(".rows") else value
        completed.append(f"{option}{equals}{value}")
    return completed


def _slice(value: str) -> str:
    """A slice of rows, quoted where YAML would take it for a mapping (24:) or a time (1:30)."""
    is_slice = re.fullmatch(r"\d*:\d*", value)
    return json.dumps(value) if is_slice and yaml.safe_load(value) != value else value


def _spelt_out(words: Sequence[str], contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """The command line with ``env: NAME`` written as ``env: {name: NAME}`` before an option such
    as ``--env.kwargs.num_turns``, which adds to it."""
    words = list(words)
    for key, kind in _SPECS.items():
        position = next((k for k, word in enumerate(words) if word.startswith(f"--{key}.")), None)
        said = [content[key] for content in contents if key in content]
        if position is not None and said and isinstance(said[-1], str):
            first = fields(kind)[0].name
            words[position:position] = [f"--{key}", json.dumps({first: said[-1]})]
    return words


def _is_known(name: str, known: set[str]) -> bool:
    """A key, or one within it (``env.kwargs.num_turns``, ``agents+``, ``env.help``)."""
    first, dot, rest = name.partition(".")
    if first.rstrip("+") not in known:
        return False
    if not dot or rest == "help" or first not in _SPECS:
        return True
    return rest.partition(".")[0] in [field.name for field in fields(_SPECS[first])]


def _unknown_field(what: str, name: str, algorithm: str) -> UsageError:
    for other in CONFIGS:
        if name in _fields(other):
            return UsageError(
                f"{what} args.{name} belongs to {other}, not to {algorithm}; leave it out, or set "
                f"algorithm: {other}"
            )
    return unknown(what, f"args.{name}", [f"args.{one}" for one in _fields(algorithm)])


def _plain_value(value: Any) -> Any:
    """jsonargparse's namespaces as dicts."""
    if isinstance(value, list | tuple):
        return [_plain_value(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _plain_value(entry) for key, entry in value.items()}
    return _plain_value(value.as_dict()) if isinstance(value, Namespace) else value


def _unwrapped(value: Any) -> Any:
    """jsonargparse's namespaces as the dataclasses that they stand for."""
    if isinstance(value, list):
        return [_unwrapped(entry) for entry in value]
    if not isinstance(value, Namespace):
        return value
    content = value.as_dict()
    if "split" in content:
        return DataSource(**content)
    return EnvSource(**content) if "rows" in content else Named(**content)
