"""Values of each agent by itself, beside a critic that knows the others."""

from __future__ import annotations

import torch
from torch import Tensor

from marlogue.agents.mlp import GroupedMLP
from marlogue.agents.sharing import Sharing, SharingName, TeamModule
from marlogue.agents.teams import TeamSpec


class LocalValues(TeamModule):
    """Q_i(o_i, a_i) from an attention critic's encoding e_i of what agent i sees: nothing of the
    others. Sums or mixes of them are a team's value in value decomposition (Sunehag et al. 2018,
    Rashid et al. 2018).

    Args:
        team: the agents and their spaces.
        hidden_size: width of e_i.
        sharing: whose heads are shared: of "all" agents, of one "type", or "none".
        generator: source of the initial weights.
    """

    def __init__(
        self,
        team: TeamSpec,
        *,
        hidden_size: int = 128,
        sharing: SharingName = "type",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(team, Sharing(team, sharing, generator=generator))
        A = team.action_size
        self.head = GroupedMLP(
            [hidden_size, A] if team.discrete else [hidden_size + A, hidden_size, 1],
            num_groups=self.sharing.num_groups,
            generator=generator,
        )

    def forward(self, own: Tensor, actions: Tensor, present: Tensor | None = None) -> Tensor:
        """Values [B, N] of the actions [B, N] (long) or [B, N, A] from e [B, N, hidden_size]; 0
        for absent agents ([B, N] False)."""
        groups = self.sharing.groups_of(None)
        if self.team.discrete:
            values = self.head(own, groups=groups).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        else:
            values = self.head(own, actions * self.exists, groups=groups).squeeze(-1)
        taken: Tensor = values if present is None else values.masked_fill(~present, 0.0)
        return taken
