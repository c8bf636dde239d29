"""Whom an agent attends to in local attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from marlogue.agents.attention import rows_of


class Neighbourhood(Protocol):
    """Lists the neighbours of each query agent.

    Attributes:
        num_neighbours: K, the most neighbours of an agent.
    """

    num_neighbours: int

    def __call__(
        self, observations: Tensor, present: Tensor | None, queries: Tensor | None
    ) -> Tensor:
        """Neighbours [B, M, K] or [M, K] (long, nobody twice, -1 for none) from observations
        [B, N, D], present [B, N] and queries [B, M]."""


class Nearest:
    """The K nearest agents by a position in the observations.

    Args:
        num_neighbours: K; fewer where fewer others are present.
        position: where the position is: indices into an observation, or
            `position(observations [B, N, D]) -> [B, N, P]`.

    Raises:
        ValueError: for K below 1 or no index.
    """

    def __init__(
        self, num_neighbours: int, position: Sequence[int] | Callable[[Tensor], Tensor]
    ) -> None:
        if num_neighbours < 1:
            raise ValueError(f"num_neighbours ({num_neighbours}) must be at least 1.")
        if not callable(position) and not list(position):
            raise ValueError(f"position ({position!r}) must name at least one index.")
        self.num_neighbours = num_neighbours
        self.position = position

    @torch.no_grad()
    def __call__(
        self, observations: Tensor, present: Tensor | None, queries: Tensor | None
    ) -> Tensor:
        """Neighbours [B, M, K], the nearest first."""
        places = self._places(observations)
        num_agents = observations.shape[1]
        agents = torch.arange(num_agents, device=observations.device)
        own = agents.expand(len(observations), -1) if queries is None else queries
        distances = torch.cdist(rows_of(places, queries), places)
        distances.scatter_(-1, own.unsqueeze(-1), torch.inf)
        if present is not None:
            distances.masked_fill_(~present.unsqueeze(1), torch.inf)
        count = min(self.num_neighbours, num_agents)
        near, index = distances.topk(count, -1, largest=False)
        return index.masked_fill(near.isinf(), -1)

    def _places(self, observations: Tensor) -> Tensor:
        if callable(self.position):
            places = self.position(observations)
            if places.ndim != 3 or places.shape[:2] != observations.shape[:2]:
                raise ValueError(
                    f"position returned {list(places.shape)}; it must return [B, N, P] for "
                    f"observations {list(observations.shape)}."
                )
            return places
        wrong = [i for i in self.position if not 0 <= i < observations.shape[-1]]
        if wrong:
            raise ValueError(
                f"position ({list(self.position)}) must hold indices into an observation of "
                f"{observations.shape[-1]} numbers; {wrong} are not."
            )
        return observations[..., list(self.position)]


class FixedGraph:
    """The same neighbours always.

    Args:
        neighbours: [N] lists of agents' indices; the own index and repetitions are refused.

    Attributes:
        table: [N, K] long, filled up with -1.

    Raises:
        ValueError: naming the agent whose list is wrong.
    """

    def __init__(self, neighbours: Sequence[Sequence[int]]) -> None:
        num_agents = len(neighbours)
        for agent, listed in enumerate(neighbours):
            inside = all(0 <= other < num_agents and other != agent for other in listed)
            if not inside or len(set(listed)) != len(listed):
                raise ValueError(
                    f"neighbours[{agent}] ({list(listed)}) must be different agents from 0 to "
                    f"{num_agents - 1} without {agent} itself."
                )
        self.num_neighbours = max(1, max(map(len, neighbours), default=0))
        self.table = torch.full((num_agents, self.num_neighbours), -1)
        for agent, listed in enumerate(neighbours):
            self.table[agent, : len(listed)] = torch.tensor(list(listed), dtype=torch.long)

    def __call__(
        self, observations: Tensor, present: Tensor | None, queries: Tensor | None
    ) -> Tensor:
        """Neighbours [N, K], or [B, M, K] of query agents."""
        if len(self.table) != observations.shape[1]:
            raise ValueError(
                f"neighbours (of {len(self.table)} agents) must be given for the "
                f"{observations.shape[1]} agents of the team; make a FixedGraph for this team."
            )
        table = self.table.to(observations.device)
        return table if queries is None else table[queries]
