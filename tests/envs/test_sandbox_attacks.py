"""Code that attacks: it does not pass, its neighbour does, and nothing of it is left.

Each attack runs next to an innocent snippet. That this process goes on shows it was not harmed.
"""

import pytest

from marlogue.envs.sandbox import Limits, Snippet
from tests.support.sandboxes import IMPATIENT, nothing_left, sandbox

GOOD = Snippet("def f(x):\n    return 6 * x", "assert candidate(7) == 42", entry_point="f")
TESTS = "assert candidate(7) == 42"
# What the code finds of the machinery around it, as an attacker would look for it.
MACHINERY = """
import os, sys, time
codec = sys.modules["marlogue.envs.sandbox_codec"]
frame = sys._getframe()
while "job" not in frame.f_locals:
    frame = frame.f_back
job = frame.f_locals["job"]
"""


def attack(code, limits=None, tests=TESTS):
    """The result of an attack, after its neighbour has passed and all is tidy."""
    box = sandbox() if limits is None else sandbox(limits)
    with nothing_left():
        result, neighbour = box.run_many([Snippet(code, tests, entry_point="f"), GOOD])
    assert neighbour.passed, neighbour
    assert not result.passed
    assert len(result.message) < 70_000
    return result


# When the code is loaded; the expected status.
AT_ONCE = {
    "fork bomb": ("violation", "import os\nwhile True:\n    os.fork()"),
    "fork bomb of a shell": ("violation", "import os\nos.system(':(){ :|:& };:')"),
    "daemon": ("violation", "import os\nif os.fork() == 0:\n    os.setsid()\n    os.fork()"),
    "another program": ("violation", "import subprocess\nsubprocess.run(['/bin/sleep', '99'])"),
    "becoming it": ("violation", "import os, sys\nos.execv(sys.executable, ['python'])"),
    "process pool": ("violation", "import multiprocessing as m\nm.Process(target=print).start()"),
    "thread bomb": (
        "timeout",
        "import threading, time\nthreading.stack_size(32768)\n"
        "while True:\n    try:\n        threading.Thread(target=time.sleep, args=(99,)).start()\n"
        "    except RuntimeError:\n        pass",
    ),
    "too many threads": (
        "error",
        "import threading, time\nthreading.stack_size(32768)\n"
        "for _ in range(100):\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    ),
    "memory bomb": ("memory", "x = 'x' * 10**9"),
    "slow memory bomb": ("memory", "x = []\nwhile True:\n    x.append(bytes(10**6))"),
    "mapped memory": ("memory", "import mmap\nx = mmap.mmap(-1, 10**9)"),
    "loop within C": ("timeout", "x = 7 ** 10**8"),
    "loop that ignores signals": (
        "timeout",
        "import signal\n"
        "for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(number, signal.SIG_IGN)\nwhile True:\n    pass",
    ),
    "output": ("violation", "while True:\n    print('x' * 1000)"),
    "complaints": ("violation", "import os\nwhile True:\n    os.write(2, b'x' * 1000)"),
    "waiting for input": ("error", "input()"),
    "alarm": ("error", "import signal\nsignal.alarm(1)\nsignal.pause()"),
    "suicide": ("memory", "import os\nos.kill(os.getpid(), 9)"),
    "killing everybody": ("error", "import os\nos.kill(-1, 9)"),
    "killing the parent": ("error", "import os\nos.kill(os.getppid(), 9)\nos.kill(1, 15)\n1 / 0"),
    "crash": ("error", "import ctypes\nctypes.string_at(0)"),
    "abort": ("error", "import os\nos.abort()"),
    "exit": ("error", "import os\nos._exit(0)"),
    "polite exit": ("error", "import sys\nsys.exit(0)"),
    "interrupt": ("error", "raise KeyboardInterrupt"),
    "an exception that cannot be shown": (
        "error",
        "class E(Exception):\n    def __str__(self):\n        raise self\nraise E",
    ),
    "an exception of ten megabytes": ("error", "raise ValueError('x' * 10**7)"),
    "many files": (
        "violation",
        "for number in range(100):\n    open(str(number), 'w').write('x' * 10**5)",
    ),
    "huge file": ("violation", "file = open('x', 'w')\nwhile True:\n    file.write('x' * 10**5)"),
    "sparse file": ("violation", "open('x', 'w').truncate(10**12)"),
    "socket": ("violation", "import socket\nsocket.socket()"),
    "socket of the system": ("error", "import socket\nsocket.socket(socket.AF_UNIX)"),
    "request": ("violation", "import urllib.request as r\nr.urlopen('http://127.0.0.1:1/')"),
    "lookup": ("violation", "import socket\nsocket.getaddrinfo('example.org', 80)"),
    "lifting the limits": (
        "error",
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))",
    ),
    "interpreter": ("error", "import sys\nopen(sys.executable, 'r+b')"),
    "library": ("error", "import os\nopen(os.__file__, 'a')"),
    "root folder": ("error", "open('/x', 'w')"),
    "devices": ("error", "open('/dev/x', 'w')"),
    "processes": ("error", "open('/proc/self/environ')"),
    "system": ("error", "import os\nos.listdir('/sys')"),
    "users": ("error", "open('/etc/passwd')"),
    "no memory device": ("error", "open('/dev/mem')"),
    "status passed": ("violation", MACHINERY + "codec.send(job['status'], b'passed\\n')"),
    "status unheard of": ("violation", MACHINERY + "codec.send(job['status'], b'hello')"),
    "endless status": ("violation", MACHINERY + "os.write(job['status'], b'\\xff' * 9)"),
    "loaded and gone": (
        "error",
        MACHINERY + "codec.send(job['status'], b'loaded\\n')\nos._exit(0)",
    ),
    "marker everywhere": (
        "violation",
        "import os\n"
        "for text in (b'passed\\n', b'\\x07\\0\\0\\0passed\\n'):\n"
        "    for number in range(64):\n"
        "        try:\n            os.write(number, text)\n"
        "        except OSError:\n            pass\n"
        "def f(x):\n    return 0",
    ),
    "answers before questions": (
        "violation",
        MACHINERY + "codec.send(job['status'], b'loaded\\n')\n"
        "codec.send(job['answers'], codec.encode(['f']))\n"
        "for _ in range(100):\n"
        "    codec.send(job['answers'], codec.encode((bytes(16), 'value', 42)))\n"
        "time.sleep(1000)",
    ),
    "no functions": (
        "violation",
        MACHINERY + "codec.send(job['status'], b'loaded\\n')\n"
        "codec.send(job['answers'], codec.encode([['f'], 1]))\ntime.sleep(1000)",
    ),
    "functions with Python's names": (
        "violation",
        MACHINERY + "codec.send(job['status'], b'loaded\\n')\n"
        "codec.send(job['answers'], codec.encode(['f', '__builtins__']))\ntime.sleep(1000)",
    ),
    "noise instead of answers": (
        "violation",
        MACHINERY + "codec.send(job['status'], b'loaded\\n')\n"
        "os.write(job['answers'], b'passed\\n' * 1000)\ntime.sleep(1000)",
    ),
    "huge answer": (
        "violation",
        MACHINERY + "codec.send(job['status'], b'loaded\\n')\n"
        "os.write(job['answers'], b'\\xff' * 1000)\ntime.sleep(1000)",
    ),
}


@pytest.mark.parametrize(("status", "code"), AT_ONCE.values(), ids=AT_ONCE.keys())
def test_while_it_is_loaded(status, code):
    result = attack(f"{code}\n" if "def f" in code else f"{code}\ndef f(x):\n    return 0")
    assert result.status == status, result


# What the function does when it is called.
WHEN_CALLED = {
    "wrong": ("failed", "return 41"),
    "exit": ("error", "import os; os._exit(0)"),
    "polite exit": ("error", "raise SystemExit(0)"),
    "interrupt": ("error", "raise KeyboardInterrupt"),
    "assertion": ("error", "raise AssertionError"),
    "end of iteration": ("error", "raise StopIteration(42)"),
    "fork": ("violation", "import os; os.fork(); return 42"),
    "loop": ("timeout", "while True: pass"),
    "memory": ("memory", "return len('x' * 10**10)"),
    "output": ("violation", "while True: print('passed')"),
    "gigabyte": ("memory", "return 'x' * 10**9"),
    "twenty megabytes": ("violation", "return 'x' * 2 * 10**7"),
    "twice and twice again": (
        "violation",
        "y = ['x' * 99]\n    for _ in range(99): y = [y, y]\n    return y",
    ),
    "deep": ("error", "y = []\n    for _ in range(10**5): y = [y]\n    return y"),
    "circle": ("error", "y = []\n    y.append(y)\n    return y"),
    "recursion": ("error", "return f(x)"),
    "deep recursion": (
        "error or memory or timeout",
        "import sys; sys.setrecursionlimit(10**9)\n    return [f(x)]",
    ),
    "object": ("error", "return object()"),
    "itself": ("error", "return f"),
    "no number": ("failed", "return float('nan')"),
    "equal to all": ("error", "return type('E', (), {'__eq__': lambda *_: True})()"),
    "text equal to all": ("failed", "return type('E', (str,), {'__eq__': lambda *_: True})()"),
    "number equal to all": ("failed", "return type('E', (int,), {'__eq__': lambda *_: True})()"),
    "another class": ("error", "return type('E', (), {'__class__': int})()"),
    "reduced": ("error", "return type('E', (), {'__reduce__': lambda s: (print, ())})()"),
    "items without end": ("failed", "return iter(int, 1)"),
    "lengths that lie": (
        "violation",
        "return type('E', (list,), {'__len__': lambda s: 3})([1])",
    ),
    "exception with arguments": ("error", "raise OSError(object(), [f])"),
    "exception of its own": ("error", "raise type('E', (ValueError,), {})(f)"),
    "exception of a builtin's name": ("error", "raise type('print', (Exception,), {})"),
}


@pytest.mark.parametrize(("status", "body"), WHEN_CALLED.values(), ids=WHEN_CALLED.keys())
def test_when_it_is_called(status, body):
    assert attack(f"def f(x):\n    {body}").status in status.split(" or ")


# What it changes in its process, before it gives a wrong answer.
PATCHES = {
    "AssertionError": "import builtins\nbuiltins.AssertionError = print",
    "builtins": "import builtins\nfor n in ('abs', 'all', 'max'):\n"
    "    setattr(builtins, n, lambda *a: True)",
    "modules": "import sys, types\nfor n in ('math', 'unittest', 'random'):\n"
    "    sys.modules[n] = types.ModuleType(n)",
    "import hook": "import sys\nclass Hook:\n    def find_spec(self, *a): raise SystemExit(0)\n"
    "sys.meta_path.insert(0, Hook())",
    "trace": "import sys\nsys.settrace(lambda *a: None)",
    "exit handler": "import atexit, os\natexit.register(os._exit, 0)",
    "functions of the tests' names": "def check(c): return True\ndef candidate(x): return 42\n"
    "def abs(x): return 0\ndef all(x): return True\ndef len(x): return 42",
    "the worker": "import sys\nsys.modules['marlogue.envs.sandbox_test_side'].verdict = "
    "lambda *a: ('passed', '')",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES.keys())
def test_what_is_patched_is_not_what_the_tests_use(patch):
    tests = (
        "import math\n"
        "def check(candidate):\n"
        "    assert all([abs(candidate(7) - 42) < 1e-6, math.isclose(candidate(7), 42)])\n"
    )
    assert attack(f"{patch}\ndef f(x):\n    return 0", tests=tests).status == "failed"


def test_an_end_of_iteration_does_not_end_the_tests():
    tests = "assert all(map(lambda x: candidate(x) == 6 * x, [1, 2, 3]))"
    assert attack("def f(x):\n    raise StopIteration", tests=tests).status == "error"


def test_tests_that_catch_everything_do_not_pass_after_a_broken_call():
    tests = "try:\n    candidate(7)\nexcept:\n    pass"
    assert attack("def f(x):\n    return object()", tests=tests).status == "error"
    assert attack("import os\ndef f(x):\n    os._exit(0)", tests=tests).status == "error"


def test_expected_values_are_nowhere_in_the_code_s_process():
    code = (
        "import gc, sys\n"
        "def everything():\n"
        "    seen, new = set(), [sys._getframe(), *sys.modules.values(), *gc.get_objects()]\n"
        "    while new:\n"
        "        thing = new.pop()\n"
        "        if id(thing) not in seen and thing is not new and thing is not seen:\n"
        "            seen.add(id(thing))\n"
        "            yield thing\n"
        "            new += gc.get_referents(thing)\n"
        "def f(x):\n"
        "    found = [t for t in everything() if isinstance(t, str) and 'hsifdrows'[::-1] in t]\n"
        "    return min(found, key=len, default='nothing')\n"
    )
    tests = "assert candidate(7) == 'swordfish', candidate(7)"
    result = attack(code, tests=tests, limits=Limits())
    assert (result.status, "AssertionError: nothing" in result.message) == ("failed", True), result


# What waits and takes no CPU time: ended by the wall clock.
WAITING = {
    "sleep": "import time\ntime.sleep(1000)",
    "signals": "import signal\n"
    "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):\n"
    "    signal.signal(number, lambda *a: None)\n"
    "while True:\n    signal.pause()",
    "without a parent": "import ctypes, time\nctypes.CDLL(None).prctl(1, 0)\ntime.sleep(1000)",
    "closed pipes": "import os, time\nos.closerange(0, 64)\ntime.sleep(1000)",
    "threads": "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    "threading.Event().wait()",
    "deadlock": MACHINERY + "def f(x):\n    return os.read(job['requests'], 1)",
    "half an answer": MACHINERY
    + "def f(x):\n    os.write(job['answers'], b'\\x09')\n    time.sleep(1000)",
}


@pytest.mark.parametrize("code", WAITING.values(), ids=WAITING.keys())
def test_waiting_ends(code):
    code = code if "def f" in code else f"{code}\ndef f(x):\n    return 42"
    assert attack_alone(code).status == "timeout"


def attack_alone(code):
    """As `attack`; without a neighbour, who would have to be quick."""
    with nothing_left():
        return sandbox(IMPATIENT).run(code, TESTS, entry_point="f")
