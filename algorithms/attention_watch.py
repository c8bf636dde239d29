"""Looks on while an episode is played, and takes down who attends to whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marlogue.agents.attention_critic import AttentionCritic
from marlogue.algorithms.aac_acting import ActingTeam
from marlogue.algorithms.attention_recorder import AttentionRecorder
from marlogue.algorithms.attention_trace import AttentionTrace
from marlogue.algorithms.team_views import TeamView, VectorStep


class AttentionWatch:
    """Records the first episode of the first environment.

    Args:
        critic: whose attention it is.
        players: the team that plays.
        position: indices of the position in an observation; None for none.
        about: what is played, for titles.
    """

    def __init__(
        self,
        critic: AttentionCritic,
        players: ActingTeam,
        position: list[int] | None,
        about: str,
    ) -> None:
        self._critic = critic
        self._players = players
        self._position = position
        self._recorder = AttentionRecorder(critic.team.agents, about=about)
        self._over = False

    def __call__(self, view: TeamView, actions: NDArray[Any], step: VectorStep) -> None:
        """Take down a step: what was seen, done, and what came of it. The players' memory is that
        after they acted."""
        if self._over:
            return
        weights = self._weights(view, actions) if self._recorder.wants_weights else None
        places = None
        if self._position is not None:
            places = view.observations[0][:, self._position]
        self._recorder.add(
            weights, view.present[0], step.rewards[0], actions=actions[0], positions=places
        )
        self._over = bool(step.over[0] | step.lost[0])

    def trace(self) -> AttentionTrace:
        """What was recorded."""
        return self._recorder.trace()

    @torch.no_grad()
    def _weights(self, view: TeamView, actions: NDArray[Any]) -> NDArray[np.float32]:
        critic, device = self._critic, self._critic.exists.device
        seen = self._players.seen(view)[:1]
        done = torch.from_numpy(np.ascontiguousarray(actions[:1])).to(device)
        present = torch.from_numpy(view.present[:1]).to(device)
        found: NDArray[np.float32] = critic.attention_weights(seen, done, present)[0].cpu().numpy()
        return found
