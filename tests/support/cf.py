"""Small real models whose answers are known on paper, or that show a fault plainly.

* :func:`cf_model`: a GPT-2 whose next-token distribution is the same ``p`` at every position, so
  that every log-prob, and the gradient of every policy loss, can be worked out by hand.
* :func:`random_gpt2`: a GPT-2 with large random weights, to which position and dropout matter.
* :func:`tiny_llama`: a Llama whose input and output embeddings are one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

WORDS: tuple[str, ...] = ("A", "B", "</s>", "q", "r", "<unk>")
"""The six words of the closed-form model; a word's id is its place here."""

EOS = 2
"""Id of the end token, which is the padding token too, as in many real checkpoints."""

_LOG_ZERO = -1e4  # softmax makes an exact 0 of it in float32, and nothing becomes infinite


def cf_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of the closed-form model: split at blanks, no token added."""
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        eos_token="</s>",
        pad_token="</s>",
        clean_up_tokenization_spaces=False,
    )


def cf_model(
    p: Mapping[str, float] | Sequence[float], *, n_positions: int = 64
) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """Build the closed-form model and its tokenizer.

    The final layer norm has weight 0 and bias ``e0`` (1 in column 0), so the last hidden state is
    ``e0`` whatever the input. The embedding, tied to the output, is zero but for its column 0,
    which holds ``log p``: the logits are ``log p`` at every position, and
    ``d(-adv * sum log p) / d wte[:, 0] = -adv * (count - n * p)`` for n tokens with counts
    ``count``.

    Args:
        p: probabilities, by word or in the order of :data:`WORDS`; missing words have 0.
        n_positions: context length of the model.

    Returns:
        The model in evaluation mode, and the tokenizer.
    """
    if isinstance(p, Mapping):
        strangers = set(p) - set(WORDS)
        if strangers:
            raise ValueError(f"p names words that the model lacks: {sorted(strangers)}")
        probabilities = [float(p.get(word, 0.0)) for word in WORDS]
    else:
        if len(p) > len(WORDS):
            raise ValueError(f"p has {len(p)} entries; the model has {len(WORDS)} words")
        probabilities = [float(x) for x in p] + [0.0] * (len(WORDS) - len(p))
    if min(probabilities) < 0 or abs(sum(probabilities) - 1.0) > 1e-6:
        raise ValueError(f"p ({probabilities}) must be non-negative and sum to 1")
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=n_positions,
        n_embd=8,
        n_layer=1,
        n_head=1,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = GPT2LMHeadModel(config)
    logs = [math.log(x) if x > 0 else _LOG_ZERO for x in probabilities]
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.zero_()
        model.transformer.ln_f.bias[0] = 1.0
        model.transformer.wte.weight.zero_()
        model.transformer.wte.weight[:, 0] = torch.tensor(logs)
    model.eval()
    return model, cf_tokenizer()


def random_gpt2(
    *,
    seed: int = 0,
    vocab_size: int = 32,
    n_positions: int = 64,
    n_embd: int = 32,
    n_layer: int = 2,
    n_head: int = 2,
    dropout: float = 0.0,
    scale: float = 5.0,
    eos_token_id: int = 2,
) -> GPT2LMHeadModel:
    """Build a GPT-2 of random weights with every matrix multiplied by ``scale``.

    At the usual initialisation the answer hardly depends on the position; enlarged weights make
    faults of position, padding and dropout visible. Evaluation mode; the global generator is left
    alone.
    """
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=n_positions,
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=n_head,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(scale)
    model.eval()
    return model


def tiny_llama(
    *,
    seed: int = 0,
    vocab_size: int = len(WORDS),
    hidden_size: int = 16,
    n_layer: int = 2,
    n_positions: int = 64,
    tie_word_embeddings: bool = True,
    eos_token_id: int = EOS,
) -> LlamaForCausalLM:
    """Build a Llama of random weights; its vocabulary fits :func:`cf_tokenizer` by default.

    Evaluation mode; the global generator is left alone.
    """
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=n_layer,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=n_positions,
        tie_word_embeddings=tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.eval()
    return model
