"""Running a command: quiet libraries, readable warnings, exit statuses."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from transformers.utils import logging as transformers_logging

from marlogue.cli.attention import attention
from marlogue.cli.chat import chat
from marlogue.cli.errors import UsageError
from marlogue.cli.inspect import inspect
from marlogue.cli.play import evaluate, rollout
from marlogue.cli.train import train

_RUN: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "evaluate": evaluate,
    "rollout": rollout,
    "chat": chat,
    "attention": attention,
    "inspect": inspect,
}


def run(command: str, words: Sequence[str]) -> int:
    """Run a command with the words that follow it; see :func:`marlogue.cli.main`."""
    transformers_logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            _RUN[command](words)
        except UsageError as error:
            print(f"marlogue {command}: error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt as error:
            notes = getattr(error, "__notes__", [])
            print("\n".join([f"marlogue {command}: interrupted", *notes]), file=sys.stderr)
            return 130
    return 0


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)
