"""IAC: independent actor-critics."""

from __future__ import annotations

from collections.abc import Sequence

from marlogue.agents import Critic
from marlogue.algorithms.config import IACConfig
from marlogue.algorithms.critic_building import (
    CriticSource,
    add_value_heads,
    build_critics,
    own_text,
)
from marlogue.algorithms.critic_sides import AgentCritics, CriticSide, TrunkCritics
from marlogue.algorithms.histories import OwnHistory, OwnText
from marlogue.algorithms.judges import CriticJudge, TrunkTerm, Values
from marlogue.algorithms.on_policy import OnPolicyTrainer
from marlogue.algorithms.optimizer import Optimizer


class IACTrainer(OnPolicyTrainer):
    """Independent Actor-Critic: each agent has a critic of its own history and its own TD error
    (Tan 1993, "Multi-Agent Reinforcement Learning: Independent vs. Cooperative Agents"; the
    independent actor-critic of Foerster et al. 2018, "Counterfactual Multi-Agent Policy
    Gradients", section 3).

    For agent i and turn t, h_i its own history::

        y     = r_i + discount * V_i(h_{i,t+1})      (y = r_i at the end of the episode)
        delta = y - V_i(h_{i,t})
        actor i:   - mean log pi_i(a_i | h_i) * A    A = delta, normalised per agent and turn
        critic i:  value_loss_coef * mean (y - V_i)^2

    With ``use_separate_critic=False`` V_i is a value head on the actor's trunk: one optimiser
    minimises the sum of the two losses, the critic's clipped by ``value_clip_range``. With
    ``critic_type="q"`` Q_i(h_i, a_i) takes the place of V_i.

    Args:
        args: the configuration.
        critic_model, critics: the separate critics: an identifier (each agent gets a copy of its
            own), or one model per agent. Refused with ``use_separate_critic=False``.

    All other arguments are those of :class:`marlogue.algorithms.MAACTrainer`.

    Attributes:
        agents: the policies; ``agents[i].model``, and in shared mode ``agents[i].value_head``.
        critics: one critic per agent: ``.model``, ``.value_head``; empty in shared mode.

    Raises:
        ValueError, TypeError: an argument is missing or does not fit; the message names it.
    """

    config_class = IACConfig
    args: IACConfig

    def _make_critic_side(
        self, critic_model: CriticSource | None, critics: Sequence[CriticSource] | None
    ) -> CriticSide:
        self.critics: list[Critic] = []
        if self.args.use_separate_critic:
            return self._separate_critics(critic_model, critics)
        if critic_model is not None or critics is not None:
            raise ValueError(
                "critic_model and critics must be left out with use_separate_critic=False; set "
                "use_separate_critic=True to use them."
            )
        add_value_heads(self.agents, self.args.value_head_hidden_dim, self.args.seed)
        return TrunkCritics(
            [
                Values(
                    policy,
                    OwnHistory(
                        OwnText(self.args.critic_type, policy.tokenizer, [True] * len(self.agents))
                    ),
                    self.args.micro_batch_size,
                    self._compute(policy.device),
                )
                for policy in self.agents
            ]
        )

    def _separate_critics(
        self, critic_model: CriticSource | None, critics: Sequence[CriticSource] | None
    ) -> CriticSide:
        self.critics = build_critics(
            self.args,
            critic_model=critic_model,
            critics=critics,
            count=len(self.agents),
            policies=self.agents,
            model_config=self.model_config,
            value_head_hidden_dim=self.args.critic_value_head_hidden_dim
            or self.model_config.get("critic_value_head_hidden_dim"),
        )
        judges = {critic: self._make_judge(critic) for critic in self.critics}
        return AgentCritics([judges[critic] for critic in self.critics], self.bad_numbers)

    def _make_judge(self, critic: Critic) -> CriticJudge:
        history = OwnHistory(own_text(self.args, critic, self.agents))
        return CriticJudge(
            critic,
            Values(critic, history, self.args.micro_batch_size, self._compute(critic.device)),
            Optimizer(critic.parameters(), self.critic_learning_rate, self.args.max_grad_norm),
            self.args.value_loss_coef,
        )

    def _trunk_term(self, agent_idx: int) -> TrunkTerm | None:
        if self.args.use_separate_critic:
            return None
        return TrunkTerm(
            self.agents[agent_idx],
            reads_actions=self.args.critic_type == "q",
            value_loss_coef=self.args.value_loss_coef,
            value_clip_range=self.args.value_clip_range,
        )
