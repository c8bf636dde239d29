"""A team on disk.

``agent_0``, ``agent_1``, ... are folders that transformers' ``from_pretrained`` loads (model and
tokenizer); ``critic_0``, ... likewise. A value head lies beside its trunk in
``value_head.safetensors``, and the attention of a critic that has it in
``attention.safetensors``. ``team.json`` says what is there and how prompts are written.

Nothing in a folder is run when it is loaded: weights are safetensors, the rest is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from marlogue import __version__
from marlogue.agents import (
    Critic,
    LLMPolicy,
    TextAttentionCritic,
    ValueHead,
    load_causal_lm,
    load_tokenizer,
    load_trunk,
    read_weights,
)
from marlogue.agents.quiet import progress_bars
from marlogue.agents.trust import TRUST

State = dict[str, torch.Tensor]

_TEAM = "team.json"
_HEAD, _ATTENTION = "value_head", "attention"
_ABOUT_AGENT = {
    *("chat_template", "system_prompt", "max_prompt_tokens", "prompt_overflow"),
    "value_head_hidden_dim",
}
_ABOUT_CRITIC = {"value_head_hidden_dim"}


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
        "critics": [_about_critic(critic) for critic in unique],
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
    for index, (saved, critic) in enumerate(zip(about["critics"], unique, strict=True)):
        if saved.get("attention_heads") != _about_critic(critic)["attention_heads"]:
            raise ValueError(
                f"critic {index} in {folder} has attention_heads={saved.get('attention_heads')}, "
                f"but this trainer's has {_about_critic(critic)['attention_heads']}; build the "
                "trainer as the one that saved it."
            )
    parts: list[LLMPolicy | Critic] = [*policies, *unique]
    places = [folder / f"agent_{index}" for index in range(len(policies))]
    places += [folder / f"critic_{index}" for index in range(len(unique))]
    saved_states = [_read_states(part, place) for part, place in zip(parts, places, strict=True)]
    for part, states in zip(parts, saved_states, strict=True):
        for name, module in modules_of(part).items():
            module.load_state_dict(states[name])


def load_team(folder: str | Path, *, trust_remote_code: bool = False) -> list[LLMPolicy]:
    """The policies of a saved team, ready to act.

    Args:
        folder: what it was saved to.
        trust_remote_code: whether code that was saved with a model of a kind of its own is run.

    Raises:
        ValueError: when the folder holds no team, or one that is damaged or comes with code.
    """
    folder = Path(folder)
    policies = []
    for index, about in enumerate(_read(folder)["agents"]):
        place = folder / f"agent_{index}"
        policy = LLMPolicy(
            load_causal_lm(place, {TRUST: trust_remote_code}),
            load_tokenizer(place, trust_remote_code=trust_remote_code),
            chat_template=about["chat_template"],
            system_prompt=about["system_prompt"],
            max_prompt_tokens=about["max_prompt_tokens"],
            prompt_overflow=about["prompt_overflow"],
        )
        if _file(place, _HEAD).exists():
            policy.value_head = ValueHead(policy.trunk.width, about["value_head_hidden_dim"])
            policy.value_head.load_state_dict(_load(_file(place, _HEAD)))
        policies.append(policy)
    return policies


def load_critics(folder: str | Path, *, trust_remote_code: bool = False) -> list[Critic]:
    """The critics that were saved with a team; none where they are heads on the agents' trunks.

    Args:
        folder, trust_remote_code: as for :func:`load_team`.

    Raises:
        ValueError: when the folder holds no team, or one that is damaged or comes with code.
    """
    folder = Path(folder)
    critics: list[Critic] = []
    for index, about in enumerate(_read(folder)["critics"]):
        place = folder / f"critic_{index}"
        model = load_trunk(place, {TRUST: trust_remote_code})
        tokenizer = load_tokenizer(place, trust_remote_code=trust_remote_code)
        hidden_dim, heads = about["value_head_hidden_dim"], about.get("attention_heads")
        if heads is None:
            critic = Critic(model, tokenizer, value_head_hidden_dim=hidden_dim)
        else:
            attention = _load(_file(place, _ATTENTION))
            critic = TextAttentionCritic(
                model,
                tokenizer,
                len(attention["names"]),
                num_heads=heads,
                value_head_hidden_dim=hidden_dim,
            )
            critic.attention.load_state_dict(attention)
        critic.value_head.load_state_dict(_load(_file(place, _HEAD)))
        critics.append(critic)
    return critics


def _about(policy: LLMPolicy) -> dict[str, Any]:
    return {
        "chat_template": policy.encode.chat_template,
        "system_prompt": policy.encode.system_prompt,
        "max_prompt_tokens": policy.encode.max_prompt_tokens,
        "prompt_overflow": policy.encode.prompt_overflow,
        "value_head_hidden_dim": policy.value_head.head_hidden_dim if policy.value_head else None,
    }


def _about_critic(critic: Critic) -> dict[str, Any]:
    attention = critic.attention.others if isinstance(critic, TextAttentionCritic) else None
    return {
        "value_head_hidden_dim": critic.value_head.head_hidden_dim,
        "attention_heads": None if attention is None else attention.num_heads,
    }


def modules_of(part: LLMPolicy | Critic) -> dict[str, nn.Module]:
    """A model and what is saved beside it, by name."""
    return {"model": part.model, **_beside(part)}


def _beside(part: LLMPolicy | Critic) -> dict[str, nn.Module]:
    """What is saved beside a model, by the stem of its file."""
    modules: dict[str, nn.Module] = {}
    if part.value_head is not None:
        modules[_HEAD] = part.value_head
    if isinstance(part, TextAttentionCritic):
        modules[_ATTENTION] = part.attention
    return modules


def _file(place: Path, stem: str) -> Path:
    return place / f"{stem}.safetensors"


def _load(file: Path) -> State:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}.") from error


def _read(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / _TEAM).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no saved team: it has no {_TEAM}.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / _TEAM} is damaged: {error}.") from error
    for kind, known in (("agents", _ABOUT_AGENT), ("critics", _ABOUT_CRITIC)):
        parts = about.get(kind) if isinstance(about, dict) else None
        if not isinstance(parts, list) or not all(
            isinstance(part, dict) and known <= part.keys() for part in parts
        ):
            raise ValueError(
                f"{folder / _TEAM} is damaged: {kind} must be a list, with "
                f"{', '.join(sorted(known))} of each."
            )
    told: dict[str, Any] = about
    return told


def _save_model(part: LLMPolicy | Critic, place: Path) -> None:
    with progress_bars(False):
        part.model.save_pretrained(place)
    part.tokenizer.save_pretrained(place)
    for stem, module in _beside(part).items():
        save_file(module.state_dict(), _file(place, stem))


def _read_states(part: LLMPolicy | Critic, place: Path) -> dict[str, State]:
    """The saved weights of a model and what lies beside it, which fit those of ``part``."""
    states: dict[str, State] = {
        "model": read_weights(type(part.model), place, part.model.dtype),
    }
    for stem in (_HEAD, _ATTENTION):
        states[stem] = _load(_file(place, stem)) if _file(place, stem).exists() else {}
    own = {name: module.state_dict() for name, module in modules_of(part).items()}
    for what, saved in states.items():
        here = own.get(what, {})
        unlike = [name for name in {*saved, *here} if _shape(saved, name) != _shape(here, name)]
        if unlike:
            raise ValueError(
                f"the {what} in {place} has other weights than this trainer's (for example "
                f"{min(unlike)}); build the trainer as the one that saved it."
            )
    return states


def _shape(state: State, name: str) -> torch.Size | None:
    return state[name].shape if name in state else None
