"""Episodes of a trained team, to see how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from marlogue.agents.teams import TeamSpec
from marlogue.agents.vector_actors import VectorActors
from marlogue.algorithms.aac_acting import ActingTeam
from marlogue.algorithms.aac_diagnostics import MOST_NAMED
from marlogue.algorithms.items import EnvOrFactory
from marlogue.algorithms.streams import EVAL
from marlogue.algorithms.team_vector import TeamVector, make_team_vector
from marlogue.algorithms.team_views import EpisodeEnd, TeamView

# Environments that an evaluation plays at once.
_TOGETHER = 10
#: Called before each joint action with what is seen and the actions about to be taken [E, N(, A)].
Watcher = Callable[[TeamView, Any], None]


def play_episodes(
    env: EnvOrFactory,
    actors_for: Callable[[TeamSpec], VectorActors],
    observations: Callable[[TeamSpec], Callable[[Tensor], Tensor]],
    *,
    episodes: int,
    greedy: bool,
    seed: int,
    env_kwargs: Mapping[str, Any],
    watch: Watcher | None = None,
) -> list[EpisodeEnd]:
    """Play episodes with the same seeds every time.

    Args:
        env: the environment, or a function that makes one.
        actors_for: the policies of its team.
        observations: what is done to that team's observations [E, N, D].
        episodes: how many.
        greedy: play the most probable actions.
        seed: of the episodes and of the draws.
        env_kwargs: arguments of the function.
        watch: sees all of it.

    Returns:
        The episodes; as many of each environment, or one more.
    """
    together = min(episodes, _TOGETHER)
    with make_team_vector(
        env, num_envs=together, seed=seed, stream=EVAL, env_kwargs=env_kwargs
    ) as vector:
        players = ActingTeam(actors_for(vector.team), together, observations(vector.team), seed)
        return _played(vector, players, episodes, greedy, watch)


def _played(
    vector: TeamVector, players: ActingTeam, episodes: int, greedy: bool, watch: Watcher | None
) -> list[EpisodeEnd]:
    wanted = np.full(vector.num_envs, episodes // vector.num_envs)
    wanted[: episodes % vector.num_envs] += 1
    ended: list[EpisodeEnd] = []
    view = vector.reset(first_episode=0)
    while len(ended) < episodes:
        actions = players.act(view, greedy=greedy)
        if watch is not None:
            watch(view, actions)
        step = vector.step(actions)
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
