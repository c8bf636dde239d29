"""Loading models without a screen full of progress bars."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from transformers.utils import logging as transformers_logging


@contextlib.contextmanager
def progress_bars(visible: bool) -> Iterator[None]:
    """Hide the progress bars of transformers unless they are wanted."""
    if visible:
        yield
        return
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        # The bar of the GGUF reader obeys no setting; it writes to the stderr of the moment, while
        # log handlers keep the one that they were made with.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()
