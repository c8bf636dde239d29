"""Fields of a configuration about calls of the reward function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from marlogue.agents.rules import one_of, real, whole
from marlogue.envs.reward_settings import BACKENDS, ON_ERROR, RewardSettings

#: Each field, and what a text environment calls it.
REWARD_FIELDS = {
    "reward_timeout": "timeout",
    "reward_workers": "workers",
    "reward_backend": "backend",
    "on_reward_error": "on_error",
    "max_dropped_share": "max_dropped_share",
}


@dataclass(kw_only=True)
class RewardConfig:
    """How the reward function is called, and what becomes of a call that fails.

    They are passed to the environment that is made of ``reward_func`` and the datasets; see
    :class:`marlogue.envs.TextEnv`. With ``env`` they are the environment's.

    Args:
        reward_timeout: seconds that a reward call may take; None for any time.
        reward_workers: reward calls made at once; 0 makes them in the training thread, unless
            ``reward_timeout`` or "process" need a worker. Of an async function: the most that are
            awaited at once, 0 for all.
        reward_backend: workers are a "thread" each, or a "process", which can be ended.
        on_reward_error: "raise", or "drop": what a failed call was to score is not trained on.
        max_dropped_share: the run stops when more than this share of the latest 200 reward calls
            (of at least 50) was dropped.
    """

    reward_timeout: float | None = real(None, above=0, optional=True)
    reward_workers: int = whole(0, at_least=0)
    reward_backend: Literal["thread", "process"] = one_of("thread", BACKENDS)
    on_reward_error: Literal["raise", "drop"] = one_of("raise", ON_ERROR)
    max_dropped_share: float = real(0.2, at_least=0, at_most=1)

    def reward_arguments(self) -> dict[str, Any]:
        """These fields, for :class:`marlogue.envs.TextEnv`."""
        return {name: getattr(self, name) for name in REWARD_FIELDS}


def reward_fields(settings: RewardSettings) -> dict[str, Any]:
    """The fields that say what an environment does."""
    return {name: getattr(settings, inner) for name, inner in REWARD_FIELDS.items()}
