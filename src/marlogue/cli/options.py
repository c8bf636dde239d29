"""The configuration: YAML files and options, read with jsonargparse and checked key by key."""

from __future__ import annotations

import json
import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import yaml
from jsonargparse import (  # type: ignore[attr-defined]
    ActionConfigFile,
    ArgumentParser,
    Namespace,
)

from marlogue.algorithms import ActorCriticConfig
from marlogue.cli.data import DataSource, EnvSource
from marlogue.cli.errors import UsageError, as_usage_errors, unknown
from marlogue.cli.keys import (
    CONFIGS,
    SPECS,
    Algorithm,
    Config,
    fields_of,
    keys_of,
    unknown_field,
    unknown_key,
)
from marlogue.cli.lookup import Named

#: Options of a command's own: type, default and help.
Own = Mapping[str, tuple[Any, Any, str]]


@dataclass
class Settings:
    """A configuration that was read.

    Attributes:
        algorithm: "maac", "iac" or "aac".
        args: its configuration.
        values: the other keys, see :mod:`marlogue.cli.keys`, and the command's own.
        text: all of it as YAML.
        folders: where the configuration files lie.
    """

    algorithm: str
    args: Config
    values: dict[str, Any]
    text: str
    folders: list[Path]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def text_args(self) -> ActorCriticConfig:
        """``args`` of a learner of texts."""
        assert isinstance(self.args, ActorCriticConfig)
        return self.args


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
    files = [Path(name) for name in _values(words, "--config")]
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
    keys = keys_of(algorithm)
    kept = {key: _plain_value(parsed[key]) for key in ("algorithm", *keys, "args")}
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)
    with as_usage_errors():
        args = CONFIGS[algorithm](**parsed.args.as_dict())
    values = {key: _unwrapped(parsed[key]) for key in (*keys, *own)}
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
    for name, key in keys_of(algorithm).items():
        parser.add_argument(f"--{name}", type=key.kind, default=None, help=key.text)
    parser.add_class_arguments(CONFIGS[algorithm], "args")
    return parser


def _values(words: Sequence[str], option: str) -> list[str]:
    """What the command line gives for an option, in order."""
    found = []
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option and equals:
            found.append(value)
        elif name == option and position + 1 < len(words):
            found.append(words[position + 1])
    return found


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
    said += _values(words, "--algorithm")
    algorithm = said[-1] if said else "maac"
    if algorithm not in get_args(Algorithm):
        raise UsageError(f"algorithm ({algorithm}) must be one of {', '.join(get_args(Algorithm))}")
    return str(algorithm)


def _check_keys(
    content: Mapping[str, Any],
    algorithm: str,
    own: Mapping[str, Any],
    file: str,
) -> None:
    names = fields_of(algorithm)
    keys = {*keys_of(algorithm), *own, "algorithm", "args"}
    for key in content:
        if key not in keys:
            known = [*keys, *(f"args.{name}" for name in names)]
            raise unknown_key(f"{file}: the key", str(key), algorithm, known)
    args = content.get("args") or {}
    if not isinstance(args, dict):
        raise UsageError(f"{file}: args ({args!r}) must hold the fields of the configuration")
    for key in args:
        if key not in names:
            raise unknown_field(f"{file}: the key", str(key), algorithm)
    for key, kind in SPECS.items():
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
    names = fields_of(algorithm)
    known = {"config", "print_config", "help", "algorithm", *keys_of(algorithm), *own}
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
            raise unknown_field("the option", name[5:], algorithm)
        elif any(name in fields_of(other) for other in CONFIGS) and name not in known:
            raise unknown_field("the option", name, algorithm)
        elif not name.startswith("args.") and not _is_known(name, known):
            options = [f"--{one}" for one in (*known, *names)]
            raise unknown_key("the option", f"--{name}", algorithm, options)
        value = _slice(value) if option.endswith(".rows") else value
        completed.append(f"{option}{equals}{value}")
    return completed


def _slice(value: str) -> str:
    """A slice of rows, quoted where YAML would take it for a mapping (24:) or a time (1:30)."""
    is_slice = re.fullmatch(r"\d*:\d*", value)
    return json.dumps(value) if is_slice and yaml.safe_load(value) != value else value


def _spelt_out(words: Sequence[str], contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """The command line with ``env: NAME`` (or ``--env NAME``) written as ``env: {name: NAME}``
    before an option such as ``--env.kwargs.num_turns``, which adds to it."""
    words = list(words)
    for key, kind in SPECS.items():
        position = next((k for k, word in enumerate(words) if word.startswith(f"--{key}.")), None)
        said = [content[key] for content in contents if key in content]
        said += [
            {} if value.lstrip().startswith("{") else value
            for value in _values(words[:position], f"--{key}")
        ]
        if position is not None and said and isinstance(said[-1], str):
            first = fields(kind)[0].name
            words[position:position] = [f"--{key}", json.dumps({first: said[-1]})]
    return words


def _is_known(name: str, known: set[str]) -> bool:
    """A key, or one within it (``env.kwargs.num_turns``, ``agents+``, ``env.help``)."""
    first, dot, rest = name.partition(".")
    if first.rstrip("+") not in known:
        return False
    if not dot or rest == "help" or first not in SPECS:
        return True
    return rest.partition(".")[0] in [field.name for field in fields(SPECS[first])]


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
