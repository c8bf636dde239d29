"""Pursuers on a grid must surround evaders that move at random: pursuit for many.

The rules are those of `pursuit` in PettingZoo's SISL environments (Gupta, Egorov and Kochenderfer
2017, "Cooperative Multi-agent Control Using Deep Reinforcement Learning"; v5 there). Here all
agents are moved and shown things by array operations, which makes it fast for N >= 30. In a step

1. every pursuer moves to a neighbouring cell, or stays where a wall or the border is;
2. tags are counted: an evader in one of the four cells beside a pursuer;
3. evaders are caught and removed: with `surround`, those whose every open neighbouring cell holds a
   pursuer; otherwise those with `n_catch` pursuers on their own cell;
4. the other evaders move by chance, or stay.

Reward of a pursuer: tag_reward x its tags + urgency_reward, and catch_reward if it took part in a
catch. With `shared_reward` all get the mean of that. The episode terminates when no evader is left.

As in SISL: map, moves, catches, rewards of catches and time, observations, ends. Not as there: tags
are counted once per step, after all have moved (SISL counts after each pursuer's move, takes the
mean over these countings, and counts an evader on the same border cell as beside); members of one
side may begin next to each other; an episode whose last evader is caught in the very last step is
terminated, not truncated; one seed gives other episodes.
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
from marlogue.envs.pictures import cells

POSITION = (0, 1)
"""Where an observation holds the agent's own position, unless `position=False`."""

MOVES = np.array([[-1, 0], [1, 0], [0, 1], [0, -1], [0, 0]])
"""[5, 2], what the actions mean: x - 1, x + 1, y + 1, y - 1, stay."""

BESIDE = MOVES[:4]
WALL, PURSUERS, EVADERS = range(3)

Cells = NDArray[np.int64]


def parallel_env(**kwargs: Any) -> Pursuit:
    """Make the environment; see `Pursuit` for the arguments."""
    return Pursuit(**kwargs)


class Pursuit(NumericTeam):
    """N pursuers and their prey on a grid with a wall in the middle.

    Observations, float32: the position (x, y), each divided by the longer side of the grid, so in
    [0, 1); then a window of `obs_range` x `obs_range` cells around the agent, in SISL's order
    [y, x, layer], flattened. Layers: 1.0 where there is a wall or nothing, number of pursuers (the
    agent itself included), number of evaders. The size does not depend on N or the grid. With
    `position=False` it is the window alone, [obs_range, obs_range, 3], as in SISL.

    Actions: one of 5 (`MOVES`). `state()` is all positions, pursuers' first, divided as above; -1
    where an evader has been caught: [2 N + 2 num_evaders].

    Args:
        num_agents: N, the pursuers.
        num_evaders: how many there are at first; None: 30 for each 8 pursuers, rounded.
        size: width (x) and height (y) of the grid; None: a square as crowded as 8 pursuers on
            16 x 16, whatever N.
        max_cycles: steps after which an episode is truncated.
        shared_reward: the mean of all rewards for everybody.
        obs_range: width of the window, odd.
        surround: catch by surrounding (True), or by number (False).
        n_catch: that number.
        freeze_evaders: whether evaders stay where they begin.
        tag_reward, catch_reward, urgency_reward: see the module's text.
        position: whether observations begin with the position.
        render_mode: None or "rgb_array".

    `reset(options=...)` takes `pursuers` [N, 2] and `evaders` [num_evaders, 2], cells instead of
    random ones.

    Raises:
        ValueError: for an argument outside its range.
    """

    def __init__(
        self,
        num_agents: int = 8,
        *,
        num_evaders: int | None = 30,
        size: tuple[int, int] | None = (16, 16),
        max_cycles: int = 500,
        shared_reward: bool = True,
        obs_range: int = 7,
        surround: bool = True,
        n_catch: int = 2,
        freeze_evaders: bool = False,
        tag_reward: float = 0.01,
        catch_reward: float = 5.0,
        urgency_reward: float = -0.1,
        position: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if num_agents < 1:
            raise ValueError(f"num_agents ({num_agents}) must be at least 1.")
        if obs_range < 1 or obs_range % 2 == 0:
            raise ValueError(f"obs_range ({obs_range}) must be odd: the agent is in the middle.")
        if n_catch < 1:
            raise ValueError(f"n_catch ({n_catch}) must be at least 1.")
        side = round(16 * math.sqrt(num_agents / 8))
        self.size = (max(side, 3),) * 2 if size is None else (int(size[0]), int(size[1]))
        self.num_evaders = round(30 * num_agents / 8) if num_evaders is None else num_evaders
        if self.num_evaders < 1:
            raise ValueError(f"num_evaders ({num_evaders}) must be at least 1.")
        self.walls = walls(*self.size)
        self.shared_reward = shared_reward
        self.surround, self.n_catch, self.freeze_evaders = surround, n_catch, freeze_evaders
        self.tag_reward, self.catch_reward = tag_reward, catch_reward
        self.urgency_reward = urgency_reward
        self.position, self.obs_range = position, obs_range
        most = float(max(num_agents, self.num_evaders))
        shape = (3 * obs_range**2 + 2,) if position else (obs_range, obs_range, 3)
        super().__init__(
            "pursuit_v0",
            [f"pursuer_{i}" for i in range(num_agents)],
            Box(0.0, most, shape, np.float32),
            Discrete(len(MOVES)),
            max_cycles=max_cycles,
            render_mode=render_mode,
        )
        self.state_space = Box(-1.0, 1.0, (2 * (num_agents + self.num_evaders),), np.float32)
        # A margin around the grid, so that windows and neighbours need no special cases. Cells are
        # looked up by their number in a layer, `_at`, and neighbours by what is added to it.
        self._margin = max(1, obs_range // 2)
        wall = np.pad(self.walls, self._margin, constant_values=True)
        self._layers = np.zeros((3, wall.size), np.float32)
        self._layers[WALL] = wall.reshape(-1)
        self._strides = np.array([wall.shape[1], 1])
        self._beside = BESIDE @ self._strides
        reach = np.arange(obs_range) - obs_range // 2
        self._window = (reach[:, None] + reach * self._strides[0]).reshape(-1)  # [y, x]

    @override
    def begin(self, options: Mapping[str, Any]) -> None:
        free = np.argwhere(~self.walls)
        places = {}
        counts = {"pursuers": len(self.possible_agents), "evaders": self.num_evaders}
        for name, count in counts.items():
            # One to a cell, where there are enough of them.
            drawn = self.rng.choice(len(free), count, replace=count > len(free))
            places[name] = (
                self._given(name, options[name], count) if name in options else free[drawn]
            )
        self.pursuers, self.evaders = places["pursuers"], places["evaders"]
        self._alive = np.ones(self.num_evaders, np.bool_)
        self._fill(PURSUERS, self.pursuers)
        self._fill(EVADERS, self.evaders)

    @override
    def advance(self, actions: NDArray[Any]) -> tuple[Floats, bool]:
        self.pursuers = self._moved(self.pursuers, actions)
        self._fill(PURSUERS, self.pursuers)
        beside = self._layers[EVADERS, self._at(self.pursuers)[:, None] + self._beside]
        rewards = self.tag_reward * beside.sum(1, dtype=np.float64)
        rewards += self.catch_reward * self._catch()
        rewards += self.urgency_reward
        if not self.freeze_evaders:
            chosen = self.rng.integers(len(MOVES), size=int(self._alive.sum()))
            self.evaders[self._alive] = self._moved(self.evaders[self._alive], chosen)
        self._fill(EVADERS, self.evaders[self._alive])
        if self.shared_reward:
            rewards[:] = rewards.mean()
        return rewards, not self._alive.any()

    @override
    def observe_all(self) -> NDArray[np.float32]:
        windows = self._layers[:, self._at(self.pursuers)[:, None] + self._window]
        seen = np.ascontiguousarray(windows.transpose(1, 2, 0))  # [N, y and x, layer]
        if not self.position:
            return seen.reshape(len(seen), self.obs_range, self.obs_range, 3)
        return np.concatenate([self._scaled(self.pursuers), seen.reshape(len(seen), -1)], axis=1)

    @override
    def state(self) -> NDArray[np.float32]:
        evaders = np.where(self._alive[:, None], self._scaled(self.evaders), np.float32(-1))
        return np.concatenate([self._scaled(self.pursuers), evaders]).reshape(-1)

    @override
    def picture(self) -> NDArray[np.uint8]:
        """Walls grey, evaders blue, pursuers red, both violet; y grows downwards."""
        grid = self._layers.reshape(3, -1, self._strides[0])
        inside = grid[:, self._margin : -self._margin, self._margin : -self._margin]
        colours = np.full((*self.size, 3), 255, np.uint8)
        colours[inside[WALL] > 0] = (120, 120, 120)
        colours[inside[EVADERS] > 0] = (70, 90, 230)
        pursued = inside[PURSUERS] > 0
        colours[pursued] = (220, 60, 50)
        colours[pursued & (inside[EVADERS] > 0)] = (150, 60, 170)
        return cells(colours.swapaxes(0, 1))

    def _catch(self) -> NDArray[np.bool_]:
        """Remove the evaders that are caught; returns who took part, [N]."""
        at = self._at(self.evaders[self._alive])
        if self.surround:
            beside = at[:, None] + self._beside
            closed = (self._layers[PURSUERS] + self._layers[WALL])[beside] > 0
            caught = closed.all(axis=1)
            catching = beside[caught]
        else:
            caught = self._layers[PURSUERS, at] >= self.n_catch
            catching = at[caught]
        self._alive[np.flatnonzero(self._alive)[caught]] = False
        marked = np.zeros(self._layers.shape[1], np.bool_)
        marked[catching] = True
        return marked[self._at(self.pursuers)]

    def _at(self, places: Cells) -> Cells:
        """[K], the numbers of cells [K, 2] in a layer."""
        x, y = (places + self._margin).T
        return x * self._strides[0] + y

    def _moved(self, places: Cells, actions: NDArray[Any]) -> Cells:
        wanted = places + MOVES[actions]
        blocked = self._layers[WALL, self._at(wanted)] > 0
        return np.where(blocked[:, None], places, wanted)

    def _fill(self, layer: int, places: Cells) -> None:
        self._layers[layer] = np.bincount(self._at(places), minlength=self._layers.shape[1])

    def _scaled(self, places: Cells) -> NDArray[np.float32]:
        return (places / max(self.size)).astype(np.float32)

    def _given(self, name: str, given: Any, count: int) -> Cells:
        places = np.array(given)
        wrong = places.shape != (count, 2) or places.dtype.kind not in "iu"
        wrong = wrong or bool(((places < 0) | (places >= self.size)).any())
        if wrong or self.walls[tuple(places.T)].any():
            raise ValueError(
                f"options[{name!r}] ({given}) must be {count} pairs of x and y on the grid of "
                f"{self.size[0]} x {self.size[1]}, outside the wall."
            )
        return places.astype(np.int64)


def walls(width: int, height: int) -> NDArray[np.bool_]:
    """[width, height], SISL's map: a block with x / width in (0.3, 0.7), y / height in (0.2, 0.8).

    Raises:
        ValueError: when a side is below 1.
    """
    if width < 1 or height < 1:
        raise ValueError(f"size ({(width, height)}) must be at least 1 by 1.")
    x, y = np.arange(width) / width, np.arange(height) / height
    middle = ((x > 0.3) & (x < 0.7))[:, None] & ((y > 0.2) & (y < 0.8))
    return np.asarray(middle, np.bool_)
