"""The attention critic learns sooner where one agent matters; `benchmarks/attention_credit.py` in
short: one seed, and a lower level."""

from __future__ import annotations

import pytest

from benchmarks.attention_credit import measure


@pytest.mark.slow
def test_fewer_samples_than_with_a_joint_prompt():
    attention = measure("attention, V_i", 2, updates=72, offset=1.0, level=0.5)
    assert attention["samples"] is not None  # 1,792 where this was written
    assert max(attention["explained"]) > 0.6
    played = attention["samples"] // 64
    joint = measure("joint prompt, V", 2, updates=played, offset=1.0, level=0.5)  # 2,688
    assert joint["samples"] is None
    assert max(joint["explained"]) < max(attention["explained"]) - 0.2
