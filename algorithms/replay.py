"""Replay of whole teams' steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marlogue.algorithms.replay_data import Array, ReplayLayout, TeamStep, Transitions
from marlogue.algorithms.replay_ring import Ring


class Window(NamedTuple):
    """Up to n steps, from B slots on.

    Attributes:
        rewards: [B, N], discounted sums.
        discounts: [B, N].
        after: [B], the slots of what followed the last step.
        alive: [B, N] bool, agents that acted in the first step and did not terminate in any.
    """

    rewards: NDArray[np.float32]
    discounts: NDArray[np.float32]
    after: Array
    alive: NDArray[np.bool_]


class ReplayBuffer:
    """Uniform replay of n-step transitions, in arrays that are made once.

    Args:
        capacity: observations that are held; an episode of T steps takes T + 1.
        layout: sizes of what is held.
        num_envs: E, environments that are recorded, each with episodes of its own.
        n_step: n, the most steps of a transition. It is shorter where the episode ends, where an
            agent is cut off (its future then begins there) and where no more is known.
        discount: gamma per step.
        seed: seed of the draws.

    Raises:
        ValueError: when a number is out of range.
    """

    def __init__(
        self,
        capacity: int,
        layout: ReplayLayout,
        *,
        num_envs: int = 1,
        n_step: int = 1,
        discount: float = 0.99,
        seed: int = 0,
    ) -> None:
        if n_step < 1:
            raise ValueError(f"n_step ({n_step!r}) must be at least 1.")
        if not 0 <= discount <= 1:
            raise ValueError(f"discount ({discount!r}) must be between 0 and 1.")
        self.layout = layout
        self.n_step = n_step
        self.discount = discount
        self.ring = Ring(capacity, layout, num_envs)
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        """Steps that can be drawn."""
        return self.ring.count

    def add(self, step: TeamStep, envs: Array | None = None) -> None:
        """Record one step of several environments.

        An episode goes on until all its agents are terminated or truncated, or :meth:`cut` is
        called. An agent that is absent in a step has left or has not come yet.

        Args:
            step: the arrays, one row for each environment.
            envs: [E'] which environments the rows belong to; None for all of them, in order.

        Raises:
            ValueError: when the arrays don't fit, hold a NaN, or don't go on where the
                environment's last step ended.
        """
        self.ring.add(step, envs)

    def cut(self, envs: Array | None = None) -> None:
        """End the episodes of some environments (None: all) where they are, as a truncation: the
        next step that is added begins a new one."""
        self.ring.cut(envs)

    def draw(self, batch_size: int) -> tuple[Array, NDArray[np.float32]]:
        """Slots [B] of steps, each as likely as any other, and their weights [B], all 1.

        Raises:
            ValueError: when nothing has been recorded, or ``batch_size`` is below 1.
        """
        self.check_draw(batch_size)
        slots = self.rng.integers(self.ring.filled, size=batch_size)
        wrong = np.flatnonzero(~self.ring.recorded[slots])
        while len(wrong):
            slots[wrong] = self.rng.integers(self.ring.filled, size=len(wrong))
            wrong = wrong[~self.ring.recorded[slots[wrong]]]
        return slots, np.ones(batch_size, np.float32)

    def check_draw(self, batch_size: int) -> None:
        """Raise a ValueError when nothing can be drawn, or ``batch_size`` is below 1."""
        if batch_size < 1:
            raise ValueError(f"batch_size ({batch_size!r}) must be at least 1.")
        if not len(self):
            raise ValueError("the replay buffer is empty; add steps before drawing from it.")

    def sample(self, batch_size: int, device: torch.device | str = "cpu") -> Transitions:
        """Draw transitions, with replacement.

        Args:
            batch_size: B.
            device: where the tensors go.

        Raises:
            ValueError: when nothing has been recorded, or ``batch_size`` is below 1.
        """
        slots, weights = self.draw(batch_size)
        window = self.window(slots)

        def put(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(device)

        def both(name: str) -> dict[str, Tensor]:
            after = self.rows(name, window.after, device)
            return {name: self.rows(name, slots, device), f"next_{name}": after}

        fields = {key: rows for name in self.layout.seen() for key, rows in both(name).items()}
        if self.layout.guidance != "none":
            fields["guidance"] = self.rows("guidance", slots, device)
        return Transitions(
            actions=self.rows("actions", slots, device),
            rewards=put(window.rewards),
            discounts=put(window.discounts),
            present=self.rows("present", slots, device),
            next_present=put(self.ring.store["present"][window.after] | window.alive),
            weights=put(weights),
            serials=self.ring.serials_of(slots),
            **fields,
        )

    def rows(self, name: str, slots: Array, device: torch.device | str = "cpu") -> Tensor:
        """What the slots [...] hold under a name of the layout, [..., *shape]; observations as
        float32."""
        found = self.ring.views[name].index_select(0, torch.from_numpy(slots.reshape(-1)))
        found = found.to(device).reshape(*slots.shape, *found.shape[1:])
        return found.float() if name == "observations" else found

    def window(self, slots: Array) -> Window:
        """Follow up to n steps from slots [B] on."""
        ring, gamma = self.ring, self.discount
        alive = ring.store["present"][slots].copy()
        rewards = np.zeros(alive.shape, np.float32)
        steps = np.zeros(len(slots), np.int64)
        at, going = slots, np.ones(len(slots), bool)
        after = slots
        for step in range(self.n_step):
            counted = alive & going[:, None]
            rewards += np.where(counted, gamma**step * ring.store["rewards"][at], 0.0)
            alive &= ~ring.store["terminated"][at]
            steps += going
            after = np.where(going, ring.next[at] % ring.capacity, after)
            going = going & ~ring.stops[at] & ring.recorded[after]
            if not going.any():
                break
            at = np.where(going, after, at)
        discounts = np.where(alive, (gamma**steps)[:, None], 0.0)
        return Window(rewards, discounts.astype(np.float32), after, alive)

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """All that is needed to go on with the same draws.

        Args:
            copy: False for the arrays that are in use, to write them at once.
        """
        return {**self.ring.state_dict(copy=copy), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave.

        Raises:
            ValueError: when it comes from a buffer of another size; nothing is loaded then.
        """
        self.ring.load_state_dict(state)
        self.rng.bit_generator.state = state["rng"]
