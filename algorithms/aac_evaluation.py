"""Episodes of a trained team, to see how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from marlogue.algorithms.aac_acting import ActingTeam
from marlogue.algorithms.aac_config import AACConfig
from marlogue.algorithms.aac_diagnostics import MOST_NAMED
from marlogue.algorithms.aac_memory import Statistics
from marlogue.algorithms.aac_networks import AACNetworks
from marlogue.algorithms.aac_pictures import watch_for
from marlogue.algorithms.attention_watch import AttentionWatch
from marlogue.algorithms.items import EnvOrFactory
from marlogue.algorithms.streams import EVAL, derived_seed
from marlogue.algorithms.team_vector import TeamVector, make_team_vector
from marlogue.algorithms.team_views import EpisodeEnd, TeamView, VectorStep

#: Environments that an evaluation plays at once, at most.
TOGETHER = 10
#: Called after each joint action with what was seen, the actions taken [E, N(, A)] and the step.
Watcher = Callable[[TeamView, Any, VectorStep], None]


def evaluated(
    env: EnvOrFactory,
    args: AACConfig,
    networks: AACNetworks,
    statistics: Statistics,
    *,
    episodes: int,
    env_kwargs: Mapping[str, Any],
    watched_after: int | None,
) -> tuple[dict[str, float], AttentionWatch | None]:
    """Play episodes with a trained team.

    Args:
        env: the environment; its agents may be others, as long as the networks fit them.
        args: the configuration.
        networks: of the team that is trained.
        statistics: the same.
        episodes: how many.
        env_kwargs: arguments of the function that makes the environment.
        watched_after: steps of the training, where somebody looks at the attention; None for
            nobody.

    Returns:
        Figures (see :func:`evaluation_figures`), and who looked on, where there was something to
        see.
    """
    with make_team_vector(
        env,
        num_envs=min(episodes, TOGETHER),
        seed=args.seed,
        stream=EVAL,
        env_kwargs=env_kwargs,
    ) as vector:
        networks = networks.for_team(vector.team)
        prepare = statistics.for_team(args, vector.team).preparation()
        seed = derived_seed(args.seed, EVAL)
        players = ActingTeam(networks.actors, vector.num_envs, prepare.observations, seed)
        watch = None
        if watched_after is not None:
            watch = watch_for(args, networks, players, watched_after)
        greedy = args.eval_greedy or args.deterministic
        ended = play_episodes(vector, players, episodes, greedy=greedy, watch=watch)
    return evaluation_figures(ended, networks.team.agents), watch


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
