"""Servers, streams of jobs and their fluid model, for `cloud_scheduling_v0`.

N streams (one for each scheduler), as many servers, A candidate servers of each scheduler, R = 2
resources (`RESOURCES`). Loads are shares of a server's capacity: 1 is a full server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marlogue.envs.cloud_settings import CloudSettings

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

RESOURCES = ("cpu", "memory")

#: The range of the chances that a stream brings a job in a step, at the mean rate.
RATES = (0.3, 0.7)
#: Spreads (of the logarithms): of servers' sizes, of their resources beside each other, and of
#: what the streams' jobs ask for.
SIZE_SPREAD, SHAPE_SPREAD, DEMAND_SPREAD = 0.5, 0.3, 0.4
#: Mean sizes of small and large jobs, in mean jobs of the stream, and the share of large ones.
SIZES, LARGE = (8 / 17, 4.0), 0.15
#: Shape of the gamma distribution around these means.
SIZE_SHAPE = 4.0
#: The fluid reference is as good as optimal when its cost is certain to be this close, relatively.
GAP = 1e-6
MAX_ITERATIONS = 20_000


@dataclass(frozen=True)
class Cluster:
    """What stays the same over episodes.

    Attributes:
        capacities: [N, R] of the servers, in any unit (cores, gigabytes).
        candidates: [N, A], the servers that each scheduler can send jobs to.
        rates: [N], the chance of a job in a step, at the mean rate.
        demands: [N, R], what the mean job of a stream asks for, in the units of the capacities.

    Raises:
        ValueError: for unlike sizes, or numbers that no cluster has.
    """

    capacities: Floats
    candidates: Indices
    rates: Floats
    demands: Floats

    def __post_init__(self) -> None:
        count = len(self.capacities)
        shapes = {
            "capacities": (self.capacities.shape, (count, len(RESOURCES))),
            "candidates": (self.candidates.shape, (count, *self.candidates.shape[-1:])),
            "rates": (self.rates.shape, (count,)),
            "demands": (self.demands.shape, (count, len(RESOURCES))),
        }
        for name, (shape, right) in shapes.items():
            if shape != right:
                raise ValueError(
                    f"{name} (of shape {shape}) must be of shape {right}: one row for each of the "
                    "servers in capacities, and one column for each resource."
                )
        if not (self.capacities > 0).all():
            raise ValueError(f"capacities ({self.capacities.min()}) must be above 0.")
        if not (self.demands > 0).all():
            raise ValueError(f"demands ({self.demands.min()}) must be above 0.")
        if not ((self.rates > 0) & (self.rates <= 1)).all():
            raise ValueError(f"rates ({self.rates.tolist()}) must be chances above 0, at most 1.")
        ordered = np.sort(self.candidates, 1)
        if ordered.min() < 0 or ordered.max() >= count or not np.diff(ordered, axis=1).all():
            raise ValueError(
                f"candidates ({self.candidates.tolist()}) must be different servers for each "
                f"scheduler, between 0 and {count - 1}."
            )


def draw_cluster(settings: CloudSettings, generator: np.random.Generator) -> Cluster:
    """A cluster whose servers differ in size and shape.

    Scheduler i can use the servers i, i + 1, ... around a ring, so that each server is shared by
    as many schedulers. Streams near large servers bring more work, as a place with more servers
    has more customers; what all streams ask for together is the share ``settings.load`` of each
    resource.
    """
    num_agents, num_candidates = settings.num_agents, settings.num_candidates
    servers = (num_agents, len(RESOURCES))
    sizes = generator.normal(0.0, SIZE_SPREAD, (num_agents, 1))
    capacities = np.exp(sizes + generator.normal(0.0, SHAPE_SPREAD, servers))
    candidates = (np.arange(num_agents)[:, None] + np.arange(num_candidates)) % num_agents
    rates = generator.uniform(*RATES, num_agents)
    demands = np.exp(generator.normal(0.0, DEMAND_SPREAD, servers))
    demands *= capacities[candidates].mean(1) / rates[:, None]
    asked = settings.job_length * (rates[:, None] * demands).sum(0)
    demands *= settings.load * capacities.sum(0) / asked
    return Cluster(capacities, candidates, rates, demands)


def draw_jobs(cluster: Cluster, busy: float, generator: np.random.Generator) -> Floats:
    """What the jobs of one step ask for, [N, R] in the units of the capacities; zeros where a
    stream brings none. `busy` multiplies their sizes."""
    count = len(cluster.rates)
    present = generator.uniform(size=count) < cluster.rates
    means = np.where(generator.uniform(size=count) < LARGE, SIZES[1], SIZES[0])
    sizes = means * generator.gamma(SIZE_SHAPE, 1 / SIZE_SHAPE, count)
    return cluster.demands * (busy * present * sizes)[:, None]


def shares(capacities: Floats) -> Floats:
    """[N], a server's share of the cluster, the mean over the resources; they add up to 1."""
    return (capacities / capacities.sum(0)).mean(1)


def weights(capacities: Floats) -> Floats:
    """[N, R], how much a server counts: its share of each resource of the cluster, times N."""
    return capacities * len(capacities) / capacities.sum(0)


def placed(load: Floats, steps: Floats, servers: Indices) -> Floats:
    """The loads [N, R] after jobs were sent to servers.

    Args:
        load: [N, R] before.
        steps: [M, R], what each of M jobs adds to the load of the server it goes to.
        servers: [M].
    """
    count = len(load)
    added = [np.bincount(servers, steps[:, r], count) for r in range(load.shape[1])]
    return load + np.stack(added, 1)


def checked_load(load: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Loads that were given, as an array of their own.

    Raises:
        ValueError: for another shape, or loads below 0 or not finite.
    """
    checked = np.array(load, np.float64)
    if checked.shape != shape or not (np.isfinite(checked) & (checked >= 0)).all():
        raise ValueError(
            f"load ({load!r}) must be of shape {shape}, finite and at least 0; give the share of "
            "each server's cpu and memory that is in use."
        )
    return checked


def overload(load: Floats) -> Floats:
    """[N], the demand that waits at each server, as a share of its capacity: what exceeds 1 in the
    resource that is short."""
    return np.maximum(load.max(1) - 1.0, 0.0)


def served(load: Floats, job_length: float) -> Floats:
    """The loads [N, R] after a step of work.

    Jobs run for exponentially distributed times of mean `job_length`; what ends in a step is taken
    at its mean. On a full server all jobs run slower, in proportion to the resource that is short
    (processor sharing), so that no more ends than on a server with a load of 1.
    """
    speed = 1.0 / np.maximum(load.max(1, keepdims=True), 1.0)
    return load * (1.0 - speed / job_length)


def fluid_reference(
    cluster: Cluster, job_length: float, capacities: Floats | None = None
) -> Floats:
    """The loads [N, R] of the steady state of the fluid model, x_ref.

    The fluid model has streams that can be split: a share p_ia of stream i goes to candidate a, and
    a server's steady load is ``x_sr = job_length * sum p_ia rate_i demand_ir / capacity_sr`` over
    what is sent to it. The split minimises ``1/2 sum_sr weight_sr x_sr^2``: loads are even, as
    far as the candidates and the shapes of jobs and servers allow. Convex, and x_ref is unique;
    solved by the accelerated projected gradient of Beck and Teboulle 2009, restarted after
    O'Donoghue and Candes 2015, until the duality gap (Frank and Wolfe 1956) proves `GAP`.

    Args:
        cluster: servers and streams.
        job_length: mean steps that a job runs.
        capacities: [N, R] in place of the cluster's own.

    Raises:
        RuntimeError: when it does not get there in `MAX_ITERATIONS`.
    """
    capacities = cluster.capacities if capacities is None else capacities
    candidates, count = cluster.candidates, len(capacities)
    flows = job_length * cluster.rates[:, None] * cluster.demands
    steps = flows[:, None] / capacities[candidates]  # [N, A, R], load for the whole stream
    slopes = (flows * count / capacities.sum(0)).T[..., None]  # [R, N, 1], weight times step
    sharers = np.bincount(candidates.ravel(), minlength=count)
    # A quadratic that bounds the cost from above, by Cauchy and Schwarz over a server's sharers.
    curves = (sharers[candidates] * (steps * slopes.transpose(1, 2, 0)).sum(2)).max(1)[:, None]

    def loads(split: Floats) -> Floats:
        sent = (split[..., None] * steps).reshape(-1, steps.shape[2])
        return placed(np.zeros_like(capacities), sent, candidates.ravel())

    def gradient(split: Floats) -> Floats:
        x = loads(split)[candidates]
        return x[..., 0] * slopes[0] + x[..., 1] * slopes[1]

    split = np.full(candidates.shape, 1.0 / candidates.shape[1])
    ahead, momentum = split, 1.0
    for iteration in range(MAX_ITERATIONS):
        if iteration % 20 == 0:
            slope = gradient(split)
            used = (split * slope).sum()  # twice the cost, which is quadratic
            if used - slope.min(1).sum() <= GAP * used / 2:
                return loads(split)
        moved = on_simplex(ahead - gradient(ahead) / curves)
        if ((ahead - moved) * curves * (moved - split)).sum() > 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - split)
        split, momentum = moved, following
    raise RuntimeError(
        f"the fluid reference of {count} servers was not found in {MAX_ITERATIONS} iterations; "
        "bring capacities and demands of the cluster closer to each other."
    )


def on_simplex(points: Floats) -> Floats:
    """The nearest points [..., A] whose entries are at least 0 and add up to 1 (Held et
    al. 1974)."""
    ordered = -np.sort(-points, -1)
    excess = (np.cumsum(ordered, -1) - 1.0) / np.arange(1, points.shape[-1] + 1)
    last = (ordered > excess).sum(-1, keepdims=True) - 1
    return np.maximum(points - np.take_along_axis(excess, last, -1), 0.0)
