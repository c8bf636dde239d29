"""Prompts in a dictionary."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Dict
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.wrappers.view import View, require_texts


class DictPrompt(View):
    """Prompts become `Dict({"prompt": ...})`, for what takes texts only within a dictionary.

    PettingZoo's `api_test` passes on `marlogue.envs.to_aec(DictPrompt(env))`; on bare texts it
    asks for their dtype.

    Args:
        env: an environment whose observations are texts.

    Raises:
        TypeError: when observations are not texts.
    """

    def __init__(self, env: ParallelEnv) -> None:
        super().__init__(env)
        require_texts(env, "DictPrompt", observations=True, actions=False)
        self.observation_spaces = {
            agent: Dict({"prompt": env.observation_space(agent)}) for agent in env.possible_agents
        }

    @override
    def observe(self, agent: str, observation: str, info: dict[str, Any]) -> dict[str, str]:
        return {"prompt": observation}
