"""What acts and what judges: language-model policies, critics, generation and scoring."""

from marlogue.agents.action_distributions import (
    ActionDistribution,
    DiscreteActions,
    TanhGaussian,
)
from marlogue.agents.attention_critic import AttentionCritic
from marlogue.agents.attention_memory import CriticMemory
from marlogue.agents.completion import Completion
from marlogue.agents.critic import Critic
from marlogue.agents.critic_baselines import ConcatCritic, MeanPoolCritic
from marlogue.agents.critic_inputs import TeamCritic
from marlogue.agents.generation import (
    Generated,
    GenerationBackend,
    TransformersBackend,
    end_token_ids,
)
from marlogue.agents.heads import ValueHead
from marlogue.agents.loading import (
    load_causal_lm,
    load_tokenizer,
    load_trunk,
    read_weights,
    resolve_identifier,
    with_float32_weights,
)
from marlogue.agents.mixing import MonotonicMixer, SumMixer
from marlogue.agents.mlp import GroupedMLP, mlp
from marlogue.agents.modes import eval_mode, update_mode
from marlogue.agents.neighbourhoods import FixedGraph, Nearest, Neighbourhood
from marlogue.agents.policy import LLMPolicy
from marlogue.agents.prompts import PromptEncoder, pad_token_id
from marlogue.agents.sampling import SamplingParams, Stream, sample_tokens, uniforms
from marlogue.agents.scoring import Answered, Scores, k3, micro_batches, score, sum_by_row
from marlogue.agents.sharing import Sharing
from marlogue.agents.smollm2 import load_smollm2, smollm2_path
from marlogue.agents.teams import TeamSpec
from marlogue.agents.text_attention import TeamHistory, TextAttention, TextAttentionCritic
from marlogue.agents.tiny import tiny_model
from marlogue.agents.trunk import Padded, Trunk, pad
from marlogue.agents.vector_actors import VectorActors

__all__ = [
    "ActionDistribution",
    "Answered",
    "AttentionCritic",
    "Completion",
    "ConcatCritic",
    "Critic",
    "CriticMemory",
    "DiscreteActions",
    "FixedGraph",
    "Generated",
    "GenerationBackend",
    "GroupedMLP",
    "LLMPolicy",
    "MeanPoolCritic",
    "MonotonicMixer",
    "Nearest",
    "Neighbourhood",
    "Padded",
    "PromptEncoder",
    "SamplingParams",
    "Scores",
    "Sharing",
    "Stream",
    "SumMixer",
    "TanhGaussian",
    "TeamCritic",
    "TeamHistory",
    "TeamSpec",
    "TextAttention",
    "TextAttentionCritic",
    "TransformersBackend",
    "Trunk",
    "ValueHead",
    "VectorActors",
    "end_token_ids",
    "eval_mode",
    "k3",
    "load_causal_lm",
    "load_smollm2",
    "load_tokenizer",
    "load_trunk",
    "micro_batches",
    "mlp",
    "pad",
    "pad_token_id",
    "read_weights",
    "resolve_identifier",
    "sample_tokens",
    "score",
    "smollm2_path",
    "sum_by_row",
    "tiny_model",
    "uniforms",
    "update_mode",
    "with_float32_weights",
]
