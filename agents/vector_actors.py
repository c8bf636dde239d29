"""Actors for teams with numeric observations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from marlogue.agents.action_distributions import (
    ActionDistribution,
    DiscreteActions,
    TanhGaussian,
)
from marlogue.agents.attention import rows_of
from marlogue.agents.mlp import Activation, GroupedMLP
from marlogue.agents.sharing import Sharing, SharingName, TeamModule
from marlogue.agents.teams import TeamSpec

#: The range of the logarithm of a Gaussian's spread; it begins near 0.
LOG_STD_RANGE = (-5.0, 2.0)


class GroupedGRU(nn.Module):
    """A gated recurrent unit (Cho et al. 2014, in the form of torch's) per group of agents.

    Args:
        inputs: width of what it reads.
        hidden: H, width of its state.
        num_groups: sets of weights.
        generator: source of the initial weights.
    """

    def __init__(
        self, inputs: int, hidden: int, num_groups: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.read = GroupedMLP([inputs, 3 * hidden], num_groups=num_groups, generator=generator)
        self.keep = GroupedMLP([hidden, 3 * hidden], num_groups=num_groups, generator=generator)

    def forward(
        self, inputs: Tensor, state: Tensor, starts: Tensor | None, groups: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Inputs [B, T, N, x] from a state [B, N, H] to outputs [B, T, N, H] and the last state.

        Where ``starts`` [B, T] (bool) is True the state is zeroed before that step.
        """
        read = self.read(inputs, groups=groups)
        outputs = []
        for t in range(inputs.shape[1]):
            if starts is not None:
                state = state.masked_fill(starts[:, t, None, None], 0.0)
            reset, update, new = read[:, t].chunk(3, -1)
            kept_reset, kept_update, kept_new = self.keep(state, groups=groups).chunk(3, -1)
            gate = torch.sigmoid(update + kept_update)
            new = torch.tanh(new + torch.sigmoid(reset + kept_reset) * kept_new)
            state = torch.lerp(new, state, gate)
            outputs.append(state)
        return torch.stack(outputs, 1), state


class VectorActors(TeamModule):
    """The policies of all agents: one forward pass for the team.

    Discrete teams get masked logits, continuous ones a Gaussian through tanh. Agents with fewer
    actions than A never take those that they lack.

    Args:
        team: the agents and their spaces.
        hidden_sizes: widths of the hidden layers.
        trunk: "mlp"; or "gru", where a gated recurrent unit as wide as the last hidden layer
            follows these layers and its state goes from step to step.
        sharing: "all" agents share weights, agents of one "type" do, or "none".
        id_embedding: size of a learned vector that names the agent to the network; 0 for none.
        max_agents: the most agents that `for_team` may be asked for with these vectors.
        activation: of the hidden layers.
        layer_norm: normalise the hidden layers.
        generator: source of the initial weights; None for torch's global generator.

    Shapes: D, N and A as in `TeamSpec`; B episodes, T steps; H is the width of the state (0
    without recurrence).

    Raises:
        ValueError: for an unknown trunk or sharing, or sizes below 1.
    """

    def __init__(
        self,
        team: TeamSpec,
        *,
        hidden_sizes: Sequence[int] = (128, 128),
        trunk: Literal["mlp", "gru"] = "mlp",
        sharing: SharingName = "type",
        id_embedding: int = 0,
        max_agents: int | None = None,
        activation: Activation = "relu",
        layer_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(team, Sharing(team, sharing, id_embedding, max_agents, generator))
        if trunk not in ("mlp", "gru"):
            raise ValueError(f"trunk ({trunk!r}) must be 'mlp' or 'gru'.")
        if not hidden_sizes:
            raise ValueError(f"hidden_sizes ({hidden_sizes!r}) must name at least one layer.")
        groups, last = self.sharing.num_groups, hidden_sizes[-1]
        self.trunk = GroupedMLP(
            [self.sharing.width(team.observation_size), *hidden_sizes],
            num_groups=groups,
            activation=activation,
            last_activation=True,
            layer_norm=layer_norm,
            generator=generator,
        )
        self.memory = GroupedGRU(last, last, groups, generator) if trunk == "gru" else None
        self.head = GroupedMLP(
            [last, team.action_size * (1 if team.discrete else 2)],
            num_groups=groups,
            last_gain=0.1,
            generator=generator,
        )

    @property
    def recurrent(self) -> bool:
        """Whether a state goes from step to step."""
        return self.memory is not None

    def initial_state(self, batch_size: int) -> Tensor:
        """The state [B, N, H] at the start of an episode: zeros."""
        width = self.memory.hidden if self.memory is not None else 0
        return self.head.weights[0].new_zeros(batch_size, self.team.num_agents, width)

    def forward(
        self,
        observations: Tensor,
        state: Tensor | None = None,
        *,
        starts: Tensor | None = None,
        available: Tensor | None = None,
        queries: Tensor | None = None,
    ) -> tuple[ActionDistribution, Tensor]:
        """The agents' distributions over actions, and the state after the last step.

        Args:
            observations: [B, N, D] for one step, [B, T, N, D] for T steps in one go.
            state: [B, N, H] before the first step; None for the start of an episode.
            starts: [B] or [B, T] bool, True at the first step of an episode: the state is zeroed
                before it. Only a recurrent trunk needs it.
            available: [B, (T,) N, A] bool, actions that are allowed now (discrete teams).
            queries: [B, M] long, the agents that are asked, of one step and without recurrence;
                None for all N in order.

        Returns:
            `DiscreteActions` or `TanhGaussian` over [B, (T,) N] (or [B, M]), and the state
            [B, N, H].

        Raises:
            ValueError: when shapes do not fit the team, or only some are asked of a recurrent
                trunk, whose state is that of all.
        """
        features, state = self.encode(observations, state, starts=starts, queries=queries)
        return self.decide(features, available, queries=queries), state

    def encode(
        self,
        observations: Tensor,
        state: Tensor | None = None,
        *,
        starts: Tensor | None = None,
        queries: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What the agents make of what they see (and remember): the first half of `forward`.

        Returns:
            Features [B, (T,) N, h] (with a recurrent trunk the state after each step), and the
            state [B, N, H] after the last step.
        """
        self._check(observations, queries)
        groups = self.sharing.groups_of(queries)
        seen = self.sharing.tokens([rows_of(observations, queries)], queries)
        hidden = self.trunk(seen, groups=groups)
        if state is None:
            state = self.initial_state(len(observations))
        if self.memory is None:
            return hidden, state
        steps = hidden if hidden.ndim == 4 else hidden.unsqueeze(1)
        if starts is not None and starts.ndim == 1:
            starts = starts.unsqueeze(1)
        outputs, state = self.memory(steps, state, starts, groups)
        return outputs if observations.ndim == 4 else outputs.squeeze(1), state

    def decide(
        self, features: Tensor, available: Tensor | None = None, *, queries: Tensor | None = None
    ) -> ActionDistribution:
        """Distributions over actions from the features of `encode`: the second half."""
        raw = self.head(features, groups=self.sharing.groups_of(queries))
        exists = self.exists if queries is None else self.exists[queries]
        if self.team.discrete:
            allowed = exists if available is None else exists & rows_of(available, queries)
            return DiscreteActions.of(raw, allowed)
        mean, spread = raw.chunk(2, -1)
        low, high = LOG_STD_RANGE  # approached smoothly, so that the gradient never dies
        log_std = low + (high - low) * torch.sigmoid(spread + math.log(-low / high))
        return TanhGaussian(mean, log_std, exists)

    def _check(self, observations: Tensor, queries: Tensor | None) -> None:
        if queries is not None and (self.recurrent or observations.ndim != 3):
            raise ValueError(
                "queries must be None for a recurrent trunk or several steps; ask for all agents."
            )
        wanted = (self.team.num_agents, self.team.observation_size)
        if observations.ndim not in (3, 4) or observations.shape[-2:] != wanted:
            raise ValueError(
                f"observations ({list(observations.shape)}) must be [B, N, D] or [B, T, N, D] with "
                f"N, D = {wanted}; TeamSpec.observe pads them so."
            )
