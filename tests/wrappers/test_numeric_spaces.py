"""What counts as numbers, for every view and library alike."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, OneOf, Sequence, Text, Tuple

from marlogue.envs import UnicodeText
from marlogue.wrappers.numeric_spaces import is_number, is_numeric

VECTOR = Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    "space",
    [
        VECTOR,
        Dict(a=VECTOR, b=Tuple([Discrete(2), MultiBinary(3)])),
        Sequence(VECTOR),
        OneOf([VECTOR, Discrete(2)]),
        Graph(VECTOR, None),
    ],
)
def test_spaces_of_numbers(space):
    assert is_numeric(space)


@pytest.mark.parametrize("text", [Text(5), UnicodeText(5)])
def test_texts_are_found_wherever_they_are(text):
    for space in (
        text,
        Dict(a=VECTOR, b=text),
        Tuple([Discrete(2), Dict(a=text)]),
        Sequence(text),
        OneOf([VECTOR, text]),
    ):
        assert not is_numeric(space)
    assert not is_numeric(None)


def test_numbers():
    for value in (True, 3, 0.5, np.bool_(True), np.int8(3), np.float32(0.5), np.array(3)):
        assert is_number(value)
    for value in ("3", None, [3], np.array([3]), np.array("3"), np.complex64(1), 1j):
        assert not is_number(value)
