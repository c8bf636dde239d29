"""UnicodeText: any text within a length, in constant size (C53, C55)."""

import copy
import json
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from gymnasium.vector.utils import batch_space, create_empty_array

from marlogue.envs import UnicodeText

TEXTS = ["two words", "", "a\nline", "naïve", "\N{SLIGHTLY SMILING FACE}", "�", "\ud800", "\0"]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_contained(text):
    assert UnicodeText(10).contains(text)
    assert text in UnicodeText(10)


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["list"], np.array("x"), "x" * 11])
def test_anything_else_is_not(value):
    assert UnicodeText(10).contains(value) is False


def test_bounds_are_inclusive_and_count_characters():
    space = UnicodeText(3, min_length=2)
    assert [space.contains("é" * length) for length in range(5)] == [
        False,
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (((-1,), {}), ValueError),
        (((3,), {"min_length": 4}), ValueError),
        (((3,), {"min_length": -1}), ValueError),
        (((3.0,), {}), TypeError),
        (((True,), {}), TypeError),
        ((("3",), {}), TypeError),
    ],
)
def test_wrong_bounds_are_refused(arguments, error):
    positional, keyword = arguments
    with pytest.raises(error, match="length"):
        UnicodeText(*positional, **keyword)


def test_numpy_bounds_are_welcome():
    assert repr(UnicodeText(np.int64(5))) == "UnicodeText(5, min_length=0)"


def test_samples_are_short_printable_and_contained():
    space = UnicodeText(1_000_000, seed=3)
    samples = [space.sample() for _ in range(300)]
    assert all(sample in space and sample.isprintable() for sample in samples)
    assert max(map(len, samples)) == 32
    assert len(set(samples)) > 250


def test_samples_respect_narrow_bounds():
    assert {len(UnicodeText(5, min_length=5, seed=i).sample()) for i in range(20)} == {5}
    assert len(UnicodeText(90, min_length=80, seed=0).sample()) == 80
    assert UnicodeText(0).sample() == ""


def test_samples_come_from_the_space_s_own_seed():
    spaces = [UnicodeText(50), UnicodeText(50)]
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for space in spaces:
        space.seed(7)
    first, second = [[space.sample() for _ in range(5)] for space in spaces]
    assert first == second
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_a_mask_fixes_the_length_only():
    space = UnicodeText(50)
    assert len(space.sample(mask=(7, None))) == 7
    assert len(space.sample(probability=(7, None))) == 7
    with pytest.raises(ValueError, match="no charset to mask"):
        space.sample(mask=(7, np.ones(3, dtype=np.int8)))
    with pytest.raises(ValueError, match="within 0 and 50"):
        space.sample(mask=(51, None))
    with pytest.raises(ValueError, match="only one"):
        space.sample(mask=(1, None), probability=(1, None))


def test_equality_hash_and_repr_go_by_the_bounds():
    assert UnicodeText(5) == UnicodeText(5, seed=1)
    assert hash(UnicodeText(5)) == hash(UnicodeText(5, seed=1))
    assert UnicodeText(5) != UnicodeText(6)
    assert UnicodeText(5) != UnicodeText(5, min_length=1)
    stock = gymnasium.spaces.Text(5, min_length=0)
    assert UnicodeText(5) != stock
    assert stock != UnicodeText(5)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_copies_are_equal_and_sample_alike(again):
    space = UnicodeText(10**9, seed=5)
    twin = again(space)
    assert twin == space
    if again is not copy.copy:  # a shallow copy shares the generator, as everywhere in Python
        assert [twin.sample() for _ in range(3)] == [space.sample() for _ in range(3)]


def test_size_does_not_depend_on_the_length():
    sizes = {len(pickle.dumps(UnicodeText(length, seed=0))) for length in (10**6, 10**9)}
    assert len(sizes) == 1
    assert max(sizes) < 2000


@pytest.mark.parametrize("texts", [TEXTS])
def test_json_round_trip(texts):
    space = UnicodeText(20)
    sent = json.dumps(space.to_jsonable(texts))
    assert space.from_jsonable(json.loads(sent)) == texts


def test_gymnasium_flattens_and_unflattens_any_text():
    space = UnicodeText(12)
    text = "naïve �\N{SLIGHTLY SMILING FACE}"
    flat = flatten(space, text)
    assert flat in flatten_space(space)
    assert flatdim(space) == 12
    assert unflatten(space, flat) == text


def test_gymnasium_batches_and_compares_it():
    space = UnicodeText(12, seed=0)
    batched = batch_space(space, 3)
    assert batched.sample() in batched
    assert create_empty_array(space, 2) == ("", "")
    nested = gymnasium.spaces.Dict(text=space, number=gymnasium.spaces.Discrete(3))
    assert nested.sample() in nested


def test_the_lazy_character_list_is_a_sequence():
    characters = UnicodeText(1).character_list
    assert len(characters) == 0x110000
    assert characters[0x41] == "A"
    assert list(characters[0x41:0x44]) == ["A", "B", "C"]
    assert "é" in characters
    assert "éé" not in characters
