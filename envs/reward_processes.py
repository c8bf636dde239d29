"""Reward calls in processes of their own, which can be ended, with all that they have begun.

The workers are fresh interpreters, not forks, so that neither this process's threads nor its
graphics card get into them; the user's script is not run again in them either, as it would be by
`multiprocessing`. The function goes over by cloudpickle.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from marlogue.envs.callbacks import noted
from marlogue.envs.reward_calls import Call, Outcome, RewardWorkerError, Scorer
from marlogue.envs.reward_pool import RewardPool
from marlogue.envs.reward_worker import decoded

START_SECONDS = 300.0
"""How long a worker may take to start and to load the function."""

GRACE = 2.0
"""Seconds in which a worker may end by itself when it is told to."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from marlogue.envs.reward_worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


class ProcessLane:
    """A worker process.

    Args:
        scorer: the function that is called.
        pickled: the same, as it is sent.
        timeout: seconds that a call may take, from when the worker can begin it.
    """

    def __init__(self, scorer: Scorer, pickled: bytes, timeout: float | None) -> None:
        self.scorer = scorer
        self.timeout = timeout
        self.deadline: float | None = time.monotonic() + START_SECONDS
        self._open = True
        self._last_words = ""
        self._ready = False
        self._call: Call | None = None
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the lane)
        self._connection, there = Pipe()
        fds = (there.fileno(), self._faults.fileno())
        paths = json.dumps([str(path) for path in sys.path])
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *map(str, fds), paths],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        # Its end shows even while a process that it has begun keeps the connection open.
        self._ended = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._send(pickled)

    @property
    def pid(self) -> int:
        """Number of the process, and of its group."""
        return self._process.pid

    @property
    def watched(self) -> list[Any]:
        """What to wait on."""
        return [self._connection] if self._ended is None else [self._connection, self._ended]

    def give(self, call: Call) -> None:
        """See `Lane`."""
        self._call = call
        with noted(
            f"sending {call.scope} to a worker process; with reward_backend='thread' nothing is "
            "sent"
        ):
            message = cloudpickle.dumps(call)
        if self._ready:
            self.deadline = self._from_now()
        self._send(message)

    def take(self) -> Outcome | None:
        """See `Lane`.

        Raises:
            RewardWorkerError: when the function could not be loaded.
        """
        try:
            message = self._message()
            if message is not None and "ready" in message:
                self._ready, self.deadline = True, self._from_now()
                return None
            if message is not None and "failed" in message:
                raise self._not_loaded(decoded(message["failed"]))
            return self._lost() if message is None else self._outcome(message)
        except (ValueError, KeyError, TypeError):
            self.leave()
            return self._blame("answered with something that is no answer")

    def fit(self) -> bool:
        """See `Lane`."""
        return self._open

    def too_late(self, call: Call) -> Exception:
        """See `Lane`."""
        if not self._ready:
            return self._blame(f"did not start within {START_SECONDS:g} s")
        assert self.timeout is not None
        return self.scorer.too_late(call, self.timeout)

    def leave(self) -> None:
        """See `Lane`."""
        self._end(kill=True)

    def close(self) -> None:
        """See `Lane`."""
        self._end(kill=False)

    def _from_now(self) -> float | None:
        return None if self.timeout is None else time.monotonic() + self.timeout

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # it is dead, which shows when it is asked
            self._connection.send_bytes(message)

    def _message(self) -> dict[str, Any] | None:
        """What it says; None when it has died."""
        try:
            if not self._connection.poll(0):
                return None
            said = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None
        if not isinstance(said, dict):
            raise TypeError(f"a worker said {said!r}")
        return said

    def _outcome(self, message: dict[str, Any]) -> Outcome:
        if message["retire"]:
            self._end(kill=False)
        if "error" in message:
            return decoded(message["error"])
        answer: list[Any] = []
        for found in message["answer"]:
            if isinstance(found, dict):
                error = decoded(found)
                answer.append(error if isinstance(error, ValueError) else ValueError(str(error)))
            else:
                answer.append(tuple(found))
        return answer

    def _not_loaded(self, error: Exception) -> RewardWorkerError:
        self.leave()
        failed = RewardWorkerError(
            f"a worker process could not load reward_func ({self.scorer.name}): {error}; what it "
            "uses must be importable there, or set reward_backend='thread'"
        )
        failed.__cause__ = error
        return failed

    def _lost(self) -> Exception:
        by_itself = self._end(kill=False)
        code = self._process.returncode
        if not by_itself:
            how = "closed its connection"
        elif code < 0:
            name = signal.Signals(-code).name
            how = f"died of {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")
        else:
            how = f"ended with exit code {code}"
        return self._blame(how + self._last_words)

    def _blame(self, what: str) -> RewardWorkerError:
        assert self._call is not None
        return self.scorer.lost(self._call, what)

    def _end(self, *, kill: bool) -> bool:
        """End it, at once or after it could do so by itself; whether it has."""
        if not self._open:
            return False
        self._open = False
        by_itself = False
        if not kill:
            self._send(b"")
            by_itself = bool(wait(self.watched[-1:], GRACE))
        # Before it is waited for: until then its number is not given to another process.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._faults.seek(0)
        said = self._faults.read(4000).decode(errors="replace").strip()
        self._last_words = f":\n{said}" if said else ""
        self._faults.close()
        self._connection.close()
        if self._ended is not None:
            os.close(self._ended)
        return by_itself


class ProcessPool(RewardPool[ProcessLane]):
    """Calls in processes.

    Raises:
        TypeError: when the function cannot be sent.
        RewardWorkerError: in `run`, when it cannot be loaded in a worker.
    """

    kept = (*RewardPool.kept, "_pickled")

    def __init__(self, scorer: Scorer, lanes: int, timeout: float | None) -> None:
        super().__init__(scorer, lanes, timeout)
        try:
            self._pickled: bytes = cloudpickle.dumps(scorer)
        except Exception as error:
            raise TypeError(
                f"reward_func ({scorer.name}) cannot be sent to a worker process ({error}); make "
                "what cannot be pickled within the function, or set reward_backend='thread'"
            ) from error

    def _open(self) -> ProcessLane:
        return ProcessLane(self.scorer, self._pickled, self.timeout)

    def _wait(self, lanes: list[ProcessLane], seconds: float | None) -> list[ProcessLane]:
        watched = {thing: lane for lane in lanes for thing in lane.watched}
        return list(dict.fromkeys(watched[thing] for thing in wait(list(watched), seconds)))
