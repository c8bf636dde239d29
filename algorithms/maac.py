"""MAAC: multi-agent actor-critic with one centralised critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marlogue.agents import Critic, TextAttentionCritic
from marlogue.algorithms.config import MAACConfig
from marlogue.algorithms.critic_building import (
    CriticSource,
    build_critics,
    own_text,
    with_attention,
)
from marlogue.algorithms.critic_sides import AgentCritics, CriticSide, JointCritic
from marlogue.algorithms.histories import (
    History,
    JointFormatter,
    JointHistory,
    TeamTexts,
    by_length,
    by_team,
)
from marlogue.algorithms.judges import CriticJudge, Split, Values
from marlogue.algorithms.on_policy import OnPolicyTrainer
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.streams import CRITIC_SHUFFLE
from marlogue.envs import joint_text


class MAACTrainer(OnPolicyTrainer):
    """Multi-Agent Actor-Critic: decentralised actors, one critic over the joint history
    (centralised training with decentralised execution, as in Lowe et al. 2017, "Multi-Agent
    Actor-Critic for Mixed Cooperative-Competitive Environments"; here on-policy, with one TD error
    for the team, as in the central-V baseline of Foerster et al. 2018, "Counterfactual Multi-Agent
    Policy Gradients").

    For agent i and turn t, h the joint history, V read by the critic from the joint text::

        y     = r_i + discount * V(h_{t+1})          (y = r_i at the end of the episode)
        delta = y - V(h_t)                           shared by the team where the reward is
        actor i:  - mean log pi_i(a_i | h_i) * A     A = delta, normalised per agent and turn
        critic:   value_loss_coef * mean (y - V)^2

    With ``critic_type="q"`` Q(h, a) takes the place of V(h), read after the joint action.

    With ``critic_architecture="attention"`` there is no joint text: the critic reads each agent's
    text by itself, and what it makes of them attends to each other (Iqbal and Sha 2019,
    "Actor-Attention-Critic for Multi-Agent Reinforcement Learning"; see
    :class:`marlogue.agents.TextAttentionCritic`). ``credit="agent"`` then gives each agent a value
    and a TD error of its own::

        y_i   = r_i + discount * B_i(next)
        B_i   = V_i(h)                               critic_type="v"
        B_i   = b_i(h, a_-i)                         critic_type="q": knows all answers but a_i
        A_i   = y_i - B_i

    Neither depends on a_i, so the gradient stays unbiased (the counterfactual baseline of Foerster
    et al. 2018, learnt by regression where it cannot be summed over all completions).

    Args:
        args: the configuration.
        joint_formatter: writes the critic's text from prompts and (for Q) completions; see
            :func:`marlogue.envs.joint_text`.
        agent_model: identifier of the model that every agent starts from; with one agent a model
            object will do.
        agents: models, identifiers or :class:`marlogue.agents.LLMPolicy`, one per agent, instead.
        critic_model: identifier or model of the critic.
        critics: a list of it, instead.
        tokenizer: one, or one per agent; required with model objects.
        reward_func, reward_processor, formatters, external_transition: as in
            :class:`marlogue.envs.TextEnv`.
        train_dataset, eval_dataset: rows.
        env, eval_env: a text ``ParallelEnv`` (or a function that makes one), in place of datasets
            and callbacks.
        guidance: what is known about the task: ``guidance(state, actions, infos)`` gives one
            advantage per agent, before each turn; see
            :class:`marlogue.algorithms.text_guidance.TextGuide`. True for the environment's own
            method. Its part in the advantage is ``guidance_weight``.
        model_config: how models are loaded; see
            :func:`marlogue.algorithms.building.check_model_config`.
        metrics_callback: called with the samples of each item once they have been learnt from
            (and of each evaluated row); returns figures to log.
        wandb_config: arguments of ``wandb.init``.
        callbacks: hooks; see :class:`marlogue.algorithms.Callback`.
        logdir: where TensorBoard looks; None writes no file.

    Attributes:
        agents: the policies; ``agents[i].model`` is a transformers model.
        critics: a list with the one critic: ``.model``, ``.value_head``.

    Raises:
        ValueError, TypeError: an argument is missing or does not fit; the message names it.
    """

    config_class = MAACConfig
    args: MAACConfig

    def __init__(
        self,
        *,
        joint_formatter: JointFormatter = joint_text,
        **kwargs: Any,
    ) -> None:
        self._joint_formatter = joint_formatter
        super().__init__(**kwargs)

    def _make_critic_side(
        self, critic_model: CriticSource | None, critics: Sequence[CriticSource] | None
    ) -> CriticSide:
        critic = build_critics(
            self.args,
            critic_model=critic_model,
            critics=critics,
            count=1,
            policies=self.agents,
            model_config=self.model_config,
            value_head_hidden_dim=self.model_config.get("critic_value_head_hidden_dim"),
        )[0]
        critic, history, micro_batches = self._reading(critic)
        self.critics: list[Critic] = [critic]
        judge = CriticJudge(
            critic,
            Values(
                critic,
                history,
                self.args.micro_batch_size,
                self._compute(critic.device),
                micro_batches,
            ),
            Optimizer(critic.parameters(), self.critic_learning_rate, self.args.max_grad_norm),
            self.args.value_loss_coef,
        )
        if self.args.critic_update == "joint":
            stream = (self.args.seed, CRITIC_SHUFFLE)
            one_value = self.args.credit == "team"
            return JointCritic(
                judge,
                len(self.agents),
                self.args.batch_size,
                stream,
                self.bad_numbers,
                one_value=one_value,
            )
        return AgentCritics([judge] * len(self.agents), self.bad_numbers)

    def _reading(self, critic: Critic) -> tuple[Critic, History, Split]:
        """The critic, what it reads of a sample, and how that is cut into micro-batches."""
        if self.args.critic_architecture == "attention":
            if self._joint_formatter is not joint_text:
                raise ValueError(
                    "joint_formatter writes a joint text, and critic_architecture='attention' "
                    "reads none; leave it out."
                )
            texts = TeamTexts(
                own_text(self.args, critic, self.agents), of_team=self.args.credit == "team"
            )
            return with_attention(critic, self.args, len(self.agents)), texts, by_team
        if isinstance(critic, TextAttentionCritic):
            raise ValueError(
                "the critic (a TextAttentionCritic) reads no joint text; set "
                "critic_architecture='attention', or pass a Critic."
            )
        joint = JointHistory(critic.tokenizer, self.args.critic_type, self._joint_formatter)
        return critic, joint, by_length
