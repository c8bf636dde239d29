"""What critics of numeric teams share, whatever they make of the others."""

from __future__ import annotations

import torch
from torch import Tensor

from marlogue.agents.attention import rows_of
from marlogue.agents.critic_inputs import random_queries
from marlogue.agents.dueling import dueling_values
from marlogue.agents.mixing import TeamHeadName, make_team_head
from marlogue.agents.mlp import Activation, GroupedMLP
from marlogue.agents.sharing import Sharing, TeamModule
from marlogue.agents.teams import TeamSpec


class VectorCriticBase(TeamModule):
    """The end of a critic: values of actions, and the team's value of them.

    Attributes:
        level: a number in all values, not learnt by gradients; whoever trains the critic moves it.
    """

    level: Tensor

    def __init__(self, team: TeamSpec, sharing: Sharing) -> None:
        super().__init__(team, sharing)
        self.register_buffer("level", torch.zeros(()))

    def _make_heads(
        self,
        read: int,
        hidden_size: int,
        head_layers: int,
        *,
        activation: Activation,
        team_head: TeamHeadName,
        seen: int,
        generator: torch.Generator | None,
        layer_norm: bool = False,
    ) -> None:
        """Make f, which reads so many numbers (and continuous actions), and the team's head, which
        reads observations of ``seen`` numbers."""
        discrete, A = self.team.discrete, self.team.action_size
        # f's width: V and what each action adds (discrete), or the value. Differences between
        # actions begin small: chance ones would be acted on until they are unlearnt.
        self.head = GroupedMLP(
            [
                read + (0 if discrete else A),
                *[hidden_size] * head_layers,
                1 + A if discrete else 1,
            ],
            num_groups=self.sharing.num_groups,
            activation=activation,
            layer_norm=layer_norm,
            last_gain=0.1 if discrete else 1.0,
            generator=generator,
        )
        self.mixer = make_team_head(team_head, seen, generator=generator)

    def _judged(self, read: list[Tensor], present: Tensor | None, queries: Tensor | None) -> Tensor:
        """f of what it reads [B, M, ...]: values as `AttentionCritic.forward` gives them."""
        values = self.head(*read, groups=self.sharing.groups_of(queries))
        if self.team.discrete:
            exists = self.exists if queries is None else self.exists[queries]
            values = dueling_values(values, exists, self.level)
        else:
            values = values + self.level
        if present is not None:
            values = values.masked_fill(~rows_of(present, queries).unsqueeze(-1), 0.0)
        return values if self.team.discrete else values.squeeze(-1)

    def team_value(
        self, values: Tensor, observations: Tensor, present: Tensor | None = None
    ) -> Tensor:
        """The team's value [B] from values [B, N] of the actions taken; never falling in any of
        them, with weights that depend on observations alone."""
        total: Tensor = self.mixer(values, observations, present)
        return total

    def random_queries(
        self,
        num_queries: int,
        batch_size: int,
        *,
        present: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """M different agents per sample, [B, M] long, drawn evenly; present ones first."""
        device = self.exists.device
        return random_queries(
            self.team.num_agents, num_queries, batch_size, device, present, generator
        )
