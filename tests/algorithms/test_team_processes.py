"""Environments of numeric teams in processes of their own."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from marlogue.algorithms.team_vector import make_team_vector
from tests.support import team_faults
from tests.support.command_line import ROOT
from tests.support.libraries import needs
from tests.support.team_envs import Shift, assert_equal, played

ACT = np.zeros((2, 3), np.int64)


@pytest.mark.parametrize("discrete", [True, False])
def test_same_rollouts(discrete):
    team_faults.check_same_rollouts("subprocess", discrete)


def test_same_rollouts_of_mpe2():
    simple_spread_v3 = needs("mpe2.simple_spread_v3")
    settings = {"num_envs": 3, "env_kwargs": {"N": 2, "max_cycles": 8}, "with_state": True}
    make = simple_spread_v3.parallel_env
    with make_team_vector(make, **settings, backend="subprocess", num_workers=2) as vector:
        assert_equal(played(vector, 20), played(make_team_vector(make, **settings), 20))


def test_a_dead_worker_is_replaced():
    team_faults.check_replaced("subprocess")


def test_too_many_dead_workers():
    team_faults.check_too_many_restarts("subprocess")


def test_exceptions_are_no_deaths():
    team_faults.check_exceptions("subprocess")


def test_exceptions_that_cannot_be_sent():
    team_faults.check_odd_exceptions("subprocess")


def pids_of(vector):
    return [worker.pid for worker in vector._workers]


def test_killed_from_outside():
    with make_team_vector(Shift, num_envs=2, backend="subprocess", num_workers=2) as vector:
        vector.reset()
        for pid in pids_of(vector):
            os.kill(pid, signal.SIGINT)  # Ctrl-C in a terminal reaches all of them
        assert not vector.step(ACT).lost.any()
        first, second = pids_of(vector)
        os.kill(second, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match=f"process {second}, ended by signal SIGKILL"):
            step = vector.step(ACT)
        assert step.lost.tolist() == [False, True]
        assert pids_of(vector)[0] == first
        assert vector.next_episodes == [1, 2]
        os.kill(first, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="begins the episodes"):
            view = vector.reset()
        assert view.present[:, :2].all()
        assert vector.next_episodes == [3, 3]
        assert vector.restarts == 2
        last = pids_of(vector)
    assert not any(map(alive, last))


def test_an_interrupted_step_leaves_no_answer_behind():
    with make_team_vector(Shift, num_envs=2, backend="subprocess", num_workers=2) as vector:
        vector.reset()
        for worker in vector._workers:
            worker.ask("step", ACT[:1])  # as it is when Ctrl-C comes before the answers
        with make_team_vector(Shift, num_envs=2, first_episode=1) as fresh:
            assert_equal(vector.reset(), fresh.reset())
            assert_equal(vector.step(ACT), fresh.step(ACT))


class Mortal(Shift):
    """Cannot even begin."""

    def __init__(self):
        super().__init__()
        os._exit(3)


def test_a_worker_that_does_not_start():
    with pytest.raises(RuntimeError, match=r"a worker did not start .*ended with exit code 3"):
        make_team_vector(Mortal, backend="subprocess")


ABANDONED = """
import os, sys, time
from marlogue.algorithms.team_vector import make_team_vector
from tests.support.team_envs import Shift

class Slow(Shift):
    def step(self, actions):
        time.sleep(60)

if __name__ == "__main__":
    vector = make_team_vector(Slow, num_envs=2, backend="subprocess", num_workers=2)
    vector.reset()
    vector._workers[0].ask("step", [[0, 0, 0]])
    print(*[worker.pid for worker in vector._workers], flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_no_orphans(tmp_path):
    """The parent is killed while one worker waits and the other one is in a long step."""
    script = tmp_path / "abandoned.py"
    script.write_text(ABANDONED)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.kill()
    limit = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(map(alive, pids))


def alive(pid):
    """Whether a process runs; one that is over and waits for its parent's attention does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
