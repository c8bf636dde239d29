"""The machine: what its CPU has, and how fast it multiplies and reads (the roofline)."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

import torch

_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "sve",
    "bf16",
)
_SIZES = (512, 1024, 2048)
_TRIES = 4
_STREAM_BYTES = 256 * 2**20


def describe() -> dict[str, Any]:
    """Name, features, and the best of several tries of each kind of work. GFLOPS and GB/s are per
    CPU second (of one core, then), which a busy machine disturbs less than wall time."""
    name, flags = _cpu()
    return {
        "cpu": name,
        "features": [feature for feature in _FEATURES if feature in flags],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gflops_float32": max(_gflops(size, torch.float32) for size in _SIZES),
        "gflops_bfloat16": _gflops(_SIZES[0], torch.bfloat16),
        "read_gb_per_s": _read_speed(),
    }


def _cpu() -> tuple[str, set[str]]:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine(), set()
    fields: dict[str, str] = {}
    for line in info.read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    flags = fields.get("flags", fields.get("Features", ""))
    return fields.get("model name", platform.machine()), set(flags.split())


def _gflops(size: int, dtype: torch.dtype) -> float:
    left, right = torch.randn(2, size, size).to(dtype)
    best = 0.0
    for _ in range(_TRIES):
        started = time.process_time()
        left @ right
        best = max(best, 2 * size**3 / (time.process_time() - started) / 1e9)
    return best


def _read_speed() -> float:
    """GB/s at which a matrix far larger than the caches is read once: what a decoding step of one
    sequence does with the weights."""
    matrix = torch.ones(_STREAM_BYTES // 4 // 4096, 4096)
    vector = torch.ones(4096)
    best = 0.0
    for _ in range(_TRIES):
        started = time.process_time()
        matrix @ vector
        best = max(best, _STREAM_BYTES / (time.process_time() - started) / 1e9)
    return best


def generation_flops(model: Any, prompt_tokens: int, new_tokens: int) -> float:
    """Floating-point operations per generated token: the layers' matrices for the prompt's and the
    completion's tokens, attention over what precedes each, and the head for each new token."""
    config = model.config
    head = config.vocab_size * config.hidden_size
    embedding = model.get_input_embeddings().weight.numel()
    total = sum(parameter.numel() for parameter in model.parameters())
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    layers = total - embedding - (0 if tied else head)
    length = prompt_tokens + new_tokens
    attention = 2 * config.num_hidden_layers * config.hidden_size * length**2
    return float(2 * layers * length + attention + 2 * head * new_tokens) / new_tokens
