"""Libraries that are not installed with Marlogue, and what to say when one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def require(library: str, *, extra: str) -> Iterator[None]:
    """Import an optional library within; where that fails, say how to install it.

    Args:
        library: its import name.
        extra: the extra of Marlogue that brings it.

    Raises:
        ImportError: gives the install line. Where the library is installed but cannot be imported,
            the cause is chained.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{library} could not be imported ({error}); install it with: "
            f'pip install "marlogue[{extra}]"',
            name=error.name,
        ) from error
