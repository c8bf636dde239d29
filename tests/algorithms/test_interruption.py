"""Signals: real ones, to this process or to one that was forked from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from marlogue.algorithms.interruption import Interruption, RunInterrupted, StopRequested
from tests.support.faults import in_child

BOTH = (signal.SIGTERM, signal.SIGINT)


def send(number):
    """Handled when this returns: Python runs handlers between two calls."""
    os.kill(os.getpid(), number)
    signal.getsignal(number)


@pytest.fixture(autouse=True)
def usual_handlers():
    before = {number: signal.getsignal(number) for number in BOTH}
    yield
    assert {number: signal.getsignal(number) for number in BOTH} == before


@pytest.mark.parametrize("number", BOTH)
class TestFirstSignal:
    def test_it_is_heeded_at_the_next_safe_point(self, number, capfd):
        with Interruption(active=True) as interruption:
            interruption.check()
            send(number)
            assert interruption.signal == number
            assert capfd.readouterr().err.startswith(f"\n{number.name}: the run stops at the next")
            with pytest.raises(StopRequested, match=number.name):
                interruption.check()

    def test_what_is_deferred_is_done_whole(self, number):
        with Interruption(active=True) as interruption:
            with interruption.deferred():
                with interruption.deferred():
                    send(number)
                    interruption.check()
                interruption.check()
            with pytest.raises(StopRequested):
                interruption.check()

    def test_an_error_within_ends_the_deferral(self, number):
        with Interruption(active=True) as interruption:
            with pytest.raises(KeyError), interruption.deferred():
                raise KeyError
            send(number)
            with pytest.raises(StopRequested):
                interruption.check()

    def test_what_runs_is_not_disturbed(self, number):
        """A handler that raised would break a reward function, or a step of an optimiser."""
        with Interruption(active=True):
            threading.Timer(0.05, send, [number]).start()
            time.sleep(0.2)


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_stops_at_once(first, second):
    def child():
        with Interruption(active=True) as interruption, interruption.deferred():
            send(first)
            send(second)
            time.sleep(60)

    assert in_child(child) == -second


def test_a_second_signal_stops_what_python_cannot_interrupt():
    """Within a call into a library no handler of Python's runs; the default one does."""

    def child():
        with Interruption(active=True):
            send(signal.SIGTERM)
            killer = f"import os, time; time.sleep(0.3); os.kill({os.getpid()}, 15)"
            subprocess.Popen([sys.executable, "-S", "-c", killer])
            pow(7, 10**9, 10**400_000)  # much longer than the test may take

    started = time.monotonic()
    assert in_child(child) == -signal.SIGTERM
    assert time.monotonic() - started < 20


class TestHandlers:
    def test_they_are_restored_after_an_error(self):
        with pytest.raises(KeyError), Interruption(active=True):
            raise KeyError

    def test_they_are_restored_after_a_signal(self):
        with Interruption(active=True):
            send(signal.SIGTERM)

    def test_those_of_others_are(self):
        def theirs(number, frame):
            pass

        before = signal.signal(signal.SIGTERM, theirs)
        with Interruption(active=True):
            assert signal.getsignal(signal.SIGTERM) is not theirs
        assert signal.signal(signal.SIGTERM, before) is theirs

    def test_an_ignored_signal_stays_ignored(self):
        """As after ``nohup``, and for what a script runs in the background."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Interruption(active=True) as interruption:
            send(signal.SIGINT)
            interruption.check()
        assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN

    def test_inactive(self):
        before = signal.getsignal(signal.SIGINT)
        with Interruption(active=False) as interruption:
            assert signal.getsignal(signal.SIGINT) is before
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)
            interruption.check()

    def test_in_another_thread(self):
        before = signal.getsignal(signal.SIGTERM)
        seen = []

        def run():
            with Interruption(active=True) as interruption:
                interruption.check()
                seen.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert seen == [before]


class TestChildren:
    def test_a_forked_one_can_be_terminated(self):
        """multiprocessing ends its workers with SIGTERM."""
        with Interruption(active=True) as interruption:
            assert in_child(lambda: send(signal.SIGTERM)) == -signal.SIGTERM
            interruption.check()

    def test_a_forked_one_leaves_control_c_to_its_parent(self):
        with Interruption(active=True):
            assert in_child(lambda: send(signal.SIGINT)) == 0


def test_the_exit_code_says_resumable():
    def child():
        try:
            raise RunInterrupted("resume with ...")
        except SystemExit as error:
            os._exit(error.code)

    assert in_child(child) == 75
    assert str(RunInterrupted("resume with ...")) == "resume with ..."
    assert isinstance(RunInterrupted("x"), SystemExit)
