"""Infos as JSON has them."""

import json

import numpy as np
import pytest

from marlogue.wrappers.json_infos import json_infos

FINE = {"score": np.float32(0.5), "mask": np.array([1, 0]), 3: ("a", {"b": None}), "won": True}
PLAIN = {"score": 0.5, "mask": [1, 0], "3": ["a", {"b": None}], "won": True}


@pytest.mark.parametrize("drop", [False, True])
def test_numbers_and_arrays_become_plain(drop):
    told = json_infos(FINE, "info", drop=drop)
    assert told == PLAIN
    assert json.loads(json.dumps(told, allow_nan=False)) == PLAIN
    assert type(told["won"]) is bool


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), r"info\['bad'\]"),
        ([0.0, float("nan")], r"info\['bad'\]\[1\] \(nan\)"),
        ({"deep": {1, 2}}, r"info\['bad'\]\['deep'\]"),
        (np.array([np.inf]), r"info\['bad'\]\[0\] \(inf\)"),
    ],
)
def test_what_json_cannot_express(value, where):
    with pytest.raises(TypeError, match=where + ".* must be something that JSON can express"):
        json_infos({**FINE, "bad": value}, "info")
    assert json_infos({**FINE, "bad": value}, "info", drop=True) == PLAIN
