"""The store of replay: a ring of observations and of the steps taken there.

Each observation is held once. A slot holds an observation and, as soon as it is known, the step
that was taken there, with the number of the slot of what followed. The observation that ends an
episode has a slot without a step. Slots are numbered by serials that go on growing;
``serial % capacity`` is the place, and a serial that is too old has been overwritten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marlogue.algorithms.replay_data import Array, ReplayLayout, TeamStep, checked_step

Serials = NDArray[np.int64]


class Ring:
    """Steps of E environments, in the order in which they came.

    Args:
        capacity: observations that are held, C.
        layout: sizes of what is held.
        num_envs: E.

    Attributes:
        store: arrays [C, ...] by the names of the layout, and "present" [C, N].
        views: the same memory as tensors.
        next: [C], the serial of what followed the step.
        previous: [C], the serial of the step that led here; -1 at the start of an episode.
        recorded: [C] bool, slots with a step.
        stops: [C] bool, steps after which the episode, or that of some agent, was over.
        count: slots with a step.

    Raises:
        ValueError: when a number is out of range.
    """

    def __init__(self, capacity: int, layout: ReplayLayout, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs ({num_envs!r}) must be at least 1.")
        if capacity < 4 * num_envs:
            raise ValueError(
                f"capacity ({capacity!r}) must be at least {4 * num_envs}, 4 for each of "
                f"num_envs={num_envs} environments."
            )
        self.capacity = capacity
        self.layout = layout
        fields = {**layout.seen(), **layout.done(), "present": ((layout.num_agents,), "bool")}
        self.store: dict[str, Array] = {
            name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in fields.items()
        }
        self.views = {name: torch.from_numpy(array) for name, array in self.store.items()}
        self.next: Serials = np.full(capacity, -1, np.int64)
        self.previous: Serials = np.full(capacity, -1, np.int64)
        self.recorded = np.zeros(capacity, bool)
        self.stops = np.zeros(capacity, bool)
        self.count = 0
        self._frontier: Serials = np.full(num_envs, -1, np.int64)  # where the next step belongs
        self._head = 0  # the serial that is given next

    @property
    def filled(self) -> int:
        """Slots that have ever been used: the first so many."""
        return min(self._head, self.capacity)

    @property
    def oldest(self) -> int:
        """The smallest serial that has not been overwritten."""
        return max(self._head - self.capacity, 0)

    @property
    def nbytes(self) -> int:
        """Memory of the whole ring, full or not."""
        links = (self.next, self.previous, self.recorded, self.stops)
        return sum(array.nbytes for array in (*self.store.values(), *links))

    def serials_of(self, slots: Array) -> Serials:
        """The serials [B] of what the slots hold now."""
        newest = self._head - 1
        return np.asarray(newest - (newest - slots) % self.capacity, np.int64)

    def add(self, step: TeamStep, envs: Array | None = None) -> tuple[Array, Array]:
        """Record one step of some environments (None: all); see :meth:`ReplayBuffer.add`.

        Returns:
            The slots of the new steps, and the slots whose steps were overwritten.
        """
        arrays, count = checked_step(step, self.layout)
        who = self._environments(envs)
        if len(who) != count:
            raise ValueError(
                f"the step has {count} rows for {len(who)} environments; give one row for each, or "
                "say in envs which ones they are."
            )
        frontier = self._frontier[who]
        # This very call may overwrite up to two slots for each environment.
        begins = frontier < max(self._head + 2 * count - self.capacity, 0)
        started, goes_on = np.flatnonzero(begins), np.flatnonzero(~begins)
        self._join(arrays, who, goes_on, frontier[goes_on] % self.capacity)
        first, lost = self._allocate(len(started))
        serials = frontier.copy()
        serials[started] = first
        following, lost_too = self._allocate(count)
        slots, after = serials % self.capacity, following % self.capacity
        for name in self.layout.seen():
            self.store[name][first % self.capacity] = arrays[name][started]
            self.store[name][after] = arrays[f"next_{name}"]
        for name in (*self.layout.done(), "present"):
            self.store[name][slots] = arrays[name]
        alive = arrays["present"] & ~arrays["terminated"]
        going_on = alive & ~arrays["truncated"]
        over = ~going_on.any(-1)
        self.store["present"][after] = alive
        self.stops[slots] = over | (alive & arrays["truncated"]).any(-1)
        self.next[slots] = following
        self.previous[after] = serials
        self.recorded[slots] = True
        self.count += count
        self._frontier[who] = np.where(over, -1, following)
        return slots, np.concatenate([lost, lost_too])

    def cut(self, envs: Array | None = None) -> None:
        """End the episodes of some environments (None: all); see :meth:`ReplayBuffer.cut`."""
        self._frontier[self._environments(envs)] = -1

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """All that is held; with ``copy=False`` the arrays are those in use, of which a large ring
        has no room for a second set."""
        held = {name: array[: self.filled] for name, array in self._rings().items()}
        return {
            "rings": {name: array.copy() for name, array in held.items()} if copy else held,
            "frontier": self._frontier.copy(),
            "head": self._head,
            "capacity": self.capacity,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave.

        Raises:
            ValueError: when it comes from a ring of another size; nothing is loaded then.
        """
        filled = min(state["head"], self.capacity)
        own = {name: (filled, *array.shape[1:]) for name, array in self._rings().items()}
        saved = {name: array.shape for name, array in state["rings"].items()}
        for what, wanted, found in (
            ("capacity", self.capacity, state["capacity"]),
            ("num_envs", len(self._frontier), len(state["frontier"])),
            ("arrays", own, saved),
        ):
            if wanted != found:
                raise ValueError(
                    f"{what} of the saved replay ({found}) must be {wanted}; build the buffer as "
                    "the one that was saved."
                )
        self.recorded[:] = False
        for name, array in self._rings().items():
            array[:filled] = state["rings"][name]
        self._frontier[:] = state["frontier"]
        self._head = state["head"]
        self.count = int(self.recorded.sum())

    def _rings(self) -> dict[str, Array]:
        links = {"next": self.next, "previous": self.previous}
        return {**self.store, **links, "recorded": self.recorded, "stops": self.stops}

    def _environments(self, envs: Array | None) -> Array:
        total = len(self._frontier)
        if envs is None:
            return np.arange(total)
        who = np.asarray(envs)
        if len(np.unique(who)) < len(who) or ((who < 0) | (who >= total)).any():
            raise ValueError(
                f"envs ({who.tolist()}) must be different numbers from 0 to {total - 1}."
            )
        return who

    def _allocate(self, count: int) -> tuple[Serials, Array]:
        """``count`` new serials, and those of their slots whose steps are lost by it."""
        serials = np.arange(self._head, self._head + count)
        self._head += count
        slots = serials % self.capacity
        lost = slots[self.recorded[slots]]
        self.count -= len(lost)
        self.recorded[slots] = False
        self.stops[slots] = False
        self.next[slots] = -1
        self.previous[slots] = -1
        return serials, lost

    def _join(self, arrays: dict[str, Array], who: Array, goes_on: Array, slots: Array) -> None:
        """Check that steps go on where the last ones ended, and write what is new there: the
        observations of agents that were not there before."""
        if not len(goes_on):
            return
        given = arrays["observations"][goes_on]
        held = self.store["observations"]
        present, was_present = arrays["present"][goes_on], self.store["present"][slots]
        unlike = (held[slots] != given).any(-1)
        if (unlike & present & was_present).any():
            env, agent = np.argwhere(unlike & present & was_present)[0].tolist()
            raise ValueError(
                f"observations of agent {agent} in environment {who[goes_on[env]]} must be the "
                "next_observations of the step before; call cut() where an episode is left "
                "unfinished."
            )
        env, agent = np.nonzero(present & ~was_present)
        held[slots[env], agent] = given[env, agent]
        for name in set(self.layout.seen()) - {"observations"}:
            self.store[name][slots] = arrays[name][goes_on]
