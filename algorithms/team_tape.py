"""Episodes under way, kept so that they can be played again.

Nothing of a foreign environment can be saved safely. But the seed of its episode is known, and so
are the actions taken in it: with both, it gets to where it was.

E environments, N agents, A size of a continuous action, T steps of an episode so far.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from marlogue.algorithms.replay_data import Array
from marlogue.algorithms.team_game import Game
from marlogue.algorithms.team_views import TeamView, VectorStep

#: Memory for actions, of all environments together: an episode without end must not fill it.
MOST_BYTES = 2**29
_FIRST_ROOM = 64  # steps


class Running(NamedTuple):
    """An episode under way in one environment.

    Attributes:
        episode: its number, from which its seed follows.
        length: T.
        actions: [T, N] or [T, N, A], those taken so far; None when there was no room for them.
        shown: what is seen now, without the dimension E.
        returns: [N], sums of the rewards so far.
    """

    episode: int
    length: int
    actions: Array | None
    shown: TeamView
    returns: NDArray[np.float64]


class Tape:
    """The actions taken in the episodes under way.

    Args:
        num_envs: E.
        num_agents: N.
    """

    def __init__(self, num_envs: int, num_agents: int) -> None:
        self._actions: Array | None = None  # [E, room, N(, A)]
        self._lengths = np.zeros(num_envs, np.int64)
        self._returns = np.zeros((num_envs, num_agents))

    def add(self, actions: Array, step: VectorStep) -> None:
        """Take in the actions [E, N] or [E, N, A] of a step, and what came of it."""
        if self._actions is None:
            self._actions = np.zeros((len(actions), 0, *actions.shape[1:]), actions.dtype)
        if self._lengths.max() == self._actions.shape[1]:
            self._actions = _with_more_room(self._actions)
        envs = np.flatnonzero(self._lengths < self._actions.shape[1])
        self._actions[envs, self._lengths[envs]] = actions[envs]
        self._lengths += 1
        self._returns += step.rewards
        ended = step.over | step.lost
        self._lengths[ended] = 0
        self._returns[ended] = 0.0

    def running(self, episodes: Sequence[int], view: TeamView) -> list[Running]:
        """The episodes under way, by environment.

        Args:
            episodes: [E], their numbers.
            view: [E], what they show.
        """
        room = 0 if self._actions is None else self._actions.shape[1]
        found = []
        for env, (episode, length) in enumerate(zip(episodes, self._lengths.tolist(), strict=True)):
            actions = None
            if self._actions is not None and length <= room:
                actions = self._actions[env, :length].copy()
            parts: list[Any] = [None if part is None else part[env] for part in view]
            shown = TeamView(*parts)
            found.append(Running(episode, length, actions, shown, self._returns[env].copy()))
        return found

    def resume(self, saved: Sequence[Running], lost: NDArray[np.bool_]) -> None:
        """Go on from what :meth:`running` gave, except in environments that are ``lost`` [E]:
        their episodes begin."""
        kept = {env: one for env, one in enumerate(saved) if one.length and not lost[env]}
        self._actions = None
        self._lengths[:] = 0
        self._returns[:] = 0.0
        room = max((one.length for one in kept.values()), default=0)
        for env, one in kept.items():
            assert one.actions is not None  # or it were lost
            if self._actions is None:
                shape = (len(saved), room, *one.actions.shape[1:])
                self._actions = np.zeros(shape, one.actions.dtype)
            self._actions[env, : one.length] = one.actions
            self._lengths[env] = one.length
            self._returns[env] = one.returns


def play_again(game: Game, saved: Running) -> tuple[TeamView, str]:
    """Play an episode up to where it was; nothing is learnt from it, and no guidance is asked.

    Returns:
        What it shows, and "". When it does not get there, what the next episode shows, and why.
    """
    view, why = None, ""
    if saved.actions is None and saved.length:
        why = f"its {saved.length} actions were too many to be kept"
    else:
        try:
            view, returns, why = _played_again(game, saved)
        except Exception as error:  # it did not raise when these steps were taken first
            why = f"it raised {type(error).__name__} ({error})"
    if view is not None and not why:
        unlike = [name for name in view._fields if _unlike(view, saved.shown, name)]
        unlike += [] if np.array_equal(returns, saved.returns) else ["rewards"]
        if not unlike:
            return view, ""
        why = f"its {' and '.join(unlike)} were others than those that were saved"
    return game.begin(saved.episode + 1), why


def warn_of_lost(env: int, saved: Running, why: str) -> None:
    """Say that an episode could not be played again."""
    mend = "; let reset(seed=...) decide all that is random in an episode"
    warnings.warn(
        f"episode {saved.episode} of environment {env}, played again from its seed up to step "
        f"{saved.length}, did not get to where it was: {why}. It is given up, and the next one "
        f"begins{'' if saved.actions is None else mend}.",
        RuntimeWarning,
        stacklevel=5,
    )


def _played_again(game: Game, saved: Running) -> tuple[TeamView, NDArray[np.float64], str]:
    """What is seen in the end, the sums of the rewards [N], and what came in between."""
    view = game.begin(saved.episode)
    returns = np.zeros(len(game.names))
    for number in range(saved.length):
        assert saved.actions is not None
        played = game.step(saved.actions[number], guided=False)
        returns += played.rewards
        if played.end is not None:
            return view, returns, f"it was over after {number + 1} of {saved.length} steps"
        after = played.after
        seen = np.where(after.present[..., None], after.observations, np.float32(0))
        view = after._replace(observations=seen)  # as a runner shows it
    return view, returns, ""


def _unlike(view: TeamView, saved: TeamView, name: str) -> bool:
    one, other = getattr(view, name), getattr(saved, name)
    if one is None or other is None:
        return one is not other
    return not np.array_equal(one, other)


def _with_more_room(actions: Array) -> Array:
    """A copy with room for twice as many steps, within ``MOST_BYTES``."""
    envs, room, *shape = actions.shape
    row = envs * int(np.prod(shape)) * actions.itemsize
    wanted = max(_FIRST_ROOM, 2 * room)
    larger = np.zeros((envs, max(room, min(wanted, MOST_BYTES // row)), *shape), actions.dtype)
    larger[:, :room] = actions
    return larger
