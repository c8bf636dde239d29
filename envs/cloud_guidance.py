"""Guidance of `cloud_scheduling_v0`: what sending a job somewhere does to the distance between the
cluster's loads and their reference.

x [N, R] are the loads with this step's jobs in them, x_ref the reference, z_i(a) what agent i's job
adds when it goes to candidate a (to one server only, so that no tensor over all servers is needed).
The inner product weights each load by its server's share of the cluster's capacity, times N
(`cloud_cluster.weights`): with it the distance is that of the work that would have to move.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marlogue.envs.cloud_cluster import Floats, Indices, placed, weights

#: Seed of the order of servers that a wrong reference believes in.
MISTAKE_SEED = 7


def linear_guidance(
    load: Floats,
    reference: Floats,
    jobs: Floats,
    capacities: Floats,
    candidates: Indices,
    choices: NDArray[np.int64],
) -> Floats:
    """``G_i(a) = - <x - x_ref, z_i(a)>`` [N, A] (Yang and Liu 2026): how far a little more of the
    own job at candidate a takes x down the slope of ``|x - x_ref|^2 / 2``.

    Args:
        load: [N, R] before this step's jobs.
        reference: [N, R], x_ref.
        jobs: [N, R] in the units of the capacities.
        capacities: [N, R] of the servers.
        candidates: [N, A].
        choices: [N] what the agents do, indices of candidates; -1 sends nothing.
    """
    steps, weighted, away, _ = _parts(load, reference, jobs, capacities, candidates, choices)
    return -(weighted * away * steps).sum(2)


def distance_guidance(
    load: Floats,
    reference: Floats,
    jobs: Floats,
    capacities: Floats,
    candidates: Indices,
    choices: NDArray[np.int64],
) -> Floats:
    """``G_i(a) = - (|y_i + z_i(a) - x_ref|^2 - |y_i - x_ref|^2) / 2`` [N, A], y_i the loads
    without the job of agent i: the exact change of the distance, the others doing what they do.
    Arguments as for :func:`linear_guidance`."""
    steps, weighted, away, chosen = _parts(load, reference, jobs, capacities, candidates, choices)
    others = away - chosen[..., None] * steps
    return -(weighted * (others + steps / 2) * steps).sum(2)


def mistaken(capacities: Floats, error: float) -> Floats:
    """Capacities [N, R] between the true ones (`error` 0) and other servers' (1), geometrically;
    every server is taken for another one."""
    order = np.random.default_rng(MISTAKE_SEED).permutation(len(capacities))
    wrong = np.empty_like(capacities)
    wrong[order] = capacities[np.roll(order, 1)]
    return capacities ** (1 - error) * wrong**error


def _parts(
    load: Floats,
    reference: Floats,
    jobs: Floats,
    capacities: Floats,
    candidates: Indices,
    choices: NDArray[np.int64],
) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """z, the weights and x - x_ref, all [N, A, R] at the candidates, and which is chosen [N, A]."""
    steps = jobs[:, None] / capacities[candidates]
    chosen = choices[:, None] == np.arange(candidates.shape[1])
    after = placed(load, steps[chosen], candidates[chosen])
    return steps, weights(capacities)[candidates], (after - reference)[candidates], chosen
