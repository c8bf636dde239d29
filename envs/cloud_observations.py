"""What the schedulers of `cloud_scheduling_v0` see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlogue.envs.cloud_cluster import Cluster, Floats, overload, shares, weights

#: The bound of all observations.
LIMIT = 10.0


def observation_size(num_candidates: int) -> int:
    """D = 6 A + 8, whatever the number of agents."""
    return 6 * num_candidates + 8


def observed(cluster: Cluster, load: Floats, jobs: Floats, time_of_day: float) -> NDArray[Any]:
    """The observations [N, 6 A + 8] (float32) of all agents.

    Of the candidates, in their order: loads [A, 2] (cpu, memory), what the own job would add to
    them [A, 2], logarithms of the capacities beside the cluster's mean [A, 2]. Then the own job in
    mean servers [2] and whether there is one, the cluster's mean loads [2] and waiting
    demand, sine and cosine of the time of day. Loads and jobs above 1 are shown as
    1 + log(load).

    Args:
        cluster: servers and streams.
        load: [N, R] before this step's jobs.
        jobs: [N, R] in the units of the capacities.
        time_of_day: in radians.
    """
    count, scale = len(load), weights(cluster.capacities)
    steps = jobs[:, None] / cluster.capacities[cluster.candidates]
    sizes = jobs * count / cluster.capacities.sum(0)
    team = [
        *_squashed((scale * load).mean(0)),
        _squashed(shares(cluster.capacities) @ overload(load)),
        np.sin(time_of_day),
        np.cos(time_of_day),
    ]
    columns = [
        _squashed(load)[cluster.candidates].reshape(count, -1),
        _squashed(steps).reshape(count, -1),
        np.log(scale)[cluster.candidates].reshape(count, -1),
        _squashed(sizes),
        sizes.any(1, keepdims=True),
        np.broadcast_to(team, (count, len(team))),
    ]
    return np.concatenate(columns, 1, dtype=np.float32).clip(-LIMIT, LIMIT)


def _squashed(values: Any) -> Any:
    """Values of at least 0, those above 1 as 1 + log(value)."""
    return np.minimum(values, 1.0) + np.log(np.maximum(values, 1.0))
