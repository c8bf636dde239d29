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

import torch
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

State = dict[str, torch.Tensor]

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
    parts: list[LLMPolicy | Critic] = [*policies, *unique]
    places = [folder / f"agent_{index}" for index in range(len(policies))]
    places += [folder / f"critic_{index}" for index in range(len(unique))]
    saved_states = [_read_states(part, place) for part, place in zip(parts, places, strict=True)]
    for part, (model, head) in zip(parts, saved_states, strict=True):
        part.model.load_state_dict(model)
        if part.value_head is not None:
            part.value_head.load_state_dict(head)


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


def _read_states(part: LLMPolicy | Critic, place: Path) -> tuple[State, State]:
    """The saved weights of model and value head, which fit those of ``part``."""
    with progress_bars(False):
        model = type(part.model).from_pretrained(place, dtype=part.model.dtype).state_dict()
    head = load_file(place / _HEAD) if (place / _HEAD).exists() else {}
    own_head = {} if part.value_head is None else part.value_head.state_dict()
    for what, saved, own in (("model", model, part.model.state_dict()), ("head", head, own_head)):
        unlike = [name for name in {*saved, *own} if _shape(saved, name) != _shape(own, name)]
        if unlike:
            raise ValueError(
                f"the {what} in {place} has other weights than this trainer's (for example "
                f"{min(unlike)}); build the trainer as the one that saved it."
            )
    return model, head


def _shape(state: State, name: str) -> torch.Size | None:
    return state[name].shape if name in state else None
