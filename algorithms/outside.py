"""What playing episodes changes outside of a trainer: random numbers, users' state, drops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marlogue.algorithms.random_state import (
    load_users_state,
    random_state,
    set_random_state,
    users_state,
)
from marlogue.envs.reward_drops import Drops


class Outside:
    """The state of what episodes are played with.

    Args:
        users: gives the user's objects, of which some may have a state.
        drops: counts of rewards that were left out.
    """

    def __init__(self, users: Callable[[], Sequence[Any]], drops: Sequence[Drops]) -> None:
        self._users = users
        self._drops = list(drops)
        self._before: dict[str, Any] | None = None

    @contextmanager
    def broken_off_without_trace(self) -> Iterator[None]:
        """What is played within and broken off will be played again: until it is over, the state is
        the one from before."""
        self._before = self.state_dict()
        yield
        self._before = None

    def check(self) -> None:
        """See that the users' state can be saved.

        Raises:
            TypeError: when it cannot.
        """
        users_state(self._users())

    def state_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        if self._before is not None:
            return self._before
        drops = [one.state_dict() for one in self._drops]
        return {"drops": drops, "users": users_state(self._users()), "random": random_state()}

    def load_state_dict(self, state: Mapping[str, Any], folder: Path) -> None:
        """Go on from what :meth:`state_dict` gave, which was found in ``folder``.

        Raises:
            ValueError: when there were more or fewer users' objects with a state.
        """
        for drops, saved in zip(self._drops, state["drops"], strict=False):
            drops.load_state_dict(saved)
        load_users_state(self._users(), state["users"], folder)
        set_random_state(state["random"])
