"""The attention critic of actor-attention-critic, for numeric observations."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from marlogue.agents.attention import rows_of
from marlogue.agents.attention_memory import CriticMemory, memory_plan
from marlogue.agents.critic_base import VectorCriticBase
from marlogue.agents.critic_inputs import check_inputs
from marlogue.agents.mixing import TeamHeadName
from marlogue.agents.mlp import Activation, GroupedMLP
from marlogue.agents.neighbourhoods import Neighbourhood
from marlogue.agents.others import AttentionName, OthersMixer
from marlogue.agents.sharing import Sharing, SharingName
from marlogue.agents.teams import TeamSpec

OverflowName = Literal["error", "recompute"]


class AttentionCritic(VectorCriticBase):
    """Q of each agent's actions, given what all agents see and what the others do (Iqbal and Sha
    2019, "Actor-Attention-Critic for Multi-Agent Reinforcement Learning")::

        e_i = MLP(o_i)          g_j = MLP(o_j, a_j)
        x_i = per head sum over j != i of w_ij LeakyReLU(W_v g_j), w_ij from e_i and g_j
        Q_i = f(e_i, x_i)       one value for each of i's actions (discrete, dueling)
        Q_i = f(e_i, x_i, a_i)  (continuous)

    Neither e_i nor x_i knows a_i, so Q_i of all own actions comes from one pass and counterfactual
    baselines are exact. There is one attention layer: a second would bring a_i back through the
    others.

    Args:
        team: the agents and their spaces.
        hidden_size: width of e, g, x and the hidden layers.
        num_heads: H attention heads.
        attention: "full", "linear" (elu + 1 features; cost linear in N), "local" (softmax over a
            neighbourhood) or "mean" (no attention: all others alike).
        neighbourhood: `Nearest` or `FixedGraph`, for "local".
        encoder_layers: layers of the MLPs of e and g.
        head_layers: hidden layers of f.
        sharing: whose MLPs are shared: of "all" agents, of one "type", or "none"; W_q, W_k and W_v
            always are.
        id_embedding: size of a learned vector that names the agent to the MLPs; 0 for none.
        max_agents: the most agents that `for_team` may be asked for with these vectors.
        team_head: what `team_value` makes of the agents' values: "sum" (Sunehag et al. 2018) or
            "monotonic" (Rashid et al. 2018).
        activation: of the MLPs.
        layer_norm: normalise the hidden layers.
        memory_limit: bytes that one forward and backward pass may take; None for what is
            available when it is asked for.
        overflow: what happens to a larger one: "error" (a `MemoryError` before it runs), or
            "recompute" (the batch in parts, whose activations are made again in the backward
            pass: the same numbers from less memory, in about 4/3 of the time).
        generator: source of the initial weights; None for torch's global generator.

    Shapes: B samples, N agents, M query agents, D and A as in `TeamSpec`.

    Raises:
        ValueError: for arguments that contradict each other or are out of range.
    """

    def __init__(
        self,
        team: TeamSpec,
        *,
        hidden_size: int = 128,
        num_heads: int = 4,
        attention: AttentionName = "full",
        neighbourhood: Neighbourhood | None = None,
        encoder_layers: int = 1,
        head_layers: int = 1,
        sharing: SharingName = "type",
        id_embedding: int = 0,
        max_agents: int | None = None,
        team_head: TeamHeadName = "sum",
        activation: Activation = "leaky_relu",
        layer_norm: bool = False,
        memory_limit: int | None = None,
        overflow: OverflowName = "error",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(team, Sharing(team, sharing, id_embedding, max_agents, generator))
        if encoder_layers < 1 or head_layers < 1:
            raise ValueError(
                f"encoder_layers ({encoder_layers}) and head_layers ({head_layers}) must be at "
                "least 1."
            )
        if overflow not in ("error", "recompute"):
            raise ValueError(f"overflow ({overflow!r}) must be 'error' or 'recompute'.")
        self.memory_limit, self.overflow = memory_limit, overflow
        D, A = team.observation_size, team.action_size

        def encoder(inputs: int) -> GroupedMLP:
            return GroupedMLP(
                [self.sharing.width(inputs), *[hidden_size] * encoder_layers],
                num_groups=self.sharing.num_groups,
                activation=activation,
                last_activation=True,
                layer_norm=layer_norm,
                generator=generator,
            )

        self.own_encoder = encoder(D)
        self.other_encoder = encoder(D + A)
        self.others = OthersMixer(hidden_size, num_heads, attention, neighbourhood, generator)
        self._make_heads(
            2 * hidden_size,
            hidden_size,
            head_layers,
            activation=activation,
            layer_norm=layer_norm,
            team_head=team_head,
            seen=D,
            generator=generator,
        )

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        present: Tensor | None = None,
        queries: Tensor | None = None,
        *,
        own_actions: Tensor | None = None,
    ) -> Tensor:
        """Values of the query agents.

        Args:
            observations: [B, N, D], zeros where an agent is absent.
            actions: [B, N] long, or [B, N, A] in [-1, 1]; the gradient goes through the latter.
            present: [B, N] bool, agents that take part; None for all.
            queries: [B, M] long, the agents whose values are asked for; None for all N in order.
                e, f and the attention are evaluated for these only, g for all.
            own_actions: [B, N, A], what f reads instead of ``actions`` (continuous teams): with
                ``actions`` detached the gradient is that of each agent's own action.

        Returns:
            [B, M, A] (discrete; 0 for actions that an agent has not), or [B, M] (continuous);
            0 for absent agents.

        Raises:
            ValueError: when shapes do not fit the team.
            MemoryError: when the pass would take more than ``memory_limit`` and ``overflow`` is
                "error".
        """
        check_inputs(self.team, observations, actions, present, queries)
        own_actions = actions if own_actions is None else own_actions
        inputs = (observations, actions, own_actions, present, queries)
        training = torch.is_grad_enabled()
        asked = None if queries is None else queries.shape[1]
        need = self.memory(len(observations), num_queries=asked, training=training)
        parts = memory_plan(need, observations.device, self.memory_limit, self.overflow)
        if parts == 1:
            return self._values(*inputs)
        pieces = [() if x is None else x.tensor_split(parts) for x in inputs]
        done = []
        for part in range(parts):
            piece = [x[part] if x else None for x in pieces]
            if training:
                done.append(
                    checkpoint(self._values, *piece, use_reentrant=False, preserve_rng_state=False)
                )
            else:
                done.append(self._values(*piece))  # type: ignore[arg-type]
        return torch.cat(done)

    def attention_weights(
        self,
        observations: Tensor,
        actions: Tensor,
        present: Tensor | None = None,
        queries: Tensor | None = None,
    ) -> Tensor:
        """w [B, H, M, N], whom each query agent attends to, head by head; arguments as for
        `forward`. A row sums to 1 (to 0 where there is nobody else) and is 0 at the agent itself
        and at absent ones. Differentiable; it takes memory for all B H M N weights."""
        check_inputs(self.team, observations, actions, present, queries)
        own, others = self._encode(observations, actions, queries)
        return self.others.weights(own, others, observations, present, queries)

    def own_encoding(self, observations: Tensor, queries: Tensor | None = None) -> Tensor:
        """e_i [B, M, hidden_size] of the query agents, for heads beside the critic's own; shapes
        as for `forward`."""
        seen = self.sharing.tokens([rows_of(observations, queries)], queries)
        own: Tensor = self.own_encoder(seen, groups=self.sharing.groups_of(queries))
        return own

    def memory(
        self, batch_size: int, *, num_queries: int | None = None, training: bool = True
    ) -> CriticMemory:
        """An estimate of what a pass takes, before it runs."""
        nearby = self.others.neighbourhood
        return CriticMemory.of(
            batch_size=batch_size,
            num_agents=self.team.num_agents,
            num_queries=num_queries,
            observation_size=self.sharing.width(self.team.observation_size),
            action_size=self.team.action_size,
            hidden_size=self.others.width,
            num_heads=self.others.num_heads,
            attention=self.others.kind,
            num_neighbours=None if nearby is None else nearby.num_neighbours,
            encoder_layers=len(self.own_encoder.weights),
            head_layers=len(self.head.weights) - 1,
            training=training,
            bytes_per_number=self.head.weights[0].element_size(),
        )

    def _values(
        self,
        observations: Tensor,
        actions: Tensor,
        own_actions: Tensor,
        present: Tensor | None,
        queries: Tensor | None,
    ) -> Tensor:
        own, others = self._encode(observations, actions, queries)
        mixed = self.others(own, others, observations, present, queries)
        read = [own, mixed]
        if not self.team.discrete:
            read.append(rows_of(own_actions * self.exists, queries))
        return self._judged(read, present, queries)

    def _encode(
        self, observations: Tensor, actions: Tensor, queries: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        own = self.own_encoding(observations, queries)
        if self.team.discrete:
            done = F.one_hot(actions, self.team.action_size).to(observations.dtype)
        else:
            done = actions * self.exists
        tokens = self.sharing.tokens([observations, done], None)
        return own, self.other_encoder(tokens, groups=self.sharing.groups_of(None))
