"""The attention critic learns sooner where one agent matters; `benchmarks/attention_credit.py` in
short: one seed, and half of the level."""

from __future__ import annotations

import pytest

from benchmarks.attention_credit import measure


@pytest.mark.slow
def test_fewer_samples_than_with_a_joint_prompt():
    attention = measure("attention, V_i", 0, updates=48, offset=1.0, level=0.4)
    assert attention["samples"] is not None
    assert max(attention["explained"]) > 0.7
    played = attention["samples"] // 64
    joint = measure("joint prompt, V", 0, updates=played, offset=1.0, level=0.4)
    assert joint["samples"] is None
    assert joint["right"][-1] < attention["right"][-1] - 0.1
