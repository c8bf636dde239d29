"""Critics without attention, to compare the attention critic with."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from marlogue.agents.attention import rows_of
from marlogue.agents.attention_critic import AttentionCritic
from marlogue.agents.critic_inputs import check_inputs, random_queries
from marlogue.agents.dueling import dueling_values
from marlogue.agents.mixing import TeamHeadName, make_team_head
from marlogue.agents.mlp import Activation, GroupedMLP, activation_named, uniform_parameter
from marlogue.agents.sharing import Sharing, SharingName
from marlogue.agents.teams import TeamSpec


class MeanPoolCritic(AttentionCritic):
    """An attention critic whose weights are all equal: x_i is the mean of LeakyReLU(W_v g_j) over
    the others that are present. Arguments and shapes as for `AttentionCritic`, without
    ``attention`` and ``neighbourhood``."""

    def __init__(self, team: TeamSpec, **arguments: Any) -> None:
        super().__init__(team, attention="mean", **arguments)


class ConcatCritic(nn.Module):
    """Q_i = f(all observations, the actions of the others, who i is): the centralised critic of
    Lowe et al. 2017 (MADDPG), with its weights shared.

    The first layer reads everything side by side, once per sample; what agent i's own action adds
    to it is taken out again for Q_i (it is linear), and what o_i and i's own vector say is added.
    The number of agents is fixed, and the size of the first layer grows with it.

    Args:
        team: the agents and their spaces.
        hidden_size: width of the hidden layers.
        head_layers: hidden layers after the first.
        sharing: who shares the layers after the first: "all", one "type" or "none".
        team_head: as for `AttentionCritic`.
        activation: of the hidden layers.
        generator: source of the initial weights.
    """

    exists: Tensor
    level: Tensor  # as of AttentionCritic

    def __init__(
        self,
        team: TeamSpec,
        *,
        hidden_size: int = 128,
        head_layers: int = 1,
        sharing: SharingName = "type",
        team_head: TeamHeadName = "sum",
        activation: Activation = "leaky_relu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if head_layers < 1:
            raise ValueError(f"head_layers ({head_layers}) must be at least 1.")
        self.team = team
        self.sharing = Sharing(team, sharing, generator=generator)
        N, D, A, h = team.num_agents, team.observation_size, team.action_size, hidden_size
        bound = (N * (D + A)) ** -0.5
        self.seen = uniform_parameter((h, N * D), bound, generator)
        self.done = uniform_parameter((N, A, h), bound, generator)
        self.who = uniform_parameter((N, h), D**-0.5, generator)
        self.own_seen = uniform_parameter((h, D), D**-0.5, generator)
        self.activation = activation_named(activation)
        width = h + (0 if team.discrete else A)
        self.head = GroupedMLP(
            [width, *[h] * head_layers, 1 + A if team.discrete else 1],
            num_groups=self.sharing.num_groups,
            activation=activation,
            last_gain=0.1 if team.discrete else 1.0,  # as for AttentionCritic
            generator=generator,
        )
        self.mixer = make_team_head(team_head, D, generator=generator)
        self.register_buffer("level", torch.zeros(()))
        self.register_buffer("exists", team.action_mask(), persistent=False)

    def for_team(self, team: TeamSpec) -> Self:
        """The critic itself, for the team that it was made for.

        Raises:
            ValueError: for any other team.
        """
        if team != self.team:
            raise ValueError(
                f"team (of {team.num_agents} agents) must be that of the ConcatCritic (of "
                f"{self.team.num_agents}); use an AttentionCritic or MeanPoolCritic for teams that "
                "change."
            )
        return self

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        present: Tensor | None = None,
        queries: Tensor | None = None,
        *,
        own_actions: Tensor | None = None,
    ) -> Tensor:
        """Values of the query agents; shapes as for `AttentionCritic.forward`."""
        check_inputs(self.team, observations, actions, present, queries)
        terms = self._terms(actions)
        if present is not None:
            observations = observations * present.unsqueeze(-1)
            terms = terms * present.unsqueeze(-1)
        base = F.linear(observations.flatten(1), self.seen) + terms.sum(1)
        own = F.linear(rows_of(observations, queries), self.own_seen) + rows_of(
            self.who - terms, queries
        )
        read = self.activation(base.unsqueeze(1) + own)
        if not self.team.discrete:
            taken = (actions if own_actions is None else own_actions) * self.exists
            read = torch.cat([read, rows_of(taken, queries)], -1)
        values = self.head(read, groups=self.sharing.groups_of(queries))
        exists = self.exists if queries is None else self.exists[queries]
        if self.team.discrete:
            values = dueling_values(values, exists, self.level)
        else:
            values = values + self.level
        if present is not None:
            values = values.masked_fill(~rows_of(present, queries).unsqueeze(-1), 0.0)
        return values if self.team.discrete else values.squeeze(-1)

    def team_value(
        self, values: Tensor, observations: Tensor, present: Tensor | None = None
    ) -> Tensor:
        """The team's value [B] from values [B, N] of the actions taken."""
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
        """M different agents per sample, [B, M] long; see `AttentionCritic.random_queries`."""
        device = self.exists.device
        return random_queries(
            self.team.num_agents, num_queries, batch_size, device, present, generator
        )

    def _terms(self, actions: Tensor) -> Tensor:
        """What each agent's action adds to the first layer, [B, N, h]."""
        if self.team.discrete:
            agents = torch.arange(self.team.num_agents, device=actions.device)
            return self.done[agents, actions]
        return torch.einsum("bna,nah->bnh", actions * self.exists, self.done)
