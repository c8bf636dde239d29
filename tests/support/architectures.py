"""Tiny models of several architectures, random and with enlarged weights, on 32 token ids.

Each one does something that another does not: absolute, rotary or no positions (ALiBi), positions
with an offset, a sliding window, shared key-value heads, tied embeddings, logits that are scaled
or capped after the head.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 32
EOS = 2
WINDOW = 4
"""Sliding window, in tokens, of the models that have one."""

_IDS = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": 1}
_SIZES = {
    **_IDS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 1}

_BUILDERS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(**_IDS, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED, tie_word_embeddings=True)),
    "llama_untied": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED, tie_word_embeddings=False)),
    # Every other layer slides; attention scores and logits are capped.
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **_GROUPED,
            head_dim=8,
            sliding_window=WINDOW,
            final_logit_softcapping=3.0,
            attn_logit_softcapping=5.0,
        )
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_GROUPED, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_GROUPED)),
    # Positions are looked up with an offset of 2.
    "opt": lambda: OPTForCausalLM(
        OPTConfig(
            **_IDS,
            hidden_size=16,
            ffn_dim=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            word_embed_proj_dim=16,
        )
    ),
    "bloom": lambda: BloomForCausalLM(BloomConfig(**_IDS, hidden_size=16, n_layer=2, n_head=2)),
    "falcon_alibi": lambda: FalconForCausalLM(
        FalconConfig(
            **_IDS,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            alibi=True,
            new_decoder_architecture=False,
        )
    ),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZES)),
    # The logits are scaled after the head.
    "cohere": lambda: CohereForCausalLM(CohereConfig(**_GROUPED, logit_scale=0.5)),
}

ARCHITECTURES: tuple[str, ...] = tuple(_BUILDERS)

_CAPPED = {"gemma2", "cohere"}


def has_plain_head(name: str) -> bool:
    """Tell whether the model's logits are ``head(hidden)`` and nothing more."""
    return name not in _CAPPED


def build(name: str, *, seed: int = 0, scale: float = 6.0) -> PreTrainedModel:
    """Build one of :data:`ARCHITECTURES`, in evaluation mode; the global generator is left alone.

    Args:
        name: which one.
        seed: seed of the weights.
        scale: what the matrices are multiplied by, so that every token and position matters.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(seed)
        model = _BUILDERS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(scale)
    return model.eval()
