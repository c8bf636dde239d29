"""Nothing of many runs is left, nor of a trainer that is interrupted or killed, or has orphans."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from marlogue.envs import sandbox as sandboxes
from marlogue.envs.sandbox import SandboxUnavailable, Snippet
from marlogue.envs.sandbox_process import how_it_ended
from marlogue.envs.sandbox_watch import Group, Watch
from tests.support.sandboxes import (
    assert_nothing_left,
    belongings,
    folders_of,
    nothing_left,
    sandbox,
)

SNIPPETS = [
    Snippet("def f(x):\n    return 6 * x", "assert candidate(7) == 42", "f"),
    Snippet("def f(x):\n    return 0", "assert candidate(7) == 42", "f"),
    Snippet("def f(x):\n    return object()", "assert candidate(7) == 42", "f"),
    Snippet("import os\nos.fork()"),
    Snippet("print('x' * 10**6)"),
    Snippet("x = ' ' * 10**9"),
    Snippet("def f(:"),
    Snippet("import os\nos._exit(0)"),
    Snippet("open('x', 'w').write('x' * 10**7)"),
    Snippet("import os\ndef f(x):\n    os._exit(0)", "assert candidate(7) == 42", "f"),
]
EXPECTED = ["passed", "failed", "error", "violation", "violation", "memory", "error", "error"]
EXPECTED += ["violation", "error"]


@pytest.mark.parametrize(("isolation", "rounds"), [("bubblewrap", 20), ("rlimits", 8)])
def test_hundreds_of_runs(isolation, rounds):
    box = sandbox(isolation=isolation)
    snippets = SNIPPETS
    expected = EXPECTED
    if isolation == "rlimits":  # it does not forbid to fork
        snippets = [s for s in SNIPPETS if "fork" not in s.code]
        expected = [status for s, status in zip(SNIPPETS, EXPECTED, strict=True) if s in snippets]
    box.run_many(snippets)  # what is made once is made
    memory = psutil.Process().memory_info().rss
    before = belongings()
    for _ in range(rounds // 4):
        results = box.run_many(snippets * 4)
        assert [r.status for r in results] == expected * 4
        assert_nothing_left(before)
    assert psutil.Process().memory_info().rss < memory + 30 * 2**20


def trainer(script, prepare=""):
    """A process that has made a sandbox, and then runs a script; it tells so by a line."""
    sandbox()
    text = f"""
import ctypes, os, signal, sys, threading
{prepare}
import psutil
from marlogue.envs.sandbox import Limits, Sandbox, Snippet
isolation = sys.argv[1]
box = Sandbox(Limits(wall_seconds=1000), isolation=isolation, workers=4)
{textwrap.dedent(script)}
"""

    def start(isolation):
        return subprocess.Popen(
            [sys.executable, "-c", text, isolation],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    return start


SLEEPERS = """
    def say():
        me = psutil.Process()
        while len([c for c in me.children(recursive=True) if "python" in c.name()]) < wanted:
            pass
        print(*(c.pid for c in me.children(recursive=True)), flush=True)
    wanted = 8 if isolation == "rlimits" else 4  # a supervisor each
    threading.Thread(target=say, daemon=True).start()
    sleep = "import time, signal\\nsignal.signal(15, signal.SIG_IGN)\\ntime.sleep(1000)"
    try:
        box.run_many([Snippet(sleep)] * 20)
    except KeyboardInterrupt:
        print("children:", len(psutil.Process().children(recursive=True)), flush=True)
        print("threads:", len([t for t in threading.enumerate() if "sandbox" in t.name]))
"""


def is_running(pid):
    """Whether a process is there; a zombie, that the machine's first process leaves, is none."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_the_end_of(pids):
    """Wait until processes are gone; they have been told."""
    until = time.monotonic() + 60
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


@pytest.mark.parametrize("isolation", ["bubblewrap", "rlimits"])
def test_an_interrupt_ends_all_runs(isolation):
    with trainer(SLEEPERS)(isolation) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert rest == "children: 0\nthreads: 0\n"
    assert len(pids) >= 4
    wait_for_the_end_of(pids)


@pytest.mark.parametrize("isolation", ["bubblewrap", "rlimits"])
def test_a_killed_trainer_takes_its_runs_along(isolation):
    with trainer(SLEEPERS)(isolation) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) >= 4
    wait_for_the_end_of(pids)
    assert not folders_of(process.pid)


def test_a_trainer_that_takes_in_orphans_has_no_zombies():
    script = """
        results = box.run_many([Snippet("print(1)"), Snippet("import os\\nos.fork()")] * 10)
        print([r.status for r in results] == ["passed", "violation"] * 10)
        print(psutil.Process().children(recursive=True))
    """
    subreaper = "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)"
    with trainer(script, prepare=subreaper)("bubblewrap") as process:
        assert process.stdout is not None
        assert process.stdout.read() == "True\n[]\n"


def test_an_exit_code_that_others_took_is_no_result():
    job = {"role": "code", "code": "import os\nos._exit(0)", "entry_point": None}
    job |= {"requests": None, "answers": -1}
    with Watch(sandbox()._isolation, 60, 1000, Group()) as watch:
        process = watch.start(job)
        os.waitpid(process.popen.pid, 0)  # as a part of the program that waits for any child
        assert watch.answer(process) is None
        watch.end(process)
        with pytest.raises(SandboxUnavailable, match="another part of this program waited"):
            how_it_ended(process, "the code", 1)


def test_a_program_that_ignores_its_children_is_told(monkeypatch):
    monkeypatch.setattr(sandboxes, "PAUSES", ())
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(SandboxUnavailable, match=r"ignores SIGCHLD.* set it to signal.SIG_DFL"):
            sandbox().run("print(1)")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_machine_without_processes_is_no_result():
    """Where no process can be started, that is said, and not held against the code."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody with a limit")
    script = """
        import resource
        from marlogue.envs import sandbox
        sandbox.PAUSES = (0.0,)
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
        try:
            print(box.run("print(1)"))
        except sandbox.SandboxUnavailable as error:
            print("unavailable:", error)
        print(len(os.listdir("/proc/self/fd")) < 12)
    """
    with trainer(script)("bubblewrap") as process:
        assert process.stdout is not None
        said = process.stdout.read()
    assert said.startswith("unavailable: a process could not be started: [Errno 24]"), said
    assert said.endswith("True\n")


def test_the_end_of_a_thread_that_started_runs_is_not_theirs():
    sandbox()  # skips where there is none
    import threading

    results = []
    with nothing_left():
        thread = threading.Thread(target=lambda: results.extend(sandbox().run_many(SNIPPETS[:2])))
        thread.start()
        thread.join()
    assert [r.status for r in results] == ["passed", "failed"]
