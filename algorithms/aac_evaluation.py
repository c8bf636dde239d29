"""Episodes of a trained team, to see how good it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from marlogue.algorithms.aac_acting import ActingTeam
from marlogue.algorithms.aac_diagnostics import MOST_NAMED
from marlogue.algorithms.team_vector import TeamVector
from marlogue.algorithms.team_views import EpisodeEnd, TeamView, VectorStep

#: Environments that an evaluation plays at once, at most.
TOGETHER = 10
#: Called after each joint action with what was seen, the actions taken [E, N(, A)] and the step.
Watcher = Callable[[TeamView, Any, VectorStep], None]


def play_episodes(
    vector: TeamVector,
    players: ActingTeam,
    episodes: int,
    *,
    greedy: bool,
    watch: Watcher | None = None,
) -> list[EpisodeEnd]:
    """Play episodes: the first ones of each environment, so that their seeds are the same every
    time.

    Args:
        vector: the environments.
        players: who plays.
        episodes: how many.
        greedy: play the most probable actions.
        watch: sees all of it.

    Returns:
        The episodes; as many of each environment, or one more.
    """
    wanted = np.full(vector.num_envs, episodes // vector.num_envs)
    wanted[: episodes % vector.num_envs] += 1
    ended: list[EpisodeEnd] = []
    view = vector.reset(first_episode=0)
    while len(ended) < episodes:
        actions = players.act(view, greedy=greedy)
        step = vector.step(actions)
        if watch is not None:
            watch(view, actions, step)
        ended += [end for end in step.episodes if end.episode < wanted[end.env]]
        players.forget(step.over)
        view = step.view
    return ended


def evaluation_figures(ended: list[EpisodeEnd], agents: tuple[str, ...]) -> dict[str, float]:
    """``eval/team/return_mean`` and ``return_std`` (of the sums over agents), ``length_mean``, and
    ``eval/AGENT/return_mean`` of teams that are not too large for it."""
    returns = np.array([end.returns for end in ended])
    totals = returns.sum(1)
    found = {
        "eval/team/return_mean": float(totals.mean()),
        "eval/team/return_std": float(totals.std()),
        "eval/team/length_mean": float(np.mean([end.length for end in ended])),
    }
    if len(agents) <= MOST_NAMED:
        means = zip(agents, returns.mean(0), strict=True)
        found |= {f"eval/{agent}/return_mean": float(mean) for agent, mean in means}
    return found
