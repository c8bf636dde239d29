"""What goes through the pipe between code and tests comes out the same; all else is refused."""

import math
import struct

import pytest

from marlogue.envs import sandbox_codec as codec

VALUES = [
    None,
    True,
    False,
    0,
    -1,
    255,
    -256,
    10**4000,
    -(2**63),
    0.1,
    -0.0,
    math.inf,
    5e-324,
    1 - 2j,
    "",
    "añ漢\ud800",
    b"\x00\xff",
    bytearray(b"ab"),
    [],
    [1, [2.0, ("x", None)]],
    (),
    (1,),
    {},
    {1: "a", (2, "b"): [3], None: {}},
    set(),
    {1, "a", (2,)},
    frozenset({1, 2}),
    range(3),
    range(10, -5, -3),
]


def same(one, other):
    """Equal, and of the same types all the way down."""
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value!r:.20}")
def test_plain_data_comes_back_as_it_was(value):
    assert same(codec.decode(codec.encode(value)), value)


def test_bytes_of_a_list_by_hand():
    # A list of two: a list of one int, which is 258 = 2 + 1 * 256, and the text "é".
    expected = b"l\x02\0\0\0" + b"l\x01\0\0\0" + b"i\x02\0\0\0\x02\x01" + b"s\x02\0\0\0\xc3\xa9"
    assert codec.encode([[258], "é"]) == expected


def test_order_of_a_dict_is_kept():
    assert list(codec.decode(codec.encode({"b": 1, "a": 2}))) == ["b", "a"]


def test_nan_is_no_object_that_was_there_before():
    value = math.nan
    (back,) = codec.decode(codec.encode([value]))
    assert math.isnan(back)
    assert back is not value


@pytest.mark.parametrize("view", [{1: 2}.keys(), {1: 2}.values(), {1: 2}.items()])
def test_views_of_a_dict(view):
    back = codec.decode(codec.encode(view))
    assert type(back) is type(view)
    assert list(back) == list(view)


class Text(str):
    """Equal to everything."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return True


class Number(int):
    """Equal to everything."""

    __hash__ = int.__hash__

    def __eq__(self, other):
        return True


class Table(dict):
    """A dict that tells of other items than it has."""

    def items(self):
        return [("other", 1)]


@pytest.mark.parametrize(
    ("value", "plain"), [(Text("a"), "a"), (Number(1), 1), (Table(a=1), {"a": 1})]
)
def test_of_a_subclass_the_plain_part_is_taken(value, plain):
    assert same(codec.decode(codec.encode(value)), plain)


@pytest.mark.parametrize("value", [object(), int, print, [object()], {1: print}, iter([1])])
def test_other_objects_are_refused(value):
    with pytest.raises(codec.NotPlainError, match=r"not plain data|an iterator"):
        codec.encode(value)


def nested(depth):
    """A list in a list in a list."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_depth():
    assert codec.decode(codec.encode(nested(codec.DEPTH - 1))) == nested(codec.DEPTH - 1)
    with pytest.raises(codec.NotPlainError, match="nested deeper than 200"):
        codec.encode(nested(codec.DEPTH))


def doubled(times):
    """A list that holds one list twice, which holds one list twice, and so on."""
    value = ["x" * 100]
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value",
    ["x" * 10**7, b"x" * 10**7, [0] * 10**7, doubled(100), 1 << 10**8],
    ids=["text", "bytes", "list", "doubled", "number"],
)
def test_size(value):
    with pytest.raises(codec.TooLargeError, match="8,388,608 bytes"):
        codec.encode(value)


def test_iterators_are_kept_and_asked_for():
    kept = []
    data = codec.encode([iter("ab")], keep=lambda it: kept.append(it) or 7)
    assert codec.decode(data, iterator=lambda number: ("asked", number)) == [("asked", 7)]
    assert list(kept[0]) == ["a", "b"]


def tagged(tag, count, rest=b""):
    """A message by hand."""
    return tag + struct.pack("<I", count) + rest


BROKEN = {
    "empty": b"",
    "unknown tag": tagged(b"?", 1),
    "half a count": b"i\x01",
    "too few bytes": tagged(b"s", 5, b"abc"),
    "more items than bytes": tagged(b"l", 2**32 - 1),
    "items missing": tagged(b"l", 2, b"N"),
    "bytes after the end": b"NN",
    "a dict of one": tagged(b"d", 1, b"N"),
    "a list as a key": tagged(b"d", 2, tagged(b"l", 0) + b"N"),
    "a list in a set": tagged(b"S", 1, tagged(b"l", 0)),
    "a float of three bytes": tagged(b"f", 3, b"abc"),
    "no text": tagged(b"s", 1, b"\xff"),
    "a range of texts": tagged(b"r", 3, tagged(b"s", 0) * 3),
    "a range of step 0": tagged(b"r", 3, tagged(b"i", 1, b"\0") * 3),
    "an iterator": tagged(b"I", 0),
    "deep": tagged(b"l", 1) * 10**5 + b"N",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_bytes_that_nobody_sends_are_refused(data):
    with pytest.raises(codec.BrokenError):
        codec.decode(data)


def test_every_byte_counts():
    """Whatever one byte of a message is changed into, it is refused or read as plain data."""
    data = codec.encode([1, "ab", (2.5, {"k": {3}}), range(2)])
    for place in range(len(data)):
        for byte in range(0, 256, 5):
            changed = data[:place] + bytes([byte]) + data[place + 1 :]
            try:
                codec.encode(codec.decode(changed))
            except codec.BrokenError:
                continue


def test_a_float_has_a_length_of_eight():
    assert codec.decode(tagged(b"f", 8, struct.pack("<d", 0.5))) == 0.5
