"""Hands the modules that run inside the sandbox to an interpreter there, by its stdin.

So nothing of the package's folder, which may be in somebody's home, has to be seen inside.
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import Any

MODULES = tuple(
    f"marlogue.envs.sandbox_{name}"
    for name in ("codec", "code_side", "test_side", "supervisor", "inside")
)
# Interpreter options: no folder of the script on the path, no user site, no site, no bytecode
# written. As -I but for the environment, which is empty save for the seed of hashes: sets of
# strings are in the same order in every run.
OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")
START = """
import marshal, sys
with open(0, "rb", closefd=False) as pipe:
    modules, job = marshal.load(pipe)
for name, code in modules:
    sys.modules[name] = module = type(sys)(name)
    exec(code, module.__dict__)
module.start(job)
"""


@functools.cache
def compiled() -> list[tuple[str, Any]]:
    """The modules' names and code."""
    found = []
    for name in MODULES:
        spec = util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text(encoding="utf-8")
        found.append((name, compile(source, f"<{name}>", "exec", dont_inherit=True)))
    return found


def bundle(job: Mapping[str, Any]) -> bytes:
    """What `START` reads: modules and job. The interpreter inside is the one that runs this."""
    return marshal.dumps((compiled(), dict(job)))
