"""A folder of the test's own, as the current directory, and the command line in this process."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlogue.cli import main
from tests.support.command_line import NUMERIC, TINY, Ran, Run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with ``tiny.yaml`` and ``numeric.yaml`` in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "numeric.yaml").write_text(NUMERIC, encoding="utf-8")
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def run(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; an exception of the run passes through."""

    def command(*words: Any) -> Ran:
        capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        said = capsys.readouterr()
        return Ran(status, said.out, said.err)

    return command
