"""Agents must cover landmarks and not bump into each other: cooperative navigation for many.

The game is simple_spread of the Multi-Agent Particle Environments (Lowe et al. 2017, "Multi-Agent
Actor-Critic for Mixed Cooperative-Competitive Environments", arXiv 1706.02275), by the rules of
`simple_spread_v3` in mpe2: with the default arguments the same seed and actions give the same
positions, rewards and observations. Here all agents are moved and shown things by array operations,
which makes it fast for N >= 30, and an agent may be shown its surroundings only, so that networks
that learned with 10 agents also work with 30.

The physics, per step of dt = 0.1, with unit mass:

    x <- x + v dt                          from the velocity before the step
    v <- 0.75 v + (5 u_i + f_i) dt         u_i: the push chosen; f_i: what contacts push
    f_i = sum_j 100 k ln(1 + exp(-(|d| - 0.3) / k)) d / |d|,  d = x_i - x_j,  k = 0.001

Agents are discs of radius 0.15. The reward of agent i is, after the move,

    (1 - local_ratio) (-sum over landmarks of the distance to the nearest agent)
    + local_ratio (-number of agents that i overlaps)

For N = 3 the sum over agents of a 25-step episode is about -80 at random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from typing_extensions import override

from marlogue.envs.numeric_team import Floats, NumericTeam
from marlogue.envs.pictures import discs

VELOCITY = (0, 1)
POSITION = (2, 3)
"""Where an observation holds the agent's own velocity and position, whatever it is shown besides;
`marlogue.agents.neighbourhoods.Nearest(k, POSITION)` lists its neighbours."""

DT, DAMPING, SENSITIVITY = 0.1, 0.25, 5.0
RADIUS = 0.15
CONTACT_FORCE, CONTACT_MARGIN = 100.0, 1e-3
PUSHES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float64)
"""[5, 2]: what the actions mean: nothing, left, right, down, up."""

NOBODY = 2.0
"""Both coordinates of a neighbour that does not exist: farther than the nearest ones are."""


def parallel_env(**kwargs: Any) -> Spread:
    """Make the environment; see `Spread` for the arguments."""
    return Spread(**kwargs)


class Spread(NumericTeam):
    """N agents and N landmarks in a square.

    Observations, float32: velocity (2), position (2), then

    - `observe="all"`: where the N landmarks are, seen from the agent (2N), where the others are
      (2 (N - 1)), and 2 (N - 1) zeros for what they say, which is nothing (as in mpe2);
    - `observe="nearest"`: where the nearest landmarks are, seen from the agent, nearest first, then
      the nearest others. The size does not depend on N. The position is in half-widths of the
      square here, so that it says the same whatever the size of the square. Where there are fewer
      landmarks or others than places, the last places hold `NOBODY`.

    Actions: one of 5 (`PUSHES`), or with `continuous_actions` 5 numbers in [0, 1] whose differences
    right - left and up - down are the push. `state()` is velocities, positions and landmarks,
    [6N].

    Args:
        num_agents: N.
        local_ratio: how much of an agent's reward is about its own collisions, in [0, 1].
        max_cycles: steps per episode, at whose end it is truncated.
        continuous_actions: five numbers instead of one of five actions.
        observe: "all" or "nearest".
        neighbours: how many landmarks and how many others are shown with "nearest".
        half_width: agents and landmarks begin anywhere in [-half_width, half_width]^2, and may
            leave it; None: sqrt(N / 3), so that it is as crowded as with three agents in mpe2's
            square, whatever N.
        render_mode: None or "rgb_array".

    `reset(options=...)` takes `positions` and `landmarks`, both [N, 2], instead of random ones.

    Raises:
        ValueError: for an argument outside its range.
    """

    def __init__(
        self,
        num_agents: int = 3,
        *,
        local_ratio: float = 0.5,
        max_cycles: int = 25,
        continuous_actions: bool = False,
        observe: str = "all",
        neighbours: tuple[int, int] = (3, 2),
        half_width: float | None = 1.0,
        render_mode: str | None = None,
    ) -> None:
        _check(num_agents, local_ratio, observe, neighbours, half_width)
        self.local_ratio = local_ratio
        self.continuous_actions = continuous_actions
        self.observe = observe
        self.neighbours = (int(neighbours[0]), int(neighbours[1]))
        self.half_width = math.sqrt(num_agents / 3) if half_width is None else float(half_width)
        size = 4 + 2 * sum(self.neighbours) if observe == "nearest" else 6 * num_agents
        if continuous_actions:
            actions: Box | Discrete = Box(0.0, 1.0, (len(PUSHES),), np.float32)
        else:
            actions = Discrete(len(PUSHES))
        super().__init__(
            "spread_v0",
            [f"agent_{i}" for i in range(num_agents)],
            Box(-np.inf, np.inf, (size,), np.float32),
            actions,
            max_cycles=max_cycles,
            render_mode=render_mode,
        )
        self.state_space = Box(-np.inf, np.inf, (6 * num_agents,), np.float32)
        self._others = np.array(
            [[j for j in range(num_agents) if j != i] for i in range(num_agents)], np.intp
        )

    @override
    def begin(self, options: Mapping[str, Any]) -> None:
        shape, width = (len(self.possible_agents), 2), self.half_width
        drawn = {
            name: self.rng.uniform(-width, width, shape) for name in ("positions", "landmarks")
        }
        for name in drawn.keys() & options:
            places = np.array(options[name], np.float64)
            if places.shape != shape or not np.isfinite(places).all():
                raise ValueError(
                    f"options[{name!r}] ({options[name]}) must be {list(shape)} numbers."
                )
            drawn[name] = places
        self.positions, self.landmarks = drawn["positions"], drawn["landmarks"]
        self.velocities = np.zeros(shape)
        self._measure()

    @override
    def advance(self, actions: NDArray[Any]) -> tuple[Floats, bool]:
        if self.continuous_actions:
            pushes = actions[:, [2, 4]] - actions[:, [1, 3]]
        else:
            pushes = PUSHES[actions]
        forces = SENSITIVITY * pushes.astype(np.float64) + self._contacts()
        self.positions = self.positions + DT * self.velocities
        self.velocities = (1 - DAMPING) * self.velocities + DT * forces
        self._measure()
        uncovered = self._to_landmarks.min(axis=0).sum()
        collisions = (self._apart < 2 * RADIUS).sum(axis=1)
        return -(1 - self.local_ratio) * uncovered - self.local_ratio * collisions, False

    @override
    def observe_all(self) -> NDArray[np.float32]:
        seen = [self.velocities, self.positions, *self._surroundings()]
        if self.observe == "nearest":
            seen[1] = self.positions / self.half_width
        return np.concatenate(seen, axis=1).astype(np.float32)

    @override
    def state(self) -> NDArray[np.float32]:
        parts = (self.velocities, self.positions, self.landmarks)
        return np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32)

    @override
    def picture(self) -> NDArray[np.uint8]:
        """Landmarks grey, agents blue; as much as is needed to see all of them."""
        return discs(
            [(self.landmarks, 0.05, (60, 60, 60)), (self.positions, RADIUS, (90, 90, 220))],
            max(self.half_width, float(np.abs(self.positions).max())) + RADIUS,
        )

    def _measure(self) -> None:
        """Distances between agents (infinite to oneself) and from agents [N] to landmarks [N]."""
        self._apart = _distances(self.positions, self.positions)
        np.fill_diagonal(self._apart, np.inf)
        self._to_landmarks = _distances(self.positions, self.landmarks)

    def _contacts(self) -> Floats:
        """[N, 2], what each agent is pushed by others."""
        # Beyond 40 margins a push is lost in the rounding of any other number here.
        forces = np.zeros_like(self.positions)
        near = self._apart < 2 * RADIUS + 40 * CONTACT_MARGIN
        if not near.any():
            return forces
        first, second = np.nonzero(near)
        apart = self._apart[first, second]
        depth = np.logaddexp(0.0, (2 * RADIUS - apart) / CONTACT_MARGIN) * CONTACT_MARGIN
        # At the very same place there is no direction to push in.
        strength = CONTACT_FORCE * depth / np.where(apart > 0, apart, 1.0)
        pushed = strength[:, None] * (self.positions[first] - self.positions[second])
        np.add.at(forces, first, pushed)
        return forces

    def _surroundings(self) -> list[Floats]:
        num_agents, own = len(self.positions), self.positions[:, None]
        if self.observe == "all":
            landmarks = (self.landmarks - own).reshape(num_agents, -1)
            others = (self.positions[self._others] - own).reshape(num_agents, -1)
            return [landmarks, others, np.zeros_like(others)]
        places, people = self.neighbours
        return [
            _nearest(self._to_landmarks, self.landmarks, own, places, num_agents),
            _nearest(self._apart, self.positions, own, people, num_agents - 1),
        ]


def _distances(first: Floats, second: Floats) -> Floats:
    x = first[:, None, 0] - second[:, 0]
    y = first[:, None, 1] - second[:, 1]
    return np.sqrt(x * x + y * y)


def _nearest(distances: Floats, places: Floats, own: Floats, count: int, there_are: int) -> Floats:
    """[N, 2 count]: the `count` nearest of `there_are` places seen from each agent, nearest first;
    what is not there has the largest distance."""
    known, rows = min(count, there_are), np.arange(len(distances))[:, None]
    seen = np.full((len(distances), count, 2), NOBODY)
    if known:
        index = np.argpartition(distances, known - 1, axis=1)[:, :known]
        index = index[rows, np.argsort(distances[rows, index], axis=1)]
        seen[:, :known] = places[index] - own
    return seen.reshape(len(distances), -1)


def _check(
    num_agents: int,
    local_ratio: float,
    observe: str,
    neighbours: tuple[int, int],
    half_width: float | None,
) -> None:
    if num_agents < 1:
        raise ValueError(f"num_agents ({num_agents}) must be at least 1.")
    if not 0.0 <= local_ratio <= 1.0:
        raise ValueError(f"local_ratio ({local_ratio}) must be between 0 and 1.")
    if observe not in ("all", "nearest"):
        raise ValueError(f"observe ({observe!r}) must be 'all' or 'nearest'.")
    if len(tuple(neighbours)) != 2 or min(neighbours) < 0:
        raise ValueError(
            f"neighbours ({neighbours}) must be two numbers from 0: landmarks and others shown."
        )
    if half_width is not None and not 0.0 < half_width < math.inf:
        raise ValueError(
            f"half_width ({half_width}) must be above 0; set None for a square that grows with N."
        )
