"""Teams made from sizes, and what they see and do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from marlogue.agents import TeamSpec


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def team_of(
    observation_sizes: Sequence[int], action_sizes: Sequence[int], discrete: bool = True
) -> TeamSpec:
    """One agent per size, ``a0, a1, ...``; continuous actions are in [-1, 1]."""
    names = [f"a{i}" for i in range(len(observation_sizes))]
    return TeamSpec.of_spaces(
        {n: Box(-9.0, 9.0, (d,)) for n, d in zip(names, observation_sizes, strict=True)},
        {
            n: Discrete(a) if discrete else Box(-1.0, 1.0, (a,))
            for n, a in zip(names, action_sizes, strict=True)
        },
    )


def batch_of(team: TeamSpec, batch_size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Observations [B, N, D] and actions of a team, padded, in float64."""
    generator = seeded(seed)
    N, D, A = team.num_agents, team.observation_size, team.action_size
    seen = torch.randn(batch_size, N, D, generator=generator, dtype=torch.float64)
    seen = seen * (torch.arange(D) < torch.tensor(team.observation_sizes)[:, None])
    sizes = torch.tensor(team.action_sizes)
    noise = torch.rand(batch_size, N, A, generator=generator, dtype=torch.float64)
    if team.discrete:
        return seen, (noise[..., 0] * sizes).long()
    return seen, (2 * noise - 1) * team.action_mask()


def joint_actions(own: Tensor, others: Tensor) -> Tensor:
    """[B, N, N, A]: for each agent i the joint action, ``own`` at i and ``others`` elsewhere."""
    count = own.shape[1]
    itself = torch.eye(count, dtype=torch.bool, device=own.device)[None, :, :, None]
    return torch.where(itself, own[:, None], others[:, None])
