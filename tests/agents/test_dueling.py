"""A common value and what each action adds to it, by hand."""

from __future__ import annotations

import torch

from marlogue.agents.dueling import dueling_values


def test_by_hand():
    """The second agent has no third action."""
    raw = torch.tensor([[10.0, 1.0, 2.0, 6.0], [5.0, 1.0, 2.0, 99.0]])
    exists = torch.tensor([[True, True, True], [True, True, False]])
    found = dueling_values(raw, exists)
    torch.testing.assert_close(found, torch.tensor([[8.0, 9.0, 13.0], [4.5, 5.5, 0.0]]))
    higher = dueling_values(raw, exists, torch.tensor(2.0))
    torch.testing.assert_close(higher, torch.tensor([[10.0, 11.0, 15.0], [6.5, 7.5, 0.0]]))


def test_one_action_moves_the_level_of_all():
    """A step on the error of one action moves its own value most, and the mean with it."""
    raw = torch.zeros(1, 5, requires_grad=True)
    exists = torch.ones(1, 4, dtype=torch.bool)
    (dueling_values(raw, exists)[0, 1] + 8.0).square().backward()
    moved = dueling_values(-raw.grad / 16, exists)[0]  # by an error of -8: a unit step per weight
    torch.testing.assert_close(moved, torch.tensor([-0.75, -1.75, -0.75, -0.75]))
