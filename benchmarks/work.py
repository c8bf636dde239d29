"""The work that both libraries are given: models, rows, reward and transition."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from cases import NUM_AGENTS, Case
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

_TINY_WORDS = 1000
# One token each in most vocabularies when a blank precedes them.
_WORDS = re.findall(
    r"\w+",
    """
    the a to of and in that it was for on are as with they at be this from have or by one had not
    but what all were when we there can an your which their said if do will each about how up out
    them then she many some so these would other into has more her two like him see time could no
    make than first been its who now people my made over did down only way find use may water
    """,
)


def load_model(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model and its tokenizer; the same weights at every call."""
    if name == "smollm2":
        from marlogue.agents import load_smollm2

        model, tokenizer = load_smollm2()
        return model, tokenizer
    if name == "toy":
        return _toy_gpt2()
    return _tiny_llama()


def _toy_gpt2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that examples and tests learn with: nothing but overhead."""
    from marlogue.agents import tiny_model

    model, tokenizer = tiny_model([f"w{k}" for k in range(_TINY_WORDS)])
    _pad_with_end(model, tokenizer)
    return model, tokenizer


def _pad_with_end(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """The peer takes the first padding id as a completion's end; a padding token of its own could
    be sampled, and completions would not have the forced length."""
    tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id


def _tiny_llama() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A Llama of about a million random weights, and a tokenizer over whole words."""
    vocabulary = {f"w{k}": k for k in range(_TINY_WORDS)} | {"<unk>": _TINY_WORDS}
    end = vocabulary["<eos>"] = len(vocabulary)
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval(), tokenizer


def models_for(case: Case) -> tuple[list[Any], list[Any], PreTrainedTokenizerBase]:
    """Agents and critics of a case as separate copies of one model, and the tokenizer."""
    model, tokenizer = load_model(case.model)
    count = {"maac": 1, "iac": NUM_AGENTS, "iac-shared": 0}[case.learner]
    copies = [model] + [deepcopy(model) for _ in range(NUM_AGENTS + count - 1)]
    return copies[:NUM_AGENTS], copies[NUM_AGENTS:], tokenizer


def make_text(tokenizer: PreTrainedTokenizerBase, tokens: int, words: random.Random) -> str:
    """A text of exactly ``tokens`` tokens."""
    tiny = "w0" in tokenizer.get_vocab()
    chosen: list[str] = []
    while True:
        chosen.append(f"w{words.randrange(_TINY_WORDS)}" if tiny else words.choice(_WORDS))
        length = len(tokenizer(" ".join(chosen))["input_ids"])
        if length == tokens:
            return " ".join(chosen)
        if length > tokens:
            chosen.clear()


def make_rows(case: Case, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Rows with the prompts of every turn and agent: ``row["texts"][turn][agent]``."""
    words = random.Random(1)
    rows = []
    for number in range(case.prompts):
        share = 0.5 + (number + 0.5) / case.prompts if case.ragged else 1.0
        length = max(4, round(share * case.prompt_tokens))
        texts = [
            [make_text(tokenizer, length, words) for _ in range(NUM_AGENTS)]
            for _ in range(case.turns)
        ]
        rows.append({"prompt": texts[0][0], "texts": texts})
    words.shuffle(rows)
    return rows


def formatter(agent: int) -> Callable[[dict[str, Any]], str]:
    def first_prompt(row: dict[str, Any]) -> str:
        return str(row["texts"][0][agent])

    return first_prompt


def make_transition(rows: Sequence[dict[str, Any]]) -> Callable[..., list[str]]:
    """Prompts of the later turns: of known length, whatever was answered."""
    by_prompt = {row["prompt"]: row["texts"] for row in rows}

    def transition(
        prompt: str,
        agent_completions: Sequence[str],
        num_agents: int,
        prompt_history_per_agent: Sequence[Sequence[str]],
        response_history_per_agent: Sequence[Sequence[str]],
    ) -> list[str]:
        return list(by_prompt[prompt][len(prompt_history_per_agent[0])])

    return transition


def reward(first: Sequence[str], second: Sequence[str]) -> list[float]:
    """One number per joint action that varies with the answers."""
    return [math.tanh(len(a) / max(len(b), 1) - 1.0) for a, b in zip(first, second, strict=True)]
