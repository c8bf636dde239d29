"""What critics of teams read, and what they have in common."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from marlogue.agents.teams import TeamSpec


class TeamCritic(Protocol):
    """Values of each agent of a team; see `AttentionCritic` for shapes.

    Attributes:
        team: the agents and their spaces.
    """

    team: TeamSpec

    def __call__(
        self,
        observations: Tensor,
        actions: Tensor,
        present: Tensor | None = None,
        queries: Tensor | None = None,
        *,
        own_actions: Tensor | None = None,
    ) -> Tensor:
        """[B, M, A] for all own actions (discrete), or [B, M] (continuous)."""

    def team_value(
        self, values: Tensor, observations: Tensor, present: Tensor | None = None
    ) -> Tensor:
        """[B], from the values [B, N] of the actions taken."""


def check_inputs(
    team: TeamSpec,
    observations: Tensor,
    actions: Tensor,
    present: Tensor | None,
    queries: Tensor | None,
) -> None:
    """Check shapes and kinds, but no values: that would make a GPU wait.

    Raises:
        ValueError: naming the tensor, its shape and the right one.
    """
    B, N, D, A = len(observations), team.num_agents, team.observation_size, team.action_size
    wanted = {
        "observations": (observations, [B, N, D]),
        "actions": (actions, [B, N] if team.discrete else [B, N, A]),
        "present": (present, [B, N]),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and list(tensor.shape) != shape:
            raise ValueError(
                f"{name} ({list(tensor.shape)}) must be {shape}; pad observations and actions as "
                "TeamSpec says."
            )
    if team.discrete == actions.is_floating_point():
        kind = "indices (long)" if team.discrete else "floats"
        raise ValueError(f"actions ({actions.dtype}) must be {kind}.")
    if present is not None and present.dtype != torch.bool:
        raise ValueError(f"present ({present.dtype}) must be bool.")
    if queries is not None and (queries.ndim != 2 or len(queries) != B):
        raise ValueError(f"queries ({list(queries.shape)}) must be [{B}, M].")


def random_queries(
    num_agents: int,
    num_queries: int,
    batch_size: int,
    device: torch.device,
    present: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """M different agents per sample, [B, M] long, drawn evenly; absent ones only where fewer than
    M are present.

    Raises:
        ValueError: when M is not from 1 to N.
    """
    if not 1 <= num_queries <= num_agents:
        raise ValueError(
            f"num_queries ({num_queries}) must be from 1 to the number of agents ({num_agents})."
        )
    home = device if generator is None else generator.device
    keys = torch.rand(batch_size, num_agents, generator=generator, device=home).to(device)
    if present is not None:
        keys = keys + present
    return keys.topk(num_queries, -1, sorted=False).indices
