"""What a pass of a critic takes in memory, known before it runs."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from marlogue.agents.attention import GATHER_FROM
from marlogue.agents.few_agents import FEW_AGENTS

#: Below this nobody needs to be asked how much memory there is.
SMALL = 256 * 2**20
#: The share of the free memory that a pass may take.
SHARE = 0.9


@dataclass(frozen=True)
class CriticMemory:
    """Bytes of a forward pass, and of the backward pass where ``training``.

    Attributes:
        batch_size: B.
        tokens: arrays of the MLPs and projections that live until the backward pass.
        attention: masks, weights or gathered neighbours, and sums.
        transient: the largest arrays that live for a moment.
    """

    batch_size: int
    tokens: int
    attention: int
    transient: int

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.tokens + self.attention + self.transient

    @classmethod
    def of(
        cls,
        *,
        batch_size: int,
        num_agents: int,
        num_queries: int | None = None,
        observation_size: int,
        action_size: int,
        hidden_size: int = 128,
        num_heads: int = 4,
        attention: str = "full",
        num_neighbours: int | None = None,
        encoder_layers: int = 1,
        head_layers: int = 1,
        training: bool = True,
        bytes_per_number: int = 4,
    ) -> CriticMemory:
        """Counted from the sizes of what the layers of `AttentionCritic` keep; arguments as there.

        Args:
            batch_size: B.
            num_agents: N.
            num_queries: M; None for N.
            observation_size: D, with the agents' vectors.
            action_size: A.
            hidden_size: h.
            num_heads: H.
            attention: "full", "linear", "local" or "mean".
            num_neighbours: K, for "local".
            encoder_layers: layers of e and g.
            head_layers: hidden layers of f.
            training: whether a backward pass follows.
            bytes_per_number: 4 for float32.
        """
        B, N, M = batch_size, num_agents, num_agents if num_queries is None else num_queries
        h, D, A = hidden_size, observation_size, action_size
        # What g reads, its layers, the keys and values.
        offered = D + A + (encoder_layers + (1 if attention == "mean" else 2)) * h
        # What e reads, its layers, the question, x, the layers of f and what it returns.
        asked = D + (encoder_layers + 2 + head_layers) * h + 2 * A
        kept = B * (N * offered + M * asked) * bytes_per_number
        gathers = attention == "local" and N >= GATHER_FROM
        near = M * min(num_neighbours or 0, N) if gathers else 0
        mixing = _mixing(B, N, M, h, num_heads, attention, near) * bytes_per_number
        # Gradients of the widest arrays, while the arrays themselves are still there.
        widest = max(N * (4 if attention == "linear" else 2) * h, M * 3 * h, near * 2 * h)
        if attention == "full" and N <= FEW_AGENTS:
            widest += M * N * h  # products of attention_of_few
        moment = B * widest * bytes_per_number
        if not training:
            # One layer replaces another; what is left is keys, values and a layer of each MLP.
            kept, moment = kept * 3 // 4, moment // 2
        return cls(batch_size, kept, mixing, moment)


def _mixing(B: int, N: int, M: int, h: int, H: int, attention: str, near: int) -> int:
    """Numbers that the mixing itself keeps; ``near`` are gathered neighbours per sample."""
    d = h // H
    if near:
        return B * near * (2 * h + 4 * H)
    if attention == "linear" and d < N:
        return B * ((N + M) * h + 2 * h * d + 6 * M * H)
    if attention == "linear":
        return 5 * B * H * M * N
    if attention == "mean":
        return 0
    return B * M * (2 * N + H)  # the mask as bool and as numbers, and a sum per row


def memory_plan(need: CriticMemory, device: torch.device, limit: int | None, overflow: str) -> int:
    """In how many parts the batch has to be cut to stay within the limit; 1 for none.

    Args:
        need: the estimate for the batch in one.
        device: where it runs.
        limit: bytes; None for what is available there now.
        overflow: "error" or "recompute".

    Raises:
        MemoryError: when the batch does not fit and ``overflow`` is "error", or a single sample
            does not.
    """
    if limit is None:
        if need.total < SMALL:
            return 1
        free = available_memory(device)
        if free is None:
            return 1
        limit = int(SHARE * free)
    if need.total <= limit:
        return 1
    parts = math.ceil(need.total / max(limit, 1))
    if overflow == "recompute" and parts <= need.batch_size:
        return parts
    raise MemoryError(
        f"a pass of the critic over {need.batch_size} samples would take about "
        f"{_mib(need.total)} MiB (attention {_mib(need.attention)}), more than the limit of "
        f"{_mib(limit)} MiB. Set fewer query agents (num_queries), attention='linear' or 'local', "
        "a smaller batch or overflow='recompute', or raise memory_limit."
    )


def available_memory(device: torch.device) -> int | None:
    """Bytes that a process can still get on a device, without swapping; None where that cannot be
    known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    if device.type != "cpu":
        return None
    found = [room for room in (_system_memory(), _group_memory()) if room is not None]
    return min(found, default=None)


def _system_memory() -> int | None:
    listing = Path("/proc/meminfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    if "SC_AVPHYS_PAGES" in names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _group_memory() -> int | None:
    """What the control group (a container's limit) leaves, its file cache counted as free."""
    folder = Path("/sys/fs/cgroup")
    try:
        most = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        statistics = (folder / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if not most.isdigit():
        return None
    cache = [int(x.split()[1]) for x in statistics.splitlines() if x.startswith("inactive_file ")]
    return int(most) - used + sum(cache)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f}"
