"""Runners of a `TeamVector` as actors on a Ray cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from marlogue.algorithms.team_failures import Failure, RemoteRunner
from marlogue.algorithms.team_game import Job
from marlogue.algorithms.team_workers import GRACE, WorkerDiedError
from marlogue.envs.optional import require

with require("ray", extra="ray"):
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError

#: Those that play on a cluster that was started here; the last one to close ends it.
_on_own_cluster: set[RayWorkers] = set()


class Actor(RemoteRunner):
    """A runner that finds the modules that the process it plays for finds.

    Args:
        job: what is played, pickled.
        numbers: of the environments.
        paths: where modules are looked for, last.
    """

    def __init__(self, job: bytes, numbers: Sequence[int], paths: Sequence[str]) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        super().__init__(job, numbers)


class RayWorker:
    """A runner in an actor, which begins at once.

    Args:
        job: what is played, pickled and put into Ray's object store.
        numbers: of the environments.
    """

    def __init__(self, job: Any, numbers: Sequence[int]) -> None:
        # Spread over the machines. An actor waits for a free core once, and then holds none.
        actor: Any = ray.remote(Actor).options(scheduling_strategy="SPREAD")
        paths = [os.path.abspath(path) for path in sys.path]  # "" is where this process is
        self._actor = actor.remote(job, list(numbers), paths)
        self._answer: Any = None

    def ask(self, method: str, *args: Any) -> None:
        """See `Worker`."""
        self._answer = self._actor.packed.remote(method, *args)

    def answer(self) -> Any:
        """See `Worker`."""
        try:
            # Unpacked here: Ray's own arrays would lie in its store, where nobody can write.
            found = cloudpickle.loads(ray.get(self._answer))
        except RayActorError as error:
            raise WorkerDiedError(str(error).strip()) from None
        if isinstance(found, Failure):
            raise found.error()
        return found

    def close(self) -> None:
        """See `Worker`."""
        with suppress(RayError, GetTimeoutError):
            ray.get(self._actor.close.remote(), timeout=GRACE)
        with suppress(RayError):
            ray.kill(self._actor)


class RayWorkers:
    """The backend "ray".

    It uses the cluster that this process is connected to; otherwise the one that `ray.init` finds
    (in ``RAY_ADDRESS``) or starts on this machine, until the last vector that uses it is closed.

    Args:
        job: what is played.
    """

    def __init__(self, job: Job) -> None:
        if not ray.is_initialized():
            ray.init(include_dashboard=False, logging_level=logging.WARNING)
            _on_own_cluster.add(self)
        elif _on_own_cluster:
            _on_own_cluster.add(self)
        self._job = ray.put(cloudpickle.dumps(job))

    def cores(self) -> int:
        """How many cores the cluster has."""
        return max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def open(self, numbers: Sequence[int]) -> RayWorker:
        """See `Workers`."""
        return RayWorker(self._job, numbers)

    def close(self) -> None:
        """See `Workers`."""
        if self in _on_own_cluster:
            _on_own_cluster.remove(self)
            if not _on_own_cluster:
                ray.shutdown()
