"""What code in the sandbox can reach: no forbidden call of the kernel, and no file of the user."""

import pytest

from marlogue.envs.sandbox import Limits, Snippet
from marlogue.envs.sandbox_seccomp import KILLED
from tests.support.libraries import needs
from tests.support.sandboxes import nothing_left, sandbox


def test_every_forbidden_call_of_the_kernel_ends_the_process():
    seccomp = needs("pyseccomp")
    numbers = {name: seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) for name in KILLED}
    numbers = {name: number for name, number in numbers.items() if number >= 0}
    assert {"ptrace", "mount", "unshare", "bpf", "io_uring_setup"} <= set(numbers)
    for name in ("execve", "clone", "socket"):  # ruled by more than their name
        numbers[name] = seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)
    code = "import ctypes\nctypes.CDLL(None).syscall({}, 0, 0, 0, 0, 0, 0)"
    snippets = [Snippet(code.format(number)) for number in numbers.values()]
    results = sandbox().run_many(snippets)
    statuses = {name: r.status for name, r in zip(numbers, results, strict=True)}
    assert statuses == dict.fromkeys(numbers, "violation")


def test_calls_of_another_architecture_end_the_process():
    if needs("platform").machine() != "x86_64":
        pytest.skip("only x86-64 has the calls of x32")
    code = "import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 41, 2, 1, 0)"  # socket
    assert sandbox().run(code).status == "violation"


def test_a_thread_with_the_flags_of_a_process_is_none():
    clone = "import ctypes, platform\nnumber = {'x86_64': 56}.get(platform.machine(), 220)\n"
    # CLONE_VM and CLONE_SIGHAND without CLONE_THREAD, and CLONE_NEWUSER on top of it.
    for flags in (0x900, 0x10000900 & ~0x10000):
        code = f"{clone}ctypes.CDLL(None).syscall(number, {flags}, 0, 0, 0, 0)"
        assert sandbox().run(code).status == "violation"


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """A secret of the user: in a file, in the home folder and in the environment."""
    path = tmp_path / "secret.txt"
    path.write_text("swordfish")
    monkeypatch.setenv("SECRET", "swordfish")
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


def test_the_user_s_files_and_variables_cannot_be_seen(secret):
    code = f"""
import ctypes, os
for attempt in (
    lambda: open({str(secret)!r}).read(),
    lambda: os.listdir({str(secret.parent)!r}),
    lambda: os.environ["SECRET"],
    lambda: ctypes.string_at(ctypes.CDLL(None, use_errno=True).getenv(b"SECRET") or 1 / 0),
    lambda: os.listdir(os.path.expanduser("~nobody")),
    lambda: open("/proc/self/environ").read(),
    lambda: open("/proc/1/environ").read(),
    lambda: open("/etc/shadow").read(),
    lambda: os.readlink("/proc/self/exe"),
    lambda: os.open("/..", os.O_RDONLY) and os.open("/../home", os.O_RDONLY),
):
    try:
        print(attempt())
    except (OSError, KeyError, ZeroDivisionError):
        pass
for folder, folders, files in os.walk("/"):
    if folder == "/":
        folders.remove("usr")
    if "secret.txt" in files:
        print("found", folder)
print(sorted(os.listdir("/tmp")), dict(os.environ))
"""
    with nothing_left():
        result = sandbox(Limits()).run(code)
    assert (result.status, result.stdout) == ("passed", "[] {}\n")


def test_nothing_can_be_written_outside(secret):
    code = f"""
import os
def write(path):
    with open(path, "w") as file:
        file.write("mine")
os.symlink({str(secret)!r}, "link")
os.symlink({str(secret.parent)!r}, "folder")
paths = ["link", "folder/new", {str(secret)!r}, "/new", "/usr/lib/new", "/dev/new", os.__file__]
for path in paths:
    try:
        write(path)
    except OSError:
        continue
    print("written", path)
for call in (os.remove, os.rmdir, lambda path: os.chmod(path, 0o777)):
    for path in (os.__file__, os.path.dirname(os.__file__), "/usr/lib", "/"):
        try:
            call(path)
        except OSError:
            continue
        print("changed", path)
write("/tmp/inside")
print(open("/tmp/inside").read())
"""
    with nothing_left():
        result = sandbox().run(code)
    assert (result.status, result.stdout) == ("passed", "mine\n")
    assert secret.read_text() == "swordfish"
    assert [path.name for path in secret.parent.iterdir()] == ["secret.txt"]


def test_no_package_can_be_seen():
    code = (
        "import os, sys, sysconfig\n"
        "print(os.listdir(os.path.join(sysconfig.get_path('stdlib'), 'site-packages')))\n"
        "print([path for path in sys.path if 'packages' in path])\n"
        "import psutil"
    )
    result = sandbox().run(code)
    assert (result.status, result.stdout) == ("error", "[]\n[]\n")
    assert "No module named 'psutil'" in result.message


def test_a_run_sees_nothing_of_another_one():
    write = "open('/tmp/message', 'w').write('hello')"
    read = "import os\nassert os.listdir('/tmp') == []\nprint(os.getpid())"
    first, second = sandbox().run(write), sandbox().run(read)
    assert (first.status, second.status) == ("passed", "passed")
    assert second.stdout == "2\n"  # 1 is bubblewrap's; no other process is known
