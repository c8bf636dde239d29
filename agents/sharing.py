"""Which weights each agent of a team uses, and how a network tells agents apart."""

from __future__ import annotations

import copy
from typing import Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from marlogue.agents.teams import TeamSpec

SharingName = Literal["all", "type", "none"]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Sharing(nn.Module):
    """Groups of agents that share weights, and learned vectors that name each agent.

    Args:
        team: the agents.
        sharing: "all" share one set of weights, "type" one per type of agent (equal spaces),
            "none" one per agent.
        id_embedding: E, numbers in the vector that names an agent to the network; 0 for none.
        max_agents: rows of the table of these vectors, for a curriculum over the number of
            agents; None for N.
        generator: source of the initial vectors, N(0, 0.1).

    Attributes:
        num_groups: G, sets of weights.
        groups: [N] long, the group of each agent.
        rows: [N] long, the row of each agent in the table.
        ids: [max_agents, E].

    Raises:
        ValueError: for an unknown sharing, or fewer rows than agents.
    """

    groups: Tensor
    rows: Tensor

    def __init__(
        self,
        team: TeamSpec,
        sharing: SharingName = "type",
        id_embedding: int = 0,
        max_agents: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if sharing not in ("all", "type", "none"):
            raise ValueError(f"sharing ({sharing!r}) must be 'all', 'type' or 'none'.")
        if id_embedding < 0:
            raise ValueError(f"id_embedding ({id_embedding}) must be at least 0.")
        capacity = team.num_agents if max_agents is None else max_agents
        if capacity < team.num_agents:
            raise ValueError(
                f"max_agents ({capacity}) must be at least the number of agents "
                f"({team.num_agents})."
            )
        self.sharing = sharing
        self.first_team = team
        sets = {"all": 1, "type": len(team.kinds), "none": team.num_agents}
        self.num_groups = sets[sharing]
        table = torch.empty(capacity, id_embedding).normal_(std=0.1, generator=generator)
        self.ids = nn.Parameter(table)
        self.register_buffer("groups", self._groups(team), persistent=False)
        self.register_buffer("rows", self._table_rows(team), persistent=False)

    def for_team(self, team: TeamSpec) -> Self:
        """The same weights for another team.

        Agents keep the vectors of their names; new ones take the next rows.

        Raises:
            ValueError: when an agent has no weights here, or the table has too few rows.
        """
        twin = sharing_parameters(self)
        twin.groups = self._groups(team).to(self.groups.device)
        twin.rows = self._table_rows(team).to(self.rows.device)
        return twin

    def width(self, size: int) -> int:
        """Numbers in a token of ``size`` numbers and the agent's vector."""
        return size + self.ids.shape[1]

    def tokens(self, parts: list[Tensor], agents: Tensor | None) -> Tensor:
        """Parts [..., n, x] and the agents' vectors, in one token each: [..., n, sum of x + E].

        Args:
            parts: what the network reads.
            agents: [..., n] long, whose they are; None for all N in order.
        """
        if self.ids.shape[1]:
            names = self.ids[self.rows if agents is None else self.rows[agents]]
            parts = [*parts, names.expand(*parts[0].shape[:-1], -1)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def groups_of(self, agents: Tensor | None) -> Tensor | None:
        """The groups [..., n] of agents [..., n] (None: all N in order); None when there is one."""
        if self.num_groups == 1:
            return None
        return self.groups if agents is None else self.groups[agents]

    def _groups(self, team: TeamSpec) -> Tensor:
        known = self.first_team
        if self.sharing == "all":
            return torch.zeros(team.num_agents, dtype=torch.long)
        if self.sharing == "none":
            unknown = [agent for agent in team.agents if agent not in known.agents]
            if unknown:
                raise ValueError(
                    f"agents {unknown} must be of the team that the weights were made for "
                    f"({list(known.agents)}); set sharing='type' or 'all' for teams that grow."
                )
            return torch.tensor([known.agents.index(agent) for agent in team.agents])
        for kind in team.kinds:
            if kind not in known.kinds:
                raise ValueError(
                    f"spaces {kind} must be those of a type of agent that the weights were made "
                    f"for ({list(known.kinds)}); set sharing='all' when only bounds differ."
                )
        return torch.tensor([known.kinds.index(team.kinds[kind]) for kind in team.types])

    def _table_rows(self, team: TeamSpec) -> Tensor:
        known = {agent: row for row, agent in enumerate(self.first_team.agents)}
        for agent in team.agents:
            known.setdefault(agent, len(known))
        if self.ids.shape[1] and len(known) > len(self.ids):
            raise ValueError(
                f"max_agents ({len(self.ids)}) must be at least the number of agents' names "
                f"({len(known)}); set max_agents when the networks are made, or id_embedding=0."
            )
        rows = [known[agent] for agent in team.agents]
        return torch.tensor(rows) if self.ids.shape[1] else torch.zeros_like(torch.tensor(rows))


def sharing_parameters(module: ModuleT) -> ModuleT:
    """A copy with the same parameters and submodules, whose own attributes can be replaced."""
    twin = copy.copy(module)
    for name in ("_parameters", "_buffers", "_modules"):
        twin.__dict__[name] = dict(module.__dict__[name])
    return twin


class TeamModule(nn.Module):
    """A network for all agents of a team, whose parameters serve other teams too.

    Attributes:
        team: the agents that it is for now.
        sharing: whose weights are whose.
        exists: [N, A] bool, the actions (or numbers in an action) that an agent has.
    """

    team: TeamSpec
    sharing: Sharing
    exists: Tensor

    def __init__(self, team: TeamSpec, sharing: Sharing) -> None:
        super().__init__()
        self.team, self.sharing = team, sharing
        self.register_buffer("exists", team.action_mask(), persistent=False)

    def for_team(self, team: TeamSpec) -> Self:
        """The same networks (the parameters themselves) for another team, for instance a larger
        one with the same types of agents.

        Raises:
            ValueError: when the networks do not fit it.
        """
        require_sizes(self.team, team)
        twin = sharing_parameters(self)
        twin.team, twin.sharing = team, self.sharing.for_team(team)
        twin.exists = team.action_mask().to(self.exists.device)
        return twin


def require_sizes(team: TeamSpec, other: TeamSpec) -> None:
    """Check that networks of a team fit another one.

    Raises:
        ValueError: when their padded sizes or kinds of action differ.
    """
    made = (team.observation_size, team.action_size, team.discrete)
    asked = (other.observation_size, other.action_size, other.discrete)
    if made != asked:
        raise ValueError(
            f"the team's observation size, action size and whether it is discrete {asked} must be "
            f"those that the networks were made for {made}; let observations have the same size "
            "at every number of agents."
        )
