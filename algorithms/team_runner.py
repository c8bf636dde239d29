"""Plays episodes of numeric teams in several environments, wherever it is put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.team_game import Game, Job
from marlogue.algorithms.team_tape import Running, play_again
from marlogue.algorithms.team_views import TeamView, VectorStep, piled, stacked, with_rows


class TeamRunner:
    """Plays some of the environments of a `TeamVector`, and begins the next episode where one is
    over.

    Args:
        job: what is played.
        numbers: of the environments.

    Raises:
        TypeError, ValueError: when an environment is not one for a team of numeric agents, has
            other agents or spaces than the first, or was made before.
    """

    def __init__(self, job: Job, numbers: Sequence[int]) -> None:
        self.games: list[Game] = []
        for number in numbers:
            game = Game(job, number)
            if any(game.env.unwrapped is other.env.unwrapped for other in self.games):
                raise ValueError(
                    f"env made {game.env} a second time, and one environment cannot play several "
                    "episodes at once; let it make a new one at each call."
                )
            self.games.append(game)
            check_same_team(game.team, self.team, number)

    @property
    def team(self) -> TeamSpec:
        """The agents."""
        return self.games[0].team

    def reset(self, episodes: Sequence[int]) -> TeamView:
        """Begin an episode in each environment, with these numbers."""
        pairs = zip(self.games, episodes, strict=True)
        return stacked([game.begin(int(episode)) for game, episode in pairs])

    def resume(self, saved: Sequence[Running]) -> tuple[TeamView, list[str]]:
        """Play the episodes of each environment again, up to where they were; see
        :func:`marlogue.algorithms.team_tape.play_again`."""
        pairs = [play_again(game, one) for game, one in zip(self.games, saved, strict=True)]
        return stacked([view for view, _ in pairs]), [why for _, why in pairs]

    def step(self, actions: NDArray[Any]) -> VectorStep:
        """Act in each environment, [E, N] or [E, N, A]; see `VectorStep`."""
        rows = [game.step(given) for game, given in zip(self.games, actions, strict=True)]
        over = np.array([row.end is not None for row in rows])
        after = stacked([row.after for row in rows])
        truncated = piled([row.truncated for row in rows])
        view = after
        if truncated.any():
            # Cut off while others go on: shown once more, but not to act from.
            seen = np.where(after.present[..., None], after.observations, np.float32(0))
            view = after._replace(observations=seen)
        if over.any():
            ended = np.flatnonzero(over)
            games = [self.games[i] for i in ended]
            begun = [game.begin(game.episode + 1) for game in games]
            view = with_rows(view, ended, stacked(begun))
        return VectorStep(
            rewards=piled([row.rewards for row in rows]),
            terminated=piled([row.terminated for row in rows]),
            truncated=truncated,
            after=after,
            over=over,
            view=view,
            guidance=_guidance([row.guidance for row in rows]),
            lost=np.zeros(len(rows), np.bool_),
            episodes=[row.end for row in rows if row.end is not None],
        )

    def close(self) -> None:
        """Close the environments."""
        for game in self.games:
            game.close()


def check_same_team(team: TeamSpec, first: TeamSpec, number: int) -> None:
    """Raise a ValueError when environment `number` has another team than the first one."""
    if team != first:
        raise ValueError(
            f"environment {number} (agents {list(team.agents)}, spaces "
            f"{team.observation_spaces}, {team.action_spaces}) must have the agents and spaces of "
            f"the first one ({list(first.agents)}, {first.observation_spaces}, "
            f"{first.action_spaces}); let env make equal ones at each call."
        )


def _guidance(rows: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    given = [row for row in rows if row is not None]
    if not given:
        return None
    check_one_kind({row.ndim for row in given})
    return piled(given)


def check_one_kind(dimensions: set[int]) -> None:
    """Raise a ValueError when guidance came in both kinds: 1 (advantages), 2 (values)."""
    if len(dimensions) > 1:
        raise ValueError(
            "guidance gave advantages of the taken actions (one number for each agent) in one "
            "environment and values of all actions in another; give the same kind always."
        )
