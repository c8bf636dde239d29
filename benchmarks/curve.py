"""Generation speed against the number of prompts that are decoded together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from machine import generation_flops
from meter import Meter
from work import load_model, make_text

from marlogue.agents import LLMPolicy, SamplingParams


def measure(
    name: str, prompt_tokens: int, new_tokens: int, batches: Sequence[int]
) -> dict[str, Any]:
    """Tokens per CPU and per wall second of ``LLMPolicy.act`` for each number of prompts.

    Returns:
        ``speed``: batch -> tokens per "cpu" and "wall" second; ``flops`` per token; the weights'
        size in bytes.
    """
    model, tokenizer = load_model(name)
    policy = LLMPolicy(model, tokenizer)
    params = SamplingParams(max_new_tokens=new_tokens, min_new_tokens=new_tokens)
    warm = SamplingParams(max_new_tokens=2)
    words = random.Random(2)
    policy.act([make_text(tokenizer, 4, words)], warm, [(0,)])
    speed = {}
    for batch in batches:
        prompts = [make_text(tokenizer, prompt_tokens, words) for _ in range(batch)]
        meter = Meter()
        act = meter.timed("total", policy.act)
        answers = act(prompts, params, [(batch, k) for k in range(batch)])
        tokens = sum(len(answer.ids) for answer in answers)
        speed[batch] = {
            "cpu": tokens / meter.cpu["total"],
            "wall": tokens / meter.wall["total"],
        }
    return {
        "speed": speed,
        "flops": generation_flops(model, prompt_tokens, new_tokens),
        "weight_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
    }
