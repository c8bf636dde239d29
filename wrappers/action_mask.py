"""Action masks as part of the observation."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.wrappers.view import ACTION_MASK, View


class ActionMask(View):
    """Observations become `Dict({key: observation, "action_mask": Box(0, 1, (K,), int8)})`.

    The outermost view, for learners that read masks from observations. The mask is that of the
    agent's info, where `CandidateActions` or `TokenByToken` put it; for an agent whose episode
    has ended it is all ones if there is none.

    Args:
        env: an environment with `Discrete(K)` actions.
        key: where the observation goes: "observation" as in PettingZoo's own games,
            "observations" for RLlib.

    Raises:
        TypeError: when `key` is no text, or an agent's actions are not `Discrete`, counted from 0.
        ValueError: when `key` cannot be used. At a reset or step, when a mask is missing, has
            another length than K, or other values than 0 and 1, or allows nothing.
    """

    def __init__(self, env: ParallelEnv, *, key: str = "observation") -> None:
        super().__init__(env)
        if not isinstance(key, str):
            raise TypeError(f"key ({key!r}) must be a name")
        if key in ("", ACTION_MASK):
            raise ValueError(f"key ({key!r}) must be a name other than {ACTION_MASK!r}")
        self.key = key
        self.lengths: dict[str, int] = {}
        for agent, space in self.action_spaces.items():
            if not isinstance(space, Discrete) or space.start != 0:
                raise TypeError(
                    f"ActionMask needs Discrete actions counted from 0; the action space of "
                    f"{agent} is {space}. Put it around CandidateActions or TokenByToken"
                )
            self.lengths[agent] = int(space.n)
        self.observation_spaces = {
            agent: Dict({key: space, ACTION_MASK: Box(0, 1, (self.lengths[agent],), np.int8)})
            for agent, space in self.observation_spaces.items()
        }

    @override
    def observe(self, agent: str, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        length = self.lengths[agent]
        if ACTION_MASK in info:
            mask = np.asarray(info[ACTION_MASK])
        elif agent in self.agents:
            raise ValueError(
                f"infos[{agent!r}] lacks {ACTION_MASK!r}; put CandidateActions or TokenByToken "
                "into the chain (around UniformEnd), or leave ActionMask out"
            )
        else:
            mask = np.ones(length, dtype=np.int8)
        if mask.shape != (length,) or mask.max() != 1 or not ((mask == 0) | (mask == 1)).all():
            raise ValueError(
                f"the {ACTION_MASK} of {agent} ({mask!r}) must be {length} zeros and ones, one for "
                f"each action of {self.action_space(agent)}, and not all zeros"
            )
        return {self.key: observation, ACTION_MASK: mask.astype(np.int8)}
