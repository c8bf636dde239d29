"""Networks of actor-attention-critic on disk.

``aac.json`` says what team and configuration they are for; each network is a safetensors file of
its name. Nothing in a folder is run when it is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from marlogue import __version__
from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.aac_config import AACConfig, plain
from marlogue.algorithms.aac_networks import AACNetworks
from marlogue.algorithms.normalizers import ObservationNormalizer, RewardScaler

_ABOUT = "aac.json"
_OTHER = "other"  # what is no network of its own
#: What weights mean depends on these, and the shape of none of them shows it.
_SAME = (
    "critic_architecture",
    "attention",
    "num_heads",
    "layer_norm",
    "normalize_observations",
    "scale_rewards",
)


def save_networks(
    folder: Path,
    args: AACConfig,
    networks: AACNetworks,
    observations: ObservationNormalizer | None,
    rewards: RewardScaler | None,
) -> None:
    """Save networks and running statistics."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in networks.modules().items():
        save_file(_state(module), folder / f"{name}.safetensors")
    save_file(_other(networks, observations, rewards), folder / f"{_OTHER}.safetensors")
    about = {
        "marlogue": __version__,
        "args": plain(args),
        "team": describe(networks.team),
        "groups": _groups(args, networks),
        "networks": sorted(networks.modules()),
    }
    (folder / _ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")


def load_networks(
    folder: Path,
    args: AACConfig,
    networks: AACNetworks,
    observations: ObservationNormalizer | None,
    rewards: RewardScaler | None,
) -> None:
    """Load what `save_networks` saved into networks of the same kind, for the same or (where the
    networks fit it) another number of agents.

    Raises:
        ValueError: when the folder holds other networks; nothing is loaded then.
    """
    about = read_about(folder)
    own = plain(args)
    alike = [(name, about["args"][name], own[name]) for name in _SAME]
    for name, saved, here in [*alike, ("groups", about["groups"], _groups(args, networks))]:
        if saved != here:
            raise ValueError(
                f"{name} of the networks in {folder} ({saved!r}) must be what it is here "
                f"({here!r}), or their weights mean something else; build the trainer with the "
                f"configuration that saved them (see args in {_ABOUT})."
            )
    modules = networks.modules()
    if about["networks"] != sorted(modules):
        raise ValueError(
            f"{folder} holds the networks {about['networks']}, but here are {sorted(modules)}; "
            "build the trainer with the configuration that saved them (see args in "
            f"{_ABOUT})."
        )
    states = {name: load_file(folder / f"{name}.safetensors") for name in modules}
    other = load_file(folder / f"{_OTHER}.safetensors")
    for name, module in modules.items():
        _check(folder, name, states[name], _state(module))
    _check(folder, _OTHER, other, _other(networks, observations, rewards))
    for name, module in modules.items():
        module.load_state_dict(states[name], strict=False)  # all of `_state` is there
    with torch.no_grad():
        networks.log_temperature.copy_(other["log_temperature"])
    for prefix, statistics in (("observations", observations), ("rewards", rewards)):
        if statistics is not None:
            known = {k.partition(".")[2]: v.numpy() for k, v in other.items() if prefix in k}
            statistics.load_state_dict(known)


def read_about(folder: Path) -> dict[str, Any]:
    """What a folder says about the networks in it.

    Raises:
        ValueError: when it holds none.
    """
    try:
        about: dict[str, Any] = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder} holds no networks of AAC: it has no {_ABOUT}; name the folder that "
            "save_model was given."
        ) from error
    return about


def describe(team: TeamSpec) -> dict[str, Any]:
    """A team's names and sizes."""
    return {
        "agents": list(team.agents),
        "observation_sizes": list(team.observation_sizes),
        "action_sizes": list(team.action_sizes),
        "discrete": team.discrete,
    }


def _groups(args: AACConfig, networks: AACNetworks) -> list[Any]:
    """Whose each set of weights is, in order: sizes of types, or agents' names."""
    first = networks.actors.sharing.first_team
    if args.sharing == "none":
        return list(first.agents)
    if args.sharing == "all":
        return []
    sizes = zip(first.types, first.observation_sizes, first.action_sizes, strict=True)
    return [list(of_type) for of_type in dict.fromkeys(sizes)]


def _state(module: nn.Module) -> dict[str, Tensor]:
    """What a network knows, without tables of no width, whose length is that of the team."""
    states = module.state_dict().items()
    return {name: value.contiguous() for name, value in states if value.numel()}


def _other(
    networks: AACNetworks,
    observations: ObservationNormalizer | None,
    rewards: RewardScaler | None,
) -> dict[str, Tensor]:
    found = {"log_temperature": networks.log_temperature.detach().clone()}
    for prefix, statistics in (("observations", observations), ("rewards", rewards)):
        if statistics is not None:
            for name, array in statistics.state_dict().items():
                found[f"{prefix}.{name}"] = torch.from_numpy(array)
    return found


def _check(folder: Path, name: str, saved: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    missing = [key for key in own if key not in saved or saved[key].shape != own[key].shape]
    if missing:
        key = min(missing)
        there = list(saved[key].shape) if key in saved else "nothing"
        raise ValueError(
            f"{name} in {folder} has {there} where {list(own[key].shape)} is needed ({key}); build "
            f"the trainer with the configuration that saved it (see args in {_ABOUT})."
        )
