"""The settings of `cloud_scheduling_v0`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CloudSettings:
    """See `cloud_scheduling_v0.parallel_env`.

    Raises:
        ValueError: for a setting outside its range.
    """

    num_agents: int
    num_candidates: int
    load: float
    swing: float
    period: int
    job_length: float
    max_steps: int
    reward: Literal["team", "own"]
    cluster_seed: int | None
    exact_guidance: bool
    reference_error: float

    def __post_init__(self) -> None:
        least = {
            "num_agents": 2,
            "num_candidates": 2,
            "period": 1,
            "job_length": 1,
            "max_steps": 1,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if not value >= bound:
                raise ValueError(f"{name} ({value!r}) must be at least {bound}.")
        if not self.load > 0:
            raise ValueError(f"load ({self.load!r}) must be above 0; 0.85 is a busy cluster.")
        for name in ("swing", "reference_error"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} ({value!r}) must be between 0 and 1.")
        if self.reward not in ("team", "own"):
            raise ValueError(f"reward ({self.reward!r}) must be 'team' or 'own'.")
