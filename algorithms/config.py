"""Configurations of the on-policy learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from marlogue.agents import SamplingParams
from marlogue.agents.rules import check_fields, devices, one_of, real, truth, whole
from marlogue.algorithms.annealing import AnnealLike, annealed
from marlogue.algorithms.guidance import GUIDANCE_WEIGHT
from marlogue.algorithms.keeping_config import KeepingConfig
from marlogue.algorithms.reward_config import RewardConfig

#: Schedules of transformers that need nothing but time.
SCHEDULES = (
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "inverse_sqrt",
)
Devices = str | Sequence[str] | None


@dataclass(kw_only=True)
class ActorCriticConfig(KeepingConfig, RewardConfig):
    """What MAAC and IAC have in common, beside
    :class:`marlogue.algorithms.keeping_config.KeepingConfig` and
    :class:`marlogue.algorithms.reward_config.RewardConfig`.

    The unit of ``max_steps``, ``eval_interval``, ``save_steps``, ``warmup_steps`` and the
    learning-rate schedule is one training item: a dataset row (or, with a foreign environment, a
    start of an episode).

    Args:
        num_agents: N, agents in the team.
        num_turns: T, the most turns of an episode.
        num_generations: G, joint answers sampled per item; 1 when ``num_turns > 1``.
        num_train_epochs: passes over the training dataset.
        max_steps: stop after this many training items; None for all epochs.
        critic_type: "v" judges the history before the action, V(h); "q" also reads the action,
            Q(h, a).
        agent_learning_rate: AdamW learning rate of each agent.
        critic_learning_rate: AdamW learning rate of each critic; None for the agents'.
        lr_scheduler_type: name of a transformers schedule, for both learning rates.
        warmup_steps: training items over which the learning rates rise from 0.
        value_loss_coef: weight of the critic's loss.
        advantage_normalization: normalise advantages per agent and turn.
        discount: discount factor per turn.
        max_grad_norm: clip each model's gradient to this norm; None for no clipping.
        max_bad_steps: a step in which a number is not finite is skipped; after so many in a row of
            one model the run stops.
        rollout_buffer_size: samples that an agent collects before it is updated.
        train_batch_size: samples per optimiser step; None for ``rollout_buffer_size``.
        micro_batch_size: sequences in memory at a time during updates and scoring; None lets
            their length decide. Changes speed and memory, not results.
        generation_batch_size: the most sequences decoded together. Changes speed and memory only.
        max_new_tokens: the most tokens of a completion, its end token included.
        min_new_tokens: the fewest.
        temperature: sampling temperature.
        top_p: nucleus sampling; 1 for none.
        top_k: sampling from the k most probable tokens; None for all.
        score_temperature: temperature at which log-probabilities are computed; None for
            ``temperature``.
        max_prompt_tokens: the longest prompt; None for what the model's context leaves.
        prompt_overflow: what happens to a longer one: "error", or "truncate" (the user's text is
            cut from its left, with a warning).
        external_prompt_passthrough: use the transition's prompts without the formatters.
        early_termination_threshold: end an episode after a turn whose mean reward is above it;
            None for never.
        eval_interval: evaluate before every item whose index is a multiple of it; 0 for never.
        eval_num_samples: rows of the evaluation dataset that are used.
        eval_batch_size: episodes played together in an evaluation.
        eval_temperature: temperature of evaluations; None for ``temperature``, 0 for greedy.
        logging_steps: log at most once per this many joint-action reward evaluations.
        num_transcripts: episodes written to TensorBoard as text with each log.
        parallel_training: "none", or "mp" for models on devices of their own.
        agent_devices: device of each agent (one for all, or a list).
        critic_devices: device of each critic.
        reference_devices: device of each reference model; None for the agents' devices.
        reference_kl_enabled: subtract a KL penalty to the initial policy from the reward.
        reference_kl_coef: its weight.
        max_reference_kl: stop the run after an update in which an agent's mean KL to its reference
            per completion is above it; None for no such bound. Needs ``reference_kl_enabled``.
        guidance_weight: w in (1 - w) x advantage + w x guidance, over the share of training items
            that are learnt from; a number or an ``Anneal`` (in YAML a mapping of its fields). It
            acts only where a trainer has ``guidance``.
        dtype: precision of computation. Weights and optimiser states are float32 whatever it is;
            "bfloat16" decodes with a bfloat16 copy and updates under autocast.
        gradient_checkpointing: recompute activations in updates to save memory.
        shuffle: take the rows in a seeded order, another one each epoch.
        seed: makes the run reproducible.
        verbose: print the table of metrics and a progress bar.

    Raises:
        ValueError: when a field has a wrong type or range, or fields contradict each other.
    """

    num_agents: int = whole(2, at_least=1)
    num_turns: int = whole(1, at_least=1)
    num_generations: int = whole(1, at_least=1)
    num_train_epochs: int = whole(1, at_least=1)
    max_steps: int | None = whole(None, at_least=1, optional=True)
    critic_type: Literal["v", "q"] = one_of("v", ("v", "q"))
    agent_learning_rate: float = real(5e-6, at_least=0)
    critic_learning_rate: float | None = real(5e-6, at_least=0, optional=True)
    lr_scheduler_type: str = one_of("constant", SCHEDULES)
    warmup_steps: int = whole(0, at_least=0)
    value_loss_coef: float = real(0.6, at_least=0)
    advantage_normalization: bool = truth(True)
    discount: float = real(1.0, at_least=0, at_most=1)
    max_grad_norm: float | None = real(None, above=0, optional=True)
    max_bad_steps: int = whole(3, at_least=1)
    rollout_buffer_size: int = whole(8, at_least=1)
    train_batch_size: int | None = whole(None, at_least=1, optional=True)
    micro_batch_size: int | None = whole(None, at_least=1, optional=True)
    generation_batch_size: int = whole(64, at_least=1)
    max_new_tokens: int = whole(256, at_least=1)
    min_new_tokens: int = whole(0, at_least=0)
    temperature: float = real(1.0, above=0)
    top_p: float = real(1.0, above=0, at_most=1)
    top_k: int | None = whole(None, at_least=1, optional=True)
    score_temperature: float | None = real(None, above=0, optional=True)
    max_prompt_tokens: int | None = whole(None, at_least=1, optional=True)
    prompt_overflow: Literal["error", "truncate"] = one_of("error", ("error", "truncate"))
    external_prompt_passthrough: bool = truth(False)
    early_termination_threshold: float | None = real(None, optional=True)
    eval_interval: int = whole(16, at_least=0)
    eval_num_samples: int = whole(4, at_least=0)
    eval_batch_size: int = whole(1, at_least=1)
    eval_temperature: float | None = real(None, at_least=0, optional=True)
    logging_steps: int = whole(1, at_least=1)
    num_transcripts: int = whole(2, at_least=0)
    parallel_training: Literal["none", "mp"] = one_of("none", ("none", "mp"))
    agent_devices: Devices = devices()
    critic_devices: Devices = devices()
    reference_devices: Devices = devices()
    reference_kl_enabled: bool = truth(False)
    reference_kl_coef: float = real(0.1, at_least=0)
    max_reference_kl: float | None = real(None, above=0, optional=True)
    guidance_weight: AnnealLike = annealed(GUIDANCE_WEIGHT, at_least=0, at_most=1)
    dtype: Literal["float32", "bfloat16"] = one_of("float32", ("float32", "bfloat16"))
    gradient_checkpointing: bool = truth(False)
    shuffle: bool = truth(False)
    seed: int = whole(0, at_least=0)
    verbose: bool = truth(True)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_turns > 1 and self.num_generations != 1:
            raise ValueError(
                f"num_generations ({self.num_generations}) must be 1 when num_turns "
                f"({self.num_turns}) is above 1; set num_generations=1 or num_turns=1."
            )
        if self.max_reference_kl is not None and not self.reference_kl_enabled:
            raise ValueError(
                f"max_reference_kl ({self.max_reference_kl}) bounds a KL that is not computed; set "
                "reference_kl_enabled=True (with reference_kl_coef=0 for the bound alone)."
            )
        if self.train_batch_size is None:
            self.train_batch_size = self.rollout_buffer_size
        if self.parallel_training == "mp":
            self._require_devices("agent_devices")
            if self._has_own_critics:
                self._require_devices("critic_devices")
        self.sampling()

    @property
    def batch_size(self) -> int:
        """Samples per optimiser step."""
        return self.train_batch_size or self.rollout_buffer_size

    def sampling(self, temperature: float | None = None) -> SamplingParams:
        """How completions are sampled, at another temperature where one is given."""
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            temperature=self.temperature if temperature is None else temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )

    @property
    def scoring_temperature(self) -> float:
        """The temperature of the log-probabilities."""
        return self.temperature if self.score_temperature is None else self.score_temperature

    @property
    def _has_own_critics(self) -> bool:
        return True

    def _require_devices(self, name: str) -> None:
        if getattr(self, name) is None:
            raise ValueError(
                f"{name} (None) must be given when parallel_training is 'mp'; set for example "
                f"{name}=['cuda:0', 'cuda:1']."
            )


@dataclass(kw_only=True)
class MAACConfig(ActorCriticConfig):
    """Configuration of MAAC: one centralised critic over the joint history.

    Args:
        critic_update: "per_agent" steps the shared critic once with each agent's minibatch, in
            the agents' order; "joint" steps it once per minibatch of joint samples.
        critic_architecture: "joint": the critic reads one text of all prompts (for Q, and
            completions); "attention": it reads each agent's text by itself, and the vectors at
            their ends attend to each other.
        credit: whose TD error an agent learns from: "team" (one value for all), or "agent" (a
            value of its own, learnt from its own rewards; for Q one that knows the others'
            completions and not its own). "agent" needs ``critic_architecture="attention"``.
        attention_heads: heads of the attention; they must divide the critic's width.
    """

    critic_update: Literal["per_agent", "joint"] = one_of("per_agent", ("per_agent", "joint"))
    critic_architecture: Literal["joint", "attention"] = one_of("joint", ("joint", "attention"))
    credit: Literal["team", "agent"] = one_of("team", ("team", "agent"))
    attention_heads: int = whole(4, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit == "agent" and self.critic_architecture == "joint":
            raise ValueError(
                "credit ('agent') needs a critic with a value for each agent; set "
                "critic_architecture='attention', or credit='team'."
            )


@dataclass(kw_only=True)
class IACConfig(ActorCriticConfig):
    """Configuration of IAC: a critic for each agent.

    Args:
        use_separate_critic: True for a critic model per agent, False for a value head on the
            agent's own trunk.
        critic_value_head_hidden_dim: hidden size of a separate critic's value head.
        value_head_hidden_dim: hidden size of the value head on the agent's trunk.
        value_clip_range: clip of the value's change in the loss (None for none); it acts only
            with ``use_separate_critic=False``.
    """

    use_separate_critic: bool = truth(True)
    critic_value_head_hidden_dim: int | None = whole(None, at_least=1, optional=True)
    value_head_hidden_dim: int | None = whole(None, at_least=1, optional=True)
    value_clip_range: float | None = real(0.2, above=0, optional=True)

    @property
    def _has_own_critics(self) -> bool:
        return self.use_separate_critic


def default_of(config: ActorCriticConfig, name: str) -> Any:
    """The default of a field."""
    return next(entry.default for entry in fields(config) if entry.name == name)
