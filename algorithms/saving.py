"""A team on disk.

``agent_0``, ``agent_1``, ... are folders that transformers' ``from_pretrained`` loads (model and
tokenizer); ``critic_0``, ... likewise. A value head lies beside its trunk in
``value_head.safetensors``. ``team.json`` says what is there and how prompts are written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from marlogue import __version__
from marlogue.agents import (
    Critic,
    LLMPolicy,
    ValueHead,
    load_causal_lm,
    load_tokenizer,
)
from marlogue.agents.quiet import progress_bars

_TEAM = "team.json"
_HEAD = "value_head.safetensors"


def save_team(policies: Sequence[LLMPolicy], critics: Sequence[Critic], folder: Path) -> None:
    """Save policies and critics; a critic that several agents share is saved once."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, policy in enumerate(policies):
        _save_model(policy, folder / f"agent_{index}")
    unique = list(dict.fromkeys(critics))
    for index, critic in enumerate(unique):
        _save_model(critic, folder / f"critic_{index}")
    about = {
        "marlogue": __version__,
        "agents": [_about(policy) for policy in policies],
        "critics": [
            {"value_head_hidden_dim": critic.value_head.head_hidden_dim} for critic in unique
        ],
    }
    (folder / _TEAM).write_text(json.dumps(about, indent=2), encoding="utf-8")


def load_weights(policies: Sequence[LLMPolicy], critics: Sequence[Critic], folder: Path) -> None:
    """Load what :func:`save_team` saved into existing models of the same kind.

    Raises:
        ValueError: when the folder holds another team; nothing is loaded then.
    """
    about = _read(folder)
    unique = list(dict.fromkeys(critics))
    for kind, saved, here in (
        ("agents", about["agents"], policies),
        ("critics", about["critics"], unique),
    ):
        if len(saved) != len(here):
            raise ValueError(
                f"{folder} holds {len(saved)} {kind}, but this trainer has {len(here)}; build the "
                "trainer as the one that saved it."
            )
    for index, policy in enumerate(policies):
        _load_into(policy, folder / f"agent_{index}")
    for index, critic in enumerate(unique):
        _load_into(critic, folder / f"critic_{index}")


def load_team(folder: str | Path) -> list[LLMPolicy]:
    """The policies of a saved team, ready to act.

    Raises:
        ValueError: when the folder holds no team.
    """
    folder = Path(folder)
    policies = []
    for index, about in enumerate(_read(folder)["agents"]):
        place = folder / f"agent_{index}"
        policy = LLMPolicy(
            load_causal_lm(place),
            load_tokenizer(place),
            chat_template=about["chat_template"],
            system_prompt=about["system_prompt"],
            max_prompt_tokens=about["max_prompt_tokens"],
            prompt_overflow=about["prompt_overflow"],
        )
        if (place / _HEAD).exists():
            policy.value_head = ValueHead(policy.trunk.width, about["value_head_hidden_dim"])
            policy.value_head.load_state_dict(load_file(place / _HEAD))
        policies.append(policy)
    return policies


def _about(policy: LLMPolicy) -> dict[str, Any]:
    return {
        "chat_template": policy.encode.chat_template,
        "system_prompt": policy.encode.system_prompt,
        "max_prompt_tokens": policy.encode.max_prompt_tokens,
        "prompt_overflow": policy.encode.prompt_overflow,
        "value_head_hidden_dim": policy.value_head.head_hidden_dim if policy.value_head else None,
    }


def _read(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / _TEAM).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no saved team: it has no {_TEAM}.") from error
    return about


def _save_model(part: LLMPolicy | Critic, place: Path) -> None:
    with progress_bars(False):
        part.model.save_pretrained(place)
    part.tokenizer.save_pretrained(place)
    if part.value_head is not None:
        save_file(part.value_head.state_dict(), place / _HEAD)


def _load_into(part: LLMPolicy | Critic, place: Path) -> None:
    with progress_bars(False):
        saved = type(part.model).from_pretrained(place, dtype=part.model.dtype)
    part.model.load_state_dict(saved.state_dict())
    if part.value_head is not None:
        part.value_head.load_state_dict(load_file(place / _HEAD))
