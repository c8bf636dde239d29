"""What environments of numeric teams show and give, as arrays over all of them.

E environments that step together, N agents, D observation size, A actions (discrete) or size of an
action (continuous), S size of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from marlogue.algorithms.replay_data import Array, TeamStep


class TeamView(NamedTuple):
    """What E environments show.

    Attributes:
        observations: [E, N, D] float32, padded with zeros; zeros for absent agents.
        present: [E, N] bool, agents that act.
        available: [E, N, A] bool, actions that may be taken; None for continuous actions.
        state: [E, S] float32, what ``env.state()`` gives; None where it was not asked for.
    """

    observations: NDArray[np.float32]
    present: NDArray[np.bool_]
    available: NDArray[np.bool_] | None = None
    state: NDArray[np.float32] | None = None


class EpisodeEnd(NamedTuple):
    """An episode that was played to its end.

    Attributes:
        env: number of the environment, from 0 to E - 1.
        episode: number of the episode in this environment.
        length: steps.
        returns: [N], sums of each agent's rewards, undiscounted.
    """

    env: int
    episode: int
    length: int
    returns: NDArray[np.float64]


class VectorStep(NamedTuple):
    """One step of E environments.

    Attributes:
        rewards: [E, N] float32.
        terminated: [E, N] bool, agents that acted and whose task ended with it.
        truncated: [E, N] bool, agents that acted and were cut off; never those that terminated.
        after: what followed this step, also where the episode ended. Agents that were cut off are
            not present in it, but what they saw last is in its observations.
        over: [E] bool, environments whose episode ended with this step.
        view: what to act from next: ``after``, or the beginning of the next episode.
        guidance: [E, N] advantages of the taken actions, or [E, N, A] values of all actions
            (continuous: gradients by the numbers in [-1, 1]); zeros for agents that did not act.
            None without guidance.
        lost: [E] bool, environments whose worker died: there was no such transition, and ``view``
            is the beginning of a new episode.
        episodes: those that ended with this step, in the order of their environments.
    """

    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    after: TeamView
    over: NDArray[np.bool_]
    view: TeamView
    guidance: NDArray[np.float32] | None
    lost: NDArray[np.bool_]
    episodes: list[EpisodeEnd]

    @property
    def kept_envs(self) -> Array:
        """Environments [<= E] that have a transition: the rows of `team_step`, for
        ``ReplayBuffer.add``."""
        return np.flatnonzero(~self.lost)

    @property
    def lost_envs(self) -> Array:
        """Environments [<= E] whose episode broke off, for ``ReplayBuffer.cut``."""
        return np.flatnonzero(self.lost)


def team_step(
    view: TeamView,
    actions: Array,
    step: VectorStep,
    hidden: Array | None = None,
    *,
    availability: bool = True,
) -> TeamStep:
    """The transitions of a step for replay, without those of dead workers::

        buffer.add(team_step(view, actions, step), step.kept_envs)
        buffer.cut(step.lost_envs)

    Args:
        view: what was acted from.
        actions: [E, N] indices or [E, N, A] numbers in [-1, 1].
        step: what came of it.
        hidden: [E, N, H], the actors' state before the step.
        availability: whether the replay's layout has one.

    Returns:
        Rows for ``step.kept_envs``.
    """
    after = step.after
    whole = TeamStep(
        observations=view.observations,
        actions=np.asarray(actions),
        rewards=step.rewards,
        next_observations=after.observations,
        terminated=step.terminated,
        truncated=step.truncated,
        present=view.present,
        available=view.available if availability else None,
        next_available=after.available if availability else None,
        state=view.state,
        next_state=after.state,
        guidance=step.guidance,
        hidden=hidden,
    )
    if not step.lost.any():
        return whole
    kept = step.kept_envs
    rows: list[Any] = [None if field is None else field[kept] for field in whole]
    return TeamStep(*rows)


def stacked(rows: Sequence[TeamView]) -> TeamView:
    """One view of E environments, of E views without the dimension E."""
    return _together(piled, rows)


def piled(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """[E, ...] of E arrays [...], as `np.stack`, but without its overhead and, for a single one,
    without a copy."""
    return rows[0][None] if len(rows) == 1 else np.array(rows)


def joined_views(parts: Sequence[TeamView]) -> TeamView:
    """One view, of views of some environments each."""
    return parts[0] if len(parts) == 1 else _together(np.concatenate, parts)


def with_rows(view: TeamView, envs: Array, rows: TeamView) -> TeamView:
    """A copy of `view` with `rows` put in for the environments `envs`."""

    def put(field: Any, new: Any) -> Any:
        if field is None:
            return None
        changed = field.copy()
        changed[envs] = new
        return changed

    return TeamView(*(put(*pair) for pair in zip(view, rows, strict=True)))


def joined_steps(parts: Sequence[VectorStep]) -> VectorStep:
    """One step, of steps of some environments each. All have the same kind of guidance."""
    if len(parts) == 1:
        return parts[0]

    def all_of(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    after = joined_views([part.after for part in parts])
    same = all(part.view is part.after for part in parts)
    return VectorStep(
        rewards=all_of("rewards"),
        terminated=all_of("terminated"),
        truncated=all_of("truncated"),
        after=after,
        over=all_of("over"),
        view=after if same else joined_views([part.view for part in parts]),
        guidance=None if parts[0].guidance is None else all_of("guidance"),
        lost=all_of("lost"),
        episodes=[end for part in parts for end in part.episodes],
    )


def lost_step(view: TeamView, guidance: tuple[int, ...] | None) -> VectorStep:
    """The step of environments whose worker died.

    Args:
        view: the beginning of their next episodes.
        guidance: shape of one environment's guidance; None for none.
    """
    count = len(view.present)
    nobody = np.zeros_like(view.present)
    return VectorStep(
        rewards=np.zeros(nobody.shape, np.float32),
        terminated=nobody,
        truncated=nobody,
        after=view,
        over=np.zeros(count, np.bool_),
        view=view,
        guidance=None if guidance is None else np.zeros((count, *guidance), np.float32),
        lost=np.ones(count, np.bool_),
        episodes=[],
    )


def _together(join: Callable[[list[Any]], Any], views: Sequence[TeamView]) -> TeamView:
    fields: Any = zip(*views, strict=True)
    rows: list[Any] = [None if some[0] is None else join(list(some)) for some in fields]
    return TeamView(*rows)
