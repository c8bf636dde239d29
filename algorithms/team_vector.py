"""Many environments of a team of numeric agents, stepped together: in this process, in processes of
their own, or on a Ray cluster.

E environments, N agents, D observation size, A actions (discrete) or size of an action
(continuous), S size of the state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.streams import TRAIN
from marlogue.algorithms.team_backends import BACKENDS, Backend, maker_of, workers_for
from marlogue.algorithms.team_checks import check_whole, checked_actions, checked_episodes
from marlogue.algorithms.team_game import Job
from marlogue.algorithms.team_guidance import Guidance
from marlogue.algorithms.team_runner import check_one_kind, check_same_team
from marlogue.algorithms.team_tape import Running, warn_of_lost
from marlogue.algorithms.team_views import (
    EpisodeEnd,
    TeamView,
    VectorStep,
    joined_steps,
    joined_views,
    lost_step,
    team_step,
)
from marlogue.algorithms.team_workers import Worker, WorkerDiedError, Workers
from marlogue.envs.callbacks import require_callable

__all__ = [
    "BACKENDS",
    "EpisodeEnd",
    "TeamVector",
    "TeamView",
    "VectorStep",
    "WorkerDiedError",
    "make_team_vector",
    "team_step",
]


class TeamVector:
    """E environments that step together; an episode that is over is followed by the next one.

    Made by `make_team_vector`. A context manager that closes itself. After an exception of the
    environment or of the guidance only `reset` and `close` are possible.

    Args:
        workers: the backend.
        shares: the numbers of the environments of each worker; together 0 to E - 1, in order.
        first_episodes: [E], numbers of the episodes that come first.
        max_restarts: workers that may be replaced, in all.

    Attributes:
        team: the agents.
        num_envs: E.
        restarts: workers that died and were replaced.
    """

    def __init__(
        self,
        workers: Workers,
        shares: Sequence[Sequence[int]],
        first_episodes: Sequence[int],
        max_restarts: int,
    ) -> None:
        self.num_envs = len(first_episodes)
        self.restarts = 0
        self._max_restarts = max_restarts
        self._next = np.array(first_episodes, np.int64)  # what each environment begins next
        self._backend = workers
        self._shares = [slice(share[0], share[-1] + 1) for share in shares]
        self._workers: list[Worker] = []
        self._view: TeamView | None = None
        self._closed = False
        self._guidance_shape: tuple[int, ...] | None = None
        try:
            self._workers = [workers.open(share) for share in shares]
            teams = self._answers("team")
        except BaseException:
            self.close()
            raise
        self.team: TeamSpec = teams[0]
        for share, team in zip(shares, teams, strict=True):
            check_same_team(team, self.team, share[0])

    @property
    def next_episodes(self) -> list[int]:
        """[E], the number of the episode that each environment begins next: ``first_episode`` of a
        vector that goes on after this one."""
        return [int(number) for number in self._next]

    def reset(self, first_episode: int | Sequence[int] | None = None) -> TeamView:
        """Begin the next episode in every environment; those that are under way are given up.

        Args:
            first_episode: number of the episode that they begin, for all or for each; None to go
                on counting.

        Raises:
            RuntimeError: when it is closed, or too many workers died.
            Exception: what an environment raised.
        """
        self._check_open()
        if first_episode is not None:
            self._next = np.array(checked_episodes(first_episode, self.num_envs))
        self._view = None
        begun = self._next.copy()
        self._next += 1
        found = self._answers("reset", *[(begun[share],) for share in self._shares])
        parts = [
            self._replaced(index, part) if isinstance(part, WorkerDiedError) else part
            for index, part in enumerate(found)
        ]
        self._view = joined_views(parts)
        return self._view

    def resume(self, saved: Sequence[Running]) -> tuple[TeamView, NDArray[np.bool_]]:
        """Go on with episodes of another vector (see `Tape`), which are played again for it. Where
        one does not get to where it was, the next one begins, with a warning.

        Args:
            saved: [E].

        Returns:
            What is seen, and the environments [E] whose saved episode is lost.
        """
        self._check_open()
        self._view = None
        episodes = checked_episodes([one.episode for one in saved], self.num_envs)
        self._next = np.array(episodes) + 1
        found = self._answers("resume", *[(saved[share],) for share in self._shares])
        lost = np.zeros(self.num_envs, np.bool_)
        views = []
        for index, (share, part) in enumerate(zip(self._shares, found, strict=True)):
            if isinstance(part, WorkerDiedError):
                lost[share] = True
                views.append(self._replaced(index, part))
                continue
            view, reasons = part
            views.append(view)
            for env, why in enumerate(reasons, share.start):
                if why:
                    lost[env] = True
                    self._next[env] += 1
                    warn_of_lost(env, saved[env], why)
        self._view = joined_views(views)
        return self._view, lost

    def step(self, actions: NDArray[Any]) -> VectorStep:
        """Act in every environment.

        Args:
            actions: [E, N] indices, or [E, N, A] in [-1, 1]; those of absent agents don't count.

        Raises:
            ValueError: when they don't fit, or an environment gives what it must not.
            RuntimeError: before `reset`, after `close`, or when too many workers died.
            Exception: what an environment or the guidance raised.
        """
        self._check_open()
        view = self._view
        if view is None:
            raise RuntimeError("nothing is being played; call reset() first.")
        given = checked_actions(actions, view, self.team)
        self._view = None
        found = self._answers("step", *[(given[share],) for share in self._shares])
        dead = [i for i, part in enumerate(found) if isinstance(part, WorkerDiedError)]
        self._note_guidance([part for i, part in enumerate(found) if i not in dead])
        for i in dead:
            found[i] = lost_step(self._replaced(i, found[i]), self._guidance_shape)
        step = joined_steps(found)
        self._next += step.over
        self._view = step.view
        return step

    def close(self) -> None:
        """End the workers; a second time it does nothing."""
        if self._closed:
            return
        self._closed = True
        self._view = None
        for worker in self._workers:
            worker.close()
        self._backend.close()

    def __enter__(self) -> TeamVector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this TeamVector is closed; make another one.")

    def _answers(self, method: str, *args: tuple[Any, ...]) -> list[Any]:
        """Call a method of every runner. A dead worker's answer is its `WorkerDiedError`, except
        before the first reset."""
        for worker, given in zip(self._workers, args or [()] * len(self._workers), strict=True):
            worker.ask(method, *given)
        answers: list[Any] = []
        raised: Exception | None = None
        for worker in self._workers:  # all are waited for, so that none is left with a question
            try:
                answers.append(worker.answer())
            except WorkerDiedError as error:
                answers.append(error)
                if method == "team":
                    raised = raised or WorkerDiedError(
                        f"a worker did not start ({error}); see what it printed. A script that "
                        "makes workers must do so under: if __name__ == '__main__'"
                    )
            except Exception as error:
                raised = raised or error
        if raised is not None:
            raise raised
        return answers

    def _replaced(self, index: int, died: WorkerDiedError) -> TeamView:
        """Put a new worker in the place of a dead one, and begin the next episodes of its
        environments."""
        share = self._shares[index]
        numbers = list(range(share.start, share.stop))
        while True:
            where = f"environments {numbers}"
            if self.restarts >= self._max_restarts:
                raise RuntimeError(
                    f"the worker of {where} died ({died}), and {self.restarts} were replaced "
                    f"before it, which must not be more than max_restarts ({self._max_restarts}); "
                    "find out why they die, or set max_restarts higher."
                ) from died
            self.restarts += 1
            begun = self._next[share].copy()
            self._next[share] += 1
            warnings.warn(
                f"the worker of {where} died ({died}); another one begins the episodes "
                f"{begun.tolist()} there (restart {self.restarts} of at most "
                f"{self._max_restarts}).",
                RuntimeWarning,
                stacklevel=4,
            )
            self._workers[index].close()
            worker = self._workers[index] = self._backend.open(numbers)
            worker.ask("reset", begun)
            try:
                view: TeamView = worker.answer()
            except WorkerDiedError as error:
                died = error
            else:
                return view

    def _note_guidance(self, parts: list[VectorStep]) -> None:
        if all(part.guidance is None for part in parts):
            return
        shapes = {part.guidance.shape[1:] for part in parts if part.guidance is not None}
        if self._guidance_shape is not None:
            shapes.add(self._guidance_shape)
        check_one_kind({len(shape) for shape in shapes})
        self._guidance_shape = next(iter(shapes), None)


def make_team_vector(
    env: ParallelEnv | Callable[..., ParallelEnv],
    *,
    num_envs: int = 1,
    backend: Backend = "serial",
    num_workers: int | None = None,
    seed: int = 0,
    stream: int = TRAIN,
    guidance: Guidance | Literal[True] | None = None,
    with_state: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    max_restarts: int = 10,
    first_episode: int | Sequence[int] = 0,
) -> TeamVector:
    """Environments that step together.

    Episode k of environment e is reset with the seed ``derived_seed(seed, stream, e, k)``: the same
    actions give the same rollouts, whatever the backend and the number of workers.

    Args:
        env: a function that makes an environment; or one, which is used as it is for a single
            environment in this process, and copied otherwise.
        num_envs: E.
        backend: "serial" (in this process), "subprocess" (a script must then call this under
            ``if __name__ == "__main__":``), or "ray" (extra ``ray``).
        num_workers: processes or actors; None for as many as there are cores, at most one for each
            environment.
        seed: of the run.
        stream: what the episodes are for: a name of `marlogue.algorithms.streams`.
        guidance: a callable (see `Guide`), True for the environment's own method `guidance`, or
            None.
        with_state: whether views have ``env.state()``.
        env_kwargs: arguments for the function.
        max_restarts: workers that may die and be replaced, in all.
        first_episode: number of the first episode, of all environments or of each; for a run that
            goes on: `TeamVector.next_episodes`.

    Raises:
        TypeError, ValueError: when an argument is not as it must be, or the environments are not
            of one team of numeric agents.
        ImportError: when Ray is not installed.
    """
    for name, value, least in (
        ("num_envs", num_envs, 1),
        ("seed", seed, 0),
        ("stream", stream, 0),
        ("max_restarts", max_restarts, 0),
    ):
        check_whole(name, value, least)
    if guidance is not None and guidance is not True:
        require_callable(guidance, "guidance")
    job = Job(
        make=maker_of(env, num_envs, env_kwargs),
        seed=seed,
        stream=stream,
        guidance=guidance,
        with_state=with_state,
        env_kwargs=dict(env_kwargs or {}),
    )
    episodes = checked_episodes(first_episode, num_envs)
    workers, count = workers_for(backend, job, num_workers, num_envs)
    shares = [share.tolist() for share in np.array_split(np.arange(num_envs), count)]
    return TeamVector(workers, shares, episodes, max_restarts)
