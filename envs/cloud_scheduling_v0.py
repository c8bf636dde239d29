"""Schedulers send jobs to servers that they share: a numeric environment for 5 to 1500 agents.

After the task of Yang and Liu 2026, "Descent-Guided Policy Gradient for Scalable Cooperative
Multi-Agent Learning" (arXiv 2602.20078). From the paper, as its abstract and summaries of it tell:
servers and jobs that differ, jobs of two sizes, arrivals that change with time, a system state x, a
reference x_ref from a fluid model, the guidance ``-<x - x_ref, z_i(a)>`` with z_i what an action of
agent i adds to x, N from 5 to 1500, and best-fit and random choice to compare with. Everything
below is this module's own model; its costs can't be set beside the paper's.

**Model.** N schedulers, N servers with capacities in cpu and memory, and for each scheduler A
candidate servers, which it shares with its neighbours (`cloud_cluster.draw_cluster`). In each step

1. scheduler i gets a job with chance ``rate_i`` (or none), small or large (`cloud_cluster.SIZES`);
   jobs grow and shrink with the time of day, by `swing`. All schedulers send their jobs at the same
   time, each to one candidate. A job adds (cpu, memory) to the load of its server.
2. The cost is counted: demand that exceeds what a server has, in the resource that is short, waits.
   ``cost = sum_s share_s max(max_r x_sr - 1, 0)``, with share_s the server's mean share of the
   cluster's resources: waiting demand in units of the whole cluster's capacity, 0 when
   every job runs at full speed. By Little's law it is proportional to the mean delay of the jobs.
3. Jobs end, slower on a full server (`cloud_cluster.served`).

Episodes are cut after `max_steps` (truncation). The reward of every agent is minus the cost; with
``reward="own"`` it is minus the cost of its candidates, in proportions such that the mean over
the agents is minus the team's cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import ArrayLike, NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.cloud_cluster import (
    RESOURCES,
    Cluster,
    Floats,
    checked_load,
    draw_cluster,
    draw_jobs,
    fluid_reference,
    overload,
    placed,
    served,
    shares,
)
from marlogue.envs.cloud_guidance import distance_guidance, linear_guidance, mistaken
from marlogue.envs.cloud_observations import LIMIT, observation_size, observed
from marlogue.envs.cloud_policies import best_fit, random_choice, shortest_queue
from marlogue.envs.cloud_settings import CloudSettings

__all__ = [
    "CloudScheduling",
    "Cluster",
    "best_fit",
    "parallel_env",
    "random_choice",
    "shortest_queue",
]

Actions = Mapping[str, Any]


class CloudScheduling(ParallelEnv):  # type: ignore[misc]
    """The environment; `parallel_env` describes its arguments.

    Actions are indices of an agent's candidates; observations are as `cloud_observations.observed`
    says, of the same size for every N.

    Attributes:
        cluster: servers and streams.
        load: [N, R] before this step's jobs, x; also what `state` returns, flat.
        jobs: [N, R], what the job of each scheduler asks for, zeros where it has none.
        cost: of the last step.
        steps_done: steps of this episode.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "cloud_scheduling_v0",
        "render_modes": [],
        "is_parallelizable": True,
    }
    render_mode = None

    def __init__(self, settings: CloudSettings, cluster: Cluster | None = None) -> None:
        self.settings = settings
        self._given = cluster
        self._generator, self._phase = np.random.default_rng(), 0.0
        self._enter(cluster or draw_cluster(settings, np.random.default_rng(settings.cluster_seed)))
        count, choices = self.cluster.candidates.shape
        self.possible_agents = [f"scheduler_{i}" for i in range(count)]
        self.agents: list[str] = []
        size = observation_size(choices)
        self.observation_spaces = {
            agent: Box(-LIMIT, LIMIT, (size,), np.float32) for agent in self.possible_agents
        }
        self.action_spaces = {agent: Discrete(choices) for agent in self.possible_agents}
        self.state_space = Box(0.0, np.inf, (count * len(RESOURCES),), np.float32)

    def observation_space(self, agent: str) -> Box:
        """The same for all agents."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        """One of A candidates."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Begin an episode at a random time of day, every server at 50% to 100% of its reference.

        Args:
            seed: begins the generator of jobs anew (with ``cluster_seed=None`` of the cluster,
                too).
            options: ``{"load": [N, R]}`` to begin with these loads.

        Raises:
            ValueError: for loads of another shape, below 0 or not finite.
        """
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        if self._given is None and self.settings.cluster_seed is None:
            self._enter(draw_cluster(self.settings, self._generator))
        count = len(self.cluster.capacities)
        self._phase = self._generator.uniform()
        start = self._reference * self._generator.uniform(0.5, 1.0, (count, 1))
        self.load = checked_load((options or {}).get("load", start), start.shape)
        self.agents = self.possible_agents[:]
        self.steps_done, self.cost = 0, 0.0
        self._draw_jobs()
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Actions) -> tuple[dict[str, Any], ...]:
        """Send all jobs, count the cost, work.

        Args:
            actions: agent to the index of one of its candidates; also for those without a job.

        Raises:
            RuntimeError: when the episode is over.
            ValueError: for an agent without an action, or one that is out of range.
        """
        if not self.agents:
            raise RuntimeError("the episode is over; call reset() before step().")
        rows = np.arange(len(self.possible_agents))
        servers = self.cluster.candidates[rows, self._choices(actions)]
        after = placed(self.load, self.jobs / self.cluster.capacities[servers], servers)
        waiting = self._share * overload(after)
        self.cost = float(waiting.sum())
        self.load = served(after, self.settings.job_length)
        self.steps_done += 1
        agents, over = self.agents, self.steps_done >= self.settings.max_steps
        rewards = dict(zip(agents, self._rewards(waiting), strict=True))
        self._draw_jobs()
        observations = self._observations()
        if over:
            self.agents = []
        return (
            observations,
            rewards,
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            {agent: {} for agent in agents},
        )

    def state(self) -> NDArray[np.float32]:
        """x: the loads [N * R] before this step's jobs, of the first server first."""
        return self.load.astype(np.float32).ravel()

    @property
    def reference(self) -> Floats:
        """x_ref [N, R]: the loads of the fluid model's steady state, at the mean rates."""
        return self._reference

    def guidance(self, state: ArrayLike, actions: Actions, infos: Any = None) -> Floats:
        """Values [N, A] of sending each agent's job to each of its candidates.

        How near they bring the loads, with this step's jobs in them, to the fluid reference: in
        ``|x - x_ref|^2 / 2``, see `cloud_guidance.distance_guidance` (the default) and
        `linear_guidance`. Only neighbours' jobs are noise in it, however large N is.

        Args:
            state: x, as `state` returns it.
            actions: what all agents are about to do; agents left out send nothing.
            infos: not used.
        """
        load = np.asarray(state, np.float64).reshape(self.load.shape)
        choices = np.array([actions.get(agent, -1) for agent in self.possible_agents], np.int64)
        capacities, reference = self._believed
        return self._guide(
            load * self.cluster.capacities / capacities,
            reference,
            self.jobs,
            capacities,
            self.cluster.candidates,
            choices,
        )

    def _enter(self, cluster: Cluster) -> None:
        """Take up a cluster, its reference, and what the guidance believes of both."""
        self.cluster, settings = cluster, self.settings
        self._share = shares(cluster.capacities)
        sharers = np.bincount(cluster.candidates.ravel(), minlength=len(cluster.capacities))
        self._own = len(cluster.capacities) / np.maximum(sharers, 1)
        self._reference = fluid_reference(cluster, settings.job_length)
        self._guide = distance_guidance if settings.exact_guidance else linear_guidance
        self._believed = (cluster.capacities, self._reference)
        if settings.reference_error:
            wrong = mistaken(cluster.capacities, settings.reference_error)
            self._believed = (wrong, fluid_reference(cluster, settings.job_length, wrong))

    def _time_of_day(self) -> float:
        """In radians."""
        return 2 * np.pi * (self.steps_done / self.settings.period + self._phase)

    def _draw_jobs(self) -> None:
        busy = 1 + self.settings.swing * np.sin(self._time_of_day())
        self.jobs = draw_jobs(self.cluster, busy, self._generator)

    def _choices(self, actions: Actions) -> NDArray[np.int64]:
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(
                f"actions (of {len(actions)} agents) must have one for {missing[0]}; schedulers "
                "without a job need one, too, any one."
            )
        choices = np.array([actions[agent] for agent in self.agents], np.int64)
        count = self.cluster.candidates.shape[1]
        for i in np.flatnonzero((choices < 0) | (choices >= count)):
            raise ValueError(
                f"the action of {self.agents[i]} ({choices[i]}) must be the index of one of its "
                f"{count} candidates, from 0."
            )
        return choices

    def _rewards(self, waiting: Floats) -> list[float]:
        if self.settings.reward == "team":
            return [-self.cost] * len(self.agents)
        return [-float(own) for own in (self._own * waiting)[self.cluster.candidates].sum(1)]

    def _observations(self) -> dict[str, NDArray[np.float32]]:
        rows = observed(self.cluster, self.load, self.jobs, self._time_of_day())
        return dict(zip(self.possible_agents, rows, strict=True))


def parallel_env(
    num_agents: int = 50,
    *,
    num_candidates: int = 5,
    load: float = 0.85,
    swing: float = 0.4,
    period: int = 100,
    job_length: float = 20.0,
    max_steps: int = 200,
    reward: Literal["team", "own"] = "team",
    cluster_seed: int | None = 0,
    exact_guidance: bool = True,
    reference_error: float = 0.0,
    cluster: Cluster | None = None,
) -> CloudScheduling:
    """Make the environment.

    Args:
        num_agents: N, schedulers and servers.
        num_candidates: A, servers that each scheduler chooses from; at most N of them.
        load: mean utilisation of the cluster at the mean rates.
        swing: by how much the jobs grow and shrink over a day, as a share of the mean. With
            ``load * (1 + swing)`` above 1 some demand waits at noon, whatever the schedulers do.
        period: steps of a day.
        job_length: mean steps that a job runs at full speed.
        max_steps: length of an episode.
        reward: "team" or "own", see the module.
        cluster_seed: what the servers and streams are drawn from, the same ones in all episodes;
            None to draw them anew at each reset.
        exact_guidance: values by the distance (True) or by its linear part.
        reference_error: how wrong the guidance is, from 0 to 1, to study a reference that is
            misspecified: it believes in capacities between the true ones (0) and those of other
            servers (1), both in x_ref and in x and z. Costs and observations stay true.
        cluster: servers and streams of your own, in place of `num_agents`, `num_candidates`, `load`
            and `cluster_seed`.

    Raises:
        ValueError: for a setting outside its range.
    """
    settings = CloudSettings(
        num_agents=num_agents,
        num_candidates=min(num_candidates, num_agents),
        load=load,
        swing=swing,
        period=period,
        job_length=job_length,
        max_steps=max_steps,
        reward=reward,
        cluster_seed=cluster_seed,
        exact_guidance=exact_guidance,
        reference_error=reference_error,
    )
    return CloudScheduling(settings, cluster)
