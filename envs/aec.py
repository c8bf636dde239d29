"""Text environments in PettingZoo's agent-by-agent (AEC) form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]
from pettingzoo.utils import BaseParallelWrapper  # type: ignore[import-untyped]
from pettingzoo.utils.conversions import (  # type: ignore[import-untyped]
    parallel_to_aec_wrapper,
)
from pettingzoo.utils.wrappers import OrderEnforcingWrapper  # type: ignore[import-untyped]

from marlogue.envs.episodes import COMMON


class AgentInfosOnly(BaseParallelWrapper):  # type: ignore[misc]
    """Leaves the team's shared facts out of infos: AEC environments have agents' infos only."""

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start an episode."""
        shown, infos = self.env.reset(seed=seed, options=options)
        return shown, _without_common(infos)

    def step(self, actions: Mapping[str, str]) -> Any:
        """Play one turn."""
        *rest, infos = self.env.step(actions)
        return (*rest, _without_common(infos))


def _without_common(infos: Mapping[str, Any]) -> dict[str, Any]:
    return {agent: info for agent, info in infos.items() if agent != COMMON}


def to_raw_aec(env: ParallelEnv) -> AECEnv:
    """Convert a parallel text environment; agents act one after the other, all see one turn."""
    return parallel_to_aec_wrapper(AgentInfosOnly(env))


def to_aec(env: ParallelEnv) -> AECEnv:
    """Convert a parallel text environment, with PettingZoo's checks of the order of calls."""
    return OrderEnforcingWrapper(to_raw_aec(env))
