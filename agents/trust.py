"""What a model's files may do when they are loaded: hold numbers and texts, and nothing more.

Weights come from safetensors; a pickle (`pytorch_model.bin`) can run code while it is read. Code
that comes with a model (`auto_map` in its configuration) is run only where the user says so, with
`trust_remote_code`. A configuration cannot choose an attention kernel from a hub either: such a
kernel is code, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

TRUST = "trust_remote_code"
_SAFE = "use_safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt")
#: Arguments of ``from_pretrained`` that say where a configuration lies.
_WHERE = ("revision", "subfolder", "token", "cache_dir", "local_files_only", "proxies", "gguf_file")


def trusting_arguments(source: str | Path, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` under which nothing is run that comes with a model, unless
    they say ``trust_remote_code=True``; that is told in a warning.

    Args:
        source: a folder or hub id.
        kwargs: what the user wants.

    Raises:
        TypeError: when ``trust_remote_code`` is neither True nor False.
        ValueError: when pickles would be read, or the model wants a kernel from a hub.
    """
    trusted = checked_trust(source, kwargs.get(TRUST, False))
    if "gguf_file" in kwargs:  # a format of its own, without code
        return {**kwargs, TRUST: trusted}
    if kwargs.get(_SAFE) not in (None, True):
        raise ValueError(f"{_SAFE} ({kwargs[_SAFE]!r}) must be True. {_mend(source)}")
    refuse_pickles(source, kwargs.get("subfolder") or "")
    if kwargs.get("attn_implementation") is None:
        _refuse_kernels(source, kwargs)
    return {**kwargs, _SAFE: True, TRUST: trusted}


def checked_trust(source: str | Path, trusted: Any) -> bool:
    """Whether code that comes with a model is run; where it is, a warning says so.

    Raises:
        TypeError: when it is neither True nor False: the text "false" would count as yes.
    """
    if not isinstance(trusted, bool):
        raise TypeError(f"{TRUST} ({trusted!r}) must be True or False.")
    if trusted:
        warnings.warn(
            f"{TRUST} is set: code that comes with {str(source)!r} is run, with all that you may "
            "do here.",
            stacklevel=4,
        )
    return trusted


def refuse_pickles(source: str | Path, subfolder: str = "") -> None:
    """Refuse a folder whose weights are pickles only.

    Raises:
        ValueError: names them, and how to convert them.
    """
    folder = Path(source) / subfolder
    if not folder.is_dir() or any(folder.glob("*model*.safetensors")):
        return
    found = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if found:
        raise ValueError(f"{str(source)!r} holds its weights in {found[0]}. {_mend(source)}")


def untrusted_code(error: Exception) -> bool:
    """Whether a model could not be loaded since its code was not to be run."""
    return TRUST in str(error)


def mend_of_untrusted(source: str | Path) -> str:
    """What to say then."""
    return (
        f"{str(source)!r} comes with code of its own, which is not run; if you trust it, set "
        f"{TRUST} to true in model_kwargs of model_config (critic_model_kwargs for a critic)."
    )


def _mend(source: str | Path) -> str:
    return (
        "It is a pickle, which can run code while it is read; where you trust it, convert it once: "
        f"AutoModelForCausalLM.from_pretrained({str(source)!r}).save_pretrained(NEW_FOLDER)."
    )


def _refuse_kernels(source: str | Path, kwargs: Mapping[str, Any]) -> None:
    where = {name: kwargs[name] for name in _WHERE if name in kwargs}
    try:
        config, _ = PreTrainedConfig.get_config_dict(str(source), **where)
    except (OSError, ValueError):
        return  # from_pretrained will say it
    for name, value in _entries(config):
        if "attn_implementation" in name and isinstance(value, str) and "/" in value:
            raise ValueError(
                f"{str(source)!r} asks for the attention kernel {value!r}, which would be code "
                "from a hub; if you trust it, set attn_implementation in model_config."
            )


def _entries(config: Any) -> Iterator[tuple[str, Any]]:
    """All values in nested dicts and lists, each with its key (that of the dict above, where the
    values of a dict are meant)."""
    waiting: list[tuple[str, Any]] = [("", config)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            kept = name if "attn_implementation" in name else ""
            waiting.extend((kept or str(key), inner) for key, inner in value.items())
        elif isinstance(value, list):
            waiting.extend((name, inner) for inner in value)
        else:
            yield name, value
