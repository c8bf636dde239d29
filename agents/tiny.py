"""A language model small enough to learn something in seconds, with no checkpoint to fetch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

UNK_TOKEN = "<unk>"
EOS_TOKEN = "<eos>"
PAD_TOKEN = "<pad>"
SPECIAL_TOKENS: tuple[str, ...] = (UNK_TOKEN, EOS_TOKEN, PAD_TOKEN)


def tiny_model(
    words: Sequence[str],
    *,
    seed: int = 0,
    n_embd: int = 32,
    n_layer: int = 2,
    n_head: int = 2,
    n_positions: int = 512,
    dropout: float = 0.0,
    initializer_range: float = 0.02,
) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """Build a small GPT-2 of random weights and a tokenizer over whole words.

    For first steps, tests and benchmarks: it needs no download, trains in seconds on a CPU, and
    is an ordinary transformers model in every other respect (``save_pretrained``, ``AutoModel``,
    ``generate``). The vocabulary is ``words``, with ids in their order, then an unknown, an end
    and a padding token (three different ones). Text is split at white space; a word outside the
    vocabulary becomes the unknown token.

    Args:
        words: the vocabulary; different from each other, without white space in them.
        seed: seed of the weights. The same seed gives the same weights, and the global generators
            are neither read nor changed.
        n_embd: width of the hidden states; a multiple of ``n_head``.
        n_layer: number of blocks.
        n_head: number of attention heads.
        n_positions: context length in tokens (prompt and completion together).
        dropout: dropout rate of the model in training mode.
        initializer_range: standard deviation of the random weights. Adapters (LoRA) change little
            of what a model says whose own weights, which stay, are small: give them 0.2.

    Returns:
        The model (float32, on the CPU, in evaluation mode) and its tokenizer.

    Raises:
        ValueError, TypeError: an argument does not fit; the message names it.
    """
    vocabulary = _vocabulary(words)
    sizes: dict[str, object] = {
        "n_embd": n_embd,
        "n_layer": n_layer,
        "n_head": n_head,
        "n_positions": n_positions,
    }
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} ({size!r}) must be an integer of at least 1; set {name}=1")
    if n_embd % n_head:
        raise ValueError(
            f"n_embd ({n_embd}) must be a multiple of n_head ({n_head}); "
            f"set n_embd={n_head * (n_embd // n_head + 1)}"
        )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout ({dropout!r}) must be in [0, 1); set dropout=0.0 for none")
    if not 0.0 < initializer_range < math.inf:
        raise ValueError(
            f"initializer_range ({initializer_range!r}) must be a finite number above 0; "
            "set initializer_range=0.02"
        )
    config = GPT2Config(
        vocab_size=len(vocabulary),
        n_positions=n_positions,
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=n_head,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        initializer_range=initializer_range,
        bos_token_id=None,
        eos_token_id=vocabulary[EOS_TOKEN],
        pad_token_id=vocabulary[PAD_TOKEN],
    )
    # Only the CPU generator is seeded: torch.manual_seed would reseed every accelerator as well.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = GPT2LMHeadModel(config)
    model.float()
    model.eval()
    return model, _tokenizer(vocabulary, n_positions)


def _vocabulary(words: Sequence[object]) -> dict[str, int]:
    """Give every word its id, the special tokens after the user's words."""
    if isinstance(words, str):
        raise TypeError(f"words ({words!r}) must be a list of words; set words={words.split()!r}")
    vocabulary: dict[str, int] = {}
    for word in words:
        if not isinstance(word, str) or len(word.split()) != 1 or word != word.strip():
            raise ValueError(
                f"words ({word!r}) must hold non-empty strings without white space; "
                "set one entry per word"
            )
        if any(token in word for token in SPECIAL_TOKENS):
            raise ValueError(
                f"words ({word!r}) must not hold a special token {SPECIAL_TOKENS}; leave it out"
            )
        if word in vocabulary:
            raise ValueError(f"words ({word!r}) must differ from each other; name it once")
        vocabulary[word] = len(vocabulary)
    if not vocabulary:
        raise ValueError("words ([]) must hold at least one word; set words=['yes', 'no']")
    for token in SPECIAL_TOKENS:
        vocabulary[token] = len(vocabulary)
    return vocabulary


def _tokenizer(vocabulary: dict[str, int], n_positions: int) -> PreTrainedTokenizerFast:
    backend = Tokenizer(WordLevel(vocabulary, unk_token=UNK_TOKEN))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=UNK_TOKEN,
        eos_token=EOS_TOKEN,
        pad_token=PAD_TOKEN,
        padding_side="left",
        model_max_length=n_positions,
        clean_up_tokenization_spaces=False,
    )
