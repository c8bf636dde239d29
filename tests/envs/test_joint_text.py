"""The text of the centralised critic."""

import pytest

from marlogue.envs import joint_text


def test_state_text():
    assert joint_text(["P0", "P1"]) == "[Agent 0] P0\n\n[Agent 1] P1"


def test_state_action_text():
    assert joint_text(["P0", "P1"], ["C0", "C1"]) == (
        "[Agent 0] P0\n\n[Agent 1] P1\n\n[Joint Action]\n\n"
        "[Agent 0 action]\nC0\n\n[Agent 1 action]\nC1"
    )


def test_lengths_must_agree():
    with pytest.raises(ValueError, match=r"completions \(1\) must be as many as prompts \(2\)"):
        joint_text(["a", "b"], ["c"])
