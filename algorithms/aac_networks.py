"""The networks of actor-attention-critic, from its configuration and a team."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import numpy as np
import torch
from gymnasium.spaces import Box, Tuple
from torch import Tensor, nn

from marlogue.agents.attention_critic import AttentionCritic
from marlogue.agents.critic_baselines import ConcatCritic, MeanPoolCritic
from marlogue.agents.local_values import LocalValues
from marlogue.agents.neighbourhoods import FixedGraph, Nearest, Neighbourhood
from marlogue.agents.teams import TeamSpec
from marlogue.agents.vector_actors import VectorActors
from marlogue.algorithms.aac_config import AACConfig

VectorCritic = AttentionCritic | ConcatCritic
ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class AACNetworks:
    """What is learnt, and the slow copies that targets come from.

    Attributes:
        team: the agents that it is for now.
        actors: the policies.
        critic: Q of each agent.
        local_values: heads on the critic's own encoding; None where no loss is taken of them.
        target_actors, target_critic: slow copies.
        log_temperature: log alpha, a scalar.
    """

    team: TeamSpec
    actors: VectorActors
    critic: VectorCritic
    local_values: LocalValues | None
    target_actors: VectorActors
    target_critic: VectorCritic
    log_temperature: nn.Parameter

    @classmethod
    def build(
        cls,
        args: AACConfig,
        team: TeamSpec,
        *,
        max_agents: int | None = None,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> Self:
        """New networks.

        Args:
            args: the configuration.
            team: the agents.
            max_agents: names of agents that vectors are kept for (of this team, with those that
                any other one adds to it); None for those of ``team``.
            device: where the networks are.
            generator: source of the initial weights (on the CPU).
        """
        actors = VectorActors(
            team,
            hidden_sizes=args.actor_hidden_sizes,
            trunk=args.actor_trunk,
            sharing=args.sharing,
            id_embedding=args.id_embedding,
            max_agents=max_agents,
            layer_norm=args.layer_norm,
            generator=generator,
        ).to(device)
        judged = remembering(team, args.actor_hidden_sizes[-1] if args.recurrent else 0)
        critic = _critic(args, judged, max_agents, generator).to(device)
        local = None
        if args.has_local_values:
            local = LocalValues(
                judged, hidden_size=args.hidden_size, sharing=args.sharing, generator=generator
            ).to(device)
        start = torch.tensor(float(np.log(args.temperature)), device=device)
        return cls(team, actors, critic, local, _slow(actors), _slow(critic), nn.Parameter(start))

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.log_temperature.device

    @property
    def attends(self) -> bool:
        """Whether the critic has attention to look at."""
        return isinstance(self.critic, AttentionCritic) and not isinstance(
            self.critic, MeanPoolCritic
        )

    @property
    def temperature(self) -> Tensor:
        """alpha, without a graph."""
        return self.log_temperature.detach().exp()

    def for_team(self, team: TeamSpec) -> Self:
        """The same networks (the parameters themselves) for another team.

        Raises:
            ValueError: when they do not fit it.
        """
        judged = remembering(team, self.critic.team.observation_size - self.team.observation_size)
        return replace(
            self,
            team=team,
            actors=self.actors.for_team(team),
            critic=self.critic.for_team(judged),
            local_values=None if self.local_values is None else self.local_values.for_team(judged),
            target_actors=self.target_actors.for_team(team),
            target_critic=self.target_critic.for_team(judged),
        )

    def modules(self) -> dict[str, nn.Module]:
        """Everything that is saved, by name; `log_temperature` beside it."""
        found: dict[str, nn.Module] = {
            "actors": self.actors,
            "critic": self.critic,
            "target_actors": self.target_actors,
            "target_critic": self.target_critic,
        }
        return found if self.local_values is None else found | {"local_values": self.local_values}

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the critic's optimiser steps."""
        local = [] if self.local_values is None else list(self.local_values.parameters())
        return [*self.critic.parameters(), *local]


def check_attention(args: AACConfig, team: TeamSpec) -> None:
    """Raise a ValueError when the configuration's position or graph does not fit a team."""
    least = min(team.observation_sizes)
    wrong = [index for index in args.attention_position or () if index >= least]
    if wrong:
        raise ValueError(
            f"attention_position ({args.attention_position!r}) must hold indices into an "
            f"observation, of which the smallest has {least} numbers; {wrong} are not."
        )
    graph = args.attention_graph
    if graph is not None and len(graph) != team.num_agents:
        raise ValueError(
            f"attention_graph (of {len(graph)} agents) must have a list for each of the "
            f"{team.num_agents} agents of the team ({', '.join(team.agents[:3])}, ...)."
        )


def remembering(team: TeamSpec, hidden_size: int) -> TeamSpec:
    """The team as a critic sees it, that also reads what recurrent actors remember: without it
    the same observation can be worth different things."""
    if hidden_size == 0:
        return team
    memory = Box(-1.0, 1.0, (hidden_size,))
    seen = tuple(Tuple((space, memory)) for space in team.observation_spaces)
    return replace(team, observation_spaces=seen)


def _critic(
    args: AACConfig,
    team: TeamSpec,
    max_agents: int | None,
    generator: torch.Generator | None,
) -> VectorCritic:
    if args.critic_architecture == "concat":
        return ConcatCritic(
            team,
            hidden_size=args.hidden_size,
            head_layers=args.critic_layers,
            sharing=args.sharing,
            team_head=args.team_head,
            generator=generator,
        )
    shared = {
        "hidden_size": args.hidden_size,
        "num_heads": args.num_heads,
        "encoder_layers": args.critic_layers,
        "head_layers": args.critic_layers,
        "sharing": args.sharing,
        "id_embedding": args.id_embedding,
        "max_agents": max_agents,
        "team_head": args.team_head,
        "layer_norm": args.layer_norm,
        "memory_limit": args.memory_limit,
        "overflow": args.overflow,
        "generator": generator,
    }
    if args.critic_architecture == "mean":
        return MeanPoolCritic(team, **shared)
    nearby = _neighbourhood(args) if args.attention == "local" else None
    return AttentionCritic(team, attention=args.attention, neighbourhood=nearby, **shared)  # type: ignore[arg-type]


def _neighbourhood(args: AACConfig) -> Neighbourhood:
    if args.attention_graph is not None:
        return FixedGraph(args.attention_graph)
    assert args.attention_position is not None  # AACConfig sees to it
    return Nearest(args.attention_neighbours, args.attention_position)


def _slow(module: ModuleT) -> ModuleT:
    twin = copy.deepcopy(module)
    return twin.requires_grad_(False)
