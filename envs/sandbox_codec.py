"""Plain data as bytes for the pipe between code and tests, read back by a suspicious parser.

This module runs inside the sandbox. It imports nothing that a bare interpreter has not loaded.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# One message. Decoded it takes up to some twenty times as much memory.
MESSAGE_BYTES = 8 * 2**20
DEPTH = 200
COUNT = struct.Struct("<I")
FLOAT = struct.Struct("<d")


class NotPlainError(Exception):
    """A value that does not go through the pipe; says why."""


class TooLargeError(NotPlainError):
    """A value that is over the limit."""


class BrokenError(Exception):
    """Bytes that the other side may not send."""


def encode(value: Any, keep: Callable[[Any], int] | None = None) -> bytes:
    """The bytes of plain data.

    Args:
        value: None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range
            and views of a dict, in any nesting. Of subclasses the plain part is taken.
        keep: takes an iterator and returns a number, under which the other side asks for its items.
            None: iterators are not taken.

    Raises:
        NotPlainError: something else is in it, or the nesting is too deep.
    """
    out = bytearray()
    _write(out, value, 0, keep)
    return bytes(out)


def _write(out: bytearray, value: Any, depth: int, keep: Callable[[Any], int] | None) -> None:
    if value is None or value is True or value is False:
        out += b"N" if value is None else b"T" if value else b"F"
        return
    tag = TAGS.get(type(value)) or _tag_of_subclass(value)
    if tag in ATOMS:
        data = _atom_bytes(tag, value)
        out += tag + COUNT.pack(len(data)) + data
    elif tag == b"I":
        if keep is None:
            raise NotPlainError(f"an iterator of type {type(value).__name__}")
        out += tag + COUNT.pack(keep(value))
    else:
        items = _items(tag, value)
        # Every item takes a byte at least.
        _check_size(len(out) + len(items))
        if depth >= DEPTH:
            raise NotPlainError(f"a value that is nested deeper than {DEPTH}")
        out += tag + COUNT.pack(len(items))
        for item in items:
            _write(out, item, depth + 1, keep)
    _check_size(len(out))


def _check_size(size: int) -> None:
    if size > MESSAGE_BYTES:
        raise TooLargeError(f"a value of more than {MESSAGE_BYTES:,} bytes")


def _tag_of_subclass(value: Any) -> bytes:
    for kind, tag in TAGS.items():
        if isinstance(value, kind):
            return tag
    if hasattr(type(value), "__next__"):
        return b"I"
    raise NotPlainError(f"a value of type {type(value).__name__}, which is not plain data")


def _atom_bytes(tag: bytes, value: Any) -> bytes:
    if tag == b"i":
        return int.to_bytes(value, int.bit_length(value) // 8 + 1, "little", signed=True)
    if tag == b"f":
        return FLOAT.pack(value)
    if tag == b"c":
        return FLOAT.pack(value.real) + FLOAT.pack(value.imag)
    _check_size(len(value))  # before a copy is made
    return str.encode(value, "utf-8", "surrogatepass") if tag == b"s" else bytes(value)


def _items(tag: bytes, value: Any) -> Any:
    if tag == b"r":
        return value.start, value.stop, value.step
    if tag == b"d":
        return [part for pair in dict.items(value) for part in pair]
    if tag == b"m":
        return [part for pair in value for part in pair]
    return value


TAGS: dict[Any, bytes] = {
    int: b"i",
    str: b"s",
    float: b"f",
    bytes: b"b",
    bytearray: b"a",
    complex: b"c",
    list: b"l",
    tuple: b"t",
    dict: b"d",
    set: b"S",
    frozenset: b"Z",
    range: b"r",
    type({}.keys()): b"k",
    type({}.values()): b"v",
    type({}.items()): b"m",
}
ATOMS = frozenset((b"i", b"s", b"f", b"b", b"a", b"c"))


def decode(data: bytes, iterator: Callable[[int], Any] | None = None) -> Any:
    """What `encode` made bytes of. `iterator` makes something to iterate over of a number.

    Raises:
        BrokenError: `encode` does not make such bytes.
    """
    reader = _Reader(data, iterator)
    try:
        value = reader.value(0)
    except BrokenError:
        raise
    except Exception as error:
        raise BrokenError(f"{type(error).__name__}: {error}") from None
    if reader.position != len(data):
        raise BrokenError("bytes after the end")
    return value


class _Reader:
    """Reads one value after the other."""

    def __init__(self, data: bytes, iterator: Callable[[int], Any] | None):
        self.data, self.position, self.iterator = data, 0, iterator

    def take(self, size: int) -> bytes:
        start = self.position
        if size > len(self.data) - start:
            raise BrokenError("bytes are missing")
        self.position = start + size
        return self.data[start : start + size]

    def value(self, depth: int) -> Any:
        tag = self.take(1)
        if tag in SINGLE:
            return SINGLE[tag]
        (count,) = COUNT.unpack(self.take(4))
        if tag in READ_ATOM:
            return READ_ATOM[tag](self.take(count))
        if tag == b"I" and self.iterator is not None:
            return self.iterator(count)
        if depth >= DEPTH:
            raise BrokenError("nested too deep")
        if tag not in READ_ITEMS:
            raise BrokenError(f"unknown tag {tag!r}")
        # Every item is a byte at least: what cannot be there is not waited for.
        if count > len(self.data) - self.position or (tag in PAIRED and count % 2):
            raise BrokenError("items are missing")
        return READ_ITEMS[tag]([self.value(depth + 1) for _ in range(count)])


def _read_float(data: bytes) -> float:
    (value,) = FLOAT.unpack(data)
    return float(value)


def _read_range(items: list[Any]) -> range:
    start, stop, step = items
    return range(start, stop, step)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


PAIRED = (b"d", b"m")
SINGLE = {b"N": None, b"T": True, b"F": False}
READ_ATOM: dict[bytes, Callable[[bytes], Any]] = {
    b"i": lambda data: int.from_bytes(data, "little", signed=True),
    b"f": _read_float,
    b"c": lambda data: complex(_read_float(data[:8]), _read_float(data[8:])),
    b"s": lambda data: data.decode("utf-8", "surrogatepass"),
    b"b": bytes,
    b"a": bytearray,
}
READ_ITEMS: dict[bytes, Callable[[list[Any]], Any]] = {
    b"l": list,
    b"t": tuple,
    b"S": set,
    b"Z": frozenset,
    b"d": _pairs,
    b"r": _read_range,
    b"k": lambda items: dict.fromkeys(items).keys(),
    b"v": lambda items: dict(enumerate(items)).values(),
    b"m": lambda items: _pairs(items).items(),
}


def send(pipe: int, data: bytes) -> None:
    """Write one message to a pipe."""
    view = memoryview(COUNT.pack(len(data)) + data)
    while view:
        view = view[os.write(pipe, view) :]


def receive(pipe: int) -> bytes | None:
    """The next message of a pipe, or None where the other side has closed it.

    Raises:
        BrokenError: the message is too long, or ends too early.
    """
    head = _read(pipe, COUNT.size)
    if not head:
        return None
    if len(head) < COUNT.size:
        raise BrokenError("half a message")
    (size,) = COUNT.unpack(head)
    if size > MESSAGE_BYTES:
        raise BrokenError(f"a message of {size:,} bytes")
    data = _read(pipe, size)
    if len(data) < size:
        raise BrokenError("half a message")
    return data


def _read(pipe: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(pipe, min(size - len(parts), 2**20))
        if not part:
            break
        parts += part
    return bytes(parts)
