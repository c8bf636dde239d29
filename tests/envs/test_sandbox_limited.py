"""The weaker mode: what it limits and what it cleans up. What it does not promise is not tested."""

import os
import textwrap

import psutil
import pytest

from marlogue.envs.sandbox import Snippet
from tests.support.sandboxes import IMPATIENT, LIMITS, nothing_left, sandbox


def run(code, tests="", entry_point=None, limits=LIMITS):
    """Run in the weaker mode; nothing may be left of it."""
    box = sandbox(limits, isolation="rlimits")
    with nothing_left():
        return box.run(textwrap.dedent(code), tests, entry_point=entry_point)


def test_passed_and_failed():
    code = "def f(x):\n    print('called')\n    return 6 * x"
    result = run(code, "assert candidate(7) == 42", "f")
    assert (result.status, result.stdout) == ("passed", "called\n")
    assert run(code, "assert candidate(7) == 41", "f").status == "failed"


ENDS = {
    "loop that ignores signals": (
        "timeout",
        "import signal\nfor n in (signal.SIGXCPU, signal.SIGTERM, signal.SIGINT):\n"
        "    signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    ),
    "memory": ("memory", "x = ' ' * 10**9"),
    "output": ("violation", "while True: print('x' * 1000)"),
    "file": ("violation", "open('x', 'w').write('x' * 10**7)"),
    "exit": ("error", "import os; os._exit(0)"),
    "status": ("violation", "import os\nfor n in range(64):\n    try: os.write(n, b'passed')\n"
               "    except OSError: pass"),
    "patched": ("failed", "import builtins\nbuiltins.AssertionError = print\ndef f(x): return 0"),
    "killing the supervisor": ("memory", "import os, time\nos.kill(os.getppid(), 9)\n"
                               "time.sleep(1000)"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "code"), ENDS.values(), ids=ENDS.keys())
def test_limits(status, code):
    code = code if "def f" in code else f"{code}\ndef f(x): return 0"
    assert run(code, "assert candidate(7) == 42", "f").status == status


def test_sleep():
    assert run("import time\ntime.sleep(1000)", limits=IMPATIENT).status == "timeout"


DAEMONS = """
    import os, signal, sys, time
    def daemon(fork_again):
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.setsid()
            if fork_again and os.fork():
                os._exit(0)
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(1000)
    for number in range(6):
        daemon(number % 2)
"""


@pytest.mark.parametrize("ending", ["", "os._exit(0)", "1 / 0", "os.kill(os.getpid(), 9)", "wait"])
def test_daemons_are_ended(ending):
    # They have written their ids before the code ends: it waits for six lines in a pipe of theirs.
    code = textwrap.dedent(DAEMONS).replace("os.write(1,", "os.write(out,")
    code = f"import os\nread, out = os.pipe()\n{code}\ntext = b''\n"
    code += "while text.count(b'\\n') < 6:\n    text += os.read(read, 100)\n"
    code += "os.write(1, text)\n"
    limits = IMPATIENT if ending == "wait" else LIMITS
    code += "time.sleep(1000)" if ending == "wait" else ending
    result = run(code, limits=limits)
    pids = [int(line) for line in result.stdout.split()]
    assert len(pids) == 6 or ending == "wait", result
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_environment_and_folder(monkeypatch):
    monkeypatch.setenv("SECRET", "swordfish")
    code = "import os\nprint(dict(os.environ), os.listdir('.'), os.getcwd())\nopen('x', 'w')"
    first, second = run(code), run(code)
    assert first.stdout.startswith("{} [] ")
    assert second.stdout.startswith("{} [] ")
    assert first.stdout != second.stdout


def test_a_folder_that_is_hard_to_remove_is_removed():
    run("import os\nos.makedirs('a/b/c')\nopen('a/b/x', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0)")
    run("import os\nos.symlink('/', 'root')\nos.symlink('.', 'self')")
    assert os.path.exists("/usr")


def test_many():
    box = sandbox(isolation="rlimits")
    with nothing_left():
        results = box.run_many([Snippet(f"print({number})") for number in range(10)])
    assert [r.stdout for r in results] == [f"{number}\n" for number in range(10)]
