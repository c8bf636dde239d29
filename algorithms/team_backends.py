"""Which workers a `TeamVector` gets, and what they play."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.algorithms.team_checks import check_whole
from marlogue.algorithms.team_game import Job
from marlogue.algorithms.team_processes import ProcessWorkers, cores
from marlogue.algorithms.team_workers import LocalWorkers, Workers
from marlogue.envs.copies import copier

Backend = Literal["serial", "subprocess", "ray"]
BACKENDS: tuple[Backend, ...] = ("serial", "subprocess", "ray")


def check_backend(backend: Backend, num_workers: int | None, num_envs: int) -> None:
    """See that there can be such workers, before any is made.

    Raises:
        ValueError: when an argument is not as it must be.
        ImportError: when Ray is not installed.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend ({backend!r}) must be one of {', '.join(BACKENDS)}.")
    if num_workers is not None:
        check_whole("num_workers", num_workers, 1)
        most = 1 if backend == "serial" else num_envs
        if num_workers > most:
            raise ValueError(
                f"num_workers ({num_workers}) must be at most num_envs ({num_envs}), and 1 with "
                f'the backend "serial"; the backend is "{backend}".'
            )
    if backend == "ray":
        import marlogue.algorithms.team_ray  # noqa: F401  # says how to install it


def workers_for(
    backend: Backend, job: Job, num_workers: int | None, num_envs: int
) -> tuple[Workers, int]:
    """The backend, and the number of its workers.

    Raises:
        ValueError, ImportError: see :func:`check_backend`.
    """
    check_backend(backend, num_workers, num_envs)
    if backend == "serial":
        return LocalWorkers(job), 1
    if backend == "subprocess":
        return ProcessWorkers(job), num_workers or min(num_envs, cores())
    from marlogue.algorithms.team_ray import RayWorkers  # Ray is optional

    workers = RayWorkers(job)
    return workers, num_workers or min(num_envs, workers.cores())


def maker_of(
    env: Any, num_envs: int, env_kwargs: Mapping[str, Any] | None
) -> ParallelEnv | Callable[..., ParallelEnv]:
    """What makes the environments, or the only one.

    Raises:
        TypeError: when `env` is neither an environment nor callable.
        ValueError: when there are arguments for an environment that is already made.
    """
    if not isinstance(env, ParallelEnv) and callable(env):
        return env
    copies = copier(env)  # refuses what is no ParallelEnv
    if env_kwargs:
        raise ValueError(
            f"env_kwargs ({dict(env_kwargs)}) must not be given with an environment that is "
            "already made; pass a function that makes it as env."
        )
    return env if num_envs == 1 else copies
