"""Configurations that this user has trained with, by their content.

A configuration can name any code, which is then run. One that lies with a saved team is used by
itself only where it is known; another one may have come with the team from anywhere, and has to be
named by the user.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from marlogue.agents.smollm2 import cache_dir

_FOLDER = "configurations"


def remember(text: str) -> None:
    """Take note of a configuration. Where the cache cannot be written, it stays unknown."""
    with suppress(OSError):
        place = _place(text.encode())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def is_known(file: Path) -> bool:
    """Whether a file is, byte for byte, a configuration that was trained with here."""
    return _place(file.read_bytes()).exists()


def _place(content: bytes) -> Path:
    return cache_dir() / _FOLDER / hashlib.sha256(content).hexdigest()
