"""Heuristics for `cloud_scheduling_v0`, to compare with what is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from marlogue.envs.cloud_scheduling_v0 import CloudScheduling


def best_fit(env: CloudScheduling) -> dict[str, int]:
    """The actions of a central best-fit: job after job, in the order of the agents, knowing where
    the jobs of this step before it went.

    A job goes to the candidate that it fits on (no load above 1) with the least left over, summed
    over the resources as shares of the server's capacity; where it fits nowhere, to the candidate
    whose higher load is the lowest then. Schedulers that act at the same time know less than that.
    """
    cluster = env.cluster
    load, actions = env.load.tolist(), dict.fromkeys(env.possible_agents, 0)
    steps = (env.jobs[:, None] / cluster.capacities[cluster.candidates]).tolist()
    candidates = cluster.candidates.tolist()
    for row in np.flatnonzero(env.jobs.any(1)).tolist():
        ranks = []
        for choice, server in enumerate(candidates[row]):
            after = [x + step for x, step in zip(load[server], steps[row][choice], strict=True)]
            fits = max(after) <= 1
            ranks.append((not fits, -sum(after) if fits else max(after), choice, after))
        choice, after = min(ranks)[2:]
        load[candidates[row][choice]] = after
        actions[env.possible_agents[row]] = choice
    return actions


def shortest_queue(env: CloudScheduling) -> dict[str, int]:
    """Every scheduler for itself: the candidate whose higher load is the lowest, its job there;
    what the others send in the same step is not known."""
    cluster = env.cluster
    after = env.load[cluster.candidates]
    after = after + env.jobs[:, None] / cluster.capacities[cluster.candidates]
    return dict(zip(env.possible_agents, after.max(2).argmin(1).tolist(), strict=True))


def random_choice(env: CloudScheduling, generator: np.random.Generator) -> dict[str, int]:
    """A candidate at random, each with the same chance."""
    shape = env.cluster.candidates.shape
    choices = generator.integers(shape[1], size=(shape[0],))
    return dict(zip(env.possible_agents, choices.tolist(), strict=True))
