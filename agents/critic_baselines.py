"""Critics without attention, to compare the attention critic with."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from marlogue.agents.attention import rows_of
from marlogue.agents.attention_critic import AttentionCritic
from marlogue.agents.critic_base import VectorCriticBase
from marlogue.agents.critic_inputs import check_inputs
from marlogue.agents.mixing import TeamHeadName
from marlogue.agents.mlp import Activation, activation_named, uniform_parameter
from marlogue.agents.sharing import Sharing, SharingName
from marlogue.agents.teams import TeamSpec


class MeanPoolCritic(AttentionCritic):
    """An attention critic whose weights are all equal: x_i is the mean of LeakyReLU(W_v g_j) over
    the others that are present. Arguments and shapes as for `AttentionCritic`, without
    ``attention`` and ``neighbourhood``."""

    def __init__(self, team: TeamSpec, **arguments: Any) -> None:
        super().__init__(team, attention="mean", **arguments)


class ConcatCritic(VectorCriticBase):
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
        super().__init__(team, Sharing(team, sharing, generator=generator))
        if head_layers < 1:
            raise ValueError(f"head_layers ({head_layers}) must be at least 1.")
        N, D, A, h = team.num_agents, team.observation_size, team.action_size, hidden_size
        bound = (N * (D + A)) ** -0.5
        self.seen = uniform_parameter((h, N * D), bound, generator)
        self.done = uniform_parameter((N, A, h), bound, generator)
        self.who = uniform_parameter((N, h), D**-0.5, generator)
        self.own_seen = uniform_parameter((h, D), D**-0.5, generator)
        self.activation = activation_named(activation)
        self._make_heads(
            h,
            h,
            head_layers,
            activation=activation,
            team_head=team_head,
            seen=D,
            generator=generator,
        )

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
        return self._judged([read], present, queries)

    def _terms(self, actions: Tensor) -> Tensor:
        """What each agent's action adds to the first layer, [B, N, h]."""
        if self.team.discrete:
            agents = torch.arange(self.team.num_agents, device=actions.device)
            return self.done[agents, actions]
        return torch.einsum("bna,nah->bnh", actions * self.exists, self.done)
