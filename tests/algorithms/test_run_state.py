"""The parts of a run's state: samples with what they share, and optimisers."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from marlogue.agents import Completion
from marlogue.algorithms import Joint, Sample
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.sample_table import SampleTable


def episode(turns: int) -> list[Sample]:
    """Samples of two agents, linked turn by turn."""
    made: list[Sample] = []
    item = {"prompt": "go", "tests": ["a", "b"], "object": object()}
    for turn in range(turns):
        actions = tuple(
            Completion((1, 2, turn), (3 + agent,), f"said {agent} \ufffd", agent == 1)
            for agent in (0, 1)
        )
        joint = Joint(("p0", "p1"), tuple(a.text for a in actions), actions)
        for agent, action in enumerate(actions):
            sample = Sample(f"agent_{agent}", agent, turn, 0, 7, item, joint, action, reward=0.1)
            if turn:
                made[-2].next = sample
            made.append(sample)
    return made


def read_again(table: SampleTable) -> SampleTable:
    return SampleTable.load(json.loads(json.dumps(table.state_dict())))


class TestSampleTable:
    def test_numbers_and_links_come_back(self):
        samples = episode(3)
        samples[0].value, samples[0].target = 1 / 3, -2e-300
        samples[2].joint.judged = True
        table = SampleTable()
        numbers = table.add(samples)
        back = read_again(table).get(numbers)
        assert (back[0].value, back[0].target) == (1 / 3, -2e-300)
        assert math.isnan(back[1].value)
        assert back[0].next is back[2]
        assert back[2].next is back[4]
        assert back[4].next is None
        assert back[0].joint is back[1].joint
        assert back[0].joint is not back[2].joint
        assert [s.joint.judged for s in back] == [False, False, True, True, False, False]
        assert back[0].action is back[0].joint.actions[0]
        assert back[1].action == samples[1].action
        assert [(s.agent, s.turn_idx, s.item_idx, s.reward) for s in back] == [
            (s.agent, s.turn_idx, s.item_idx, s.reward) for s in samples
        ]

    def test_what_follows_comes_along(self):
        first, _, second, *_ = episode(2)
        table = SampleTable()
        numbers = table.add([first])
        (back,) = read_again(table).get(numbers)
        assert back.next is not None
        assert back.next.completion == second.completion

    def test_one_object_in_two_lists_stays_one(self):
        samples = episode(1)
        table = SampleTable()
        one, other = table.add(samples), table.add(reversed(samples))
        back = read_again(table)
        assert back.get(one)[0] is back.get(other)[1]

    def test_fields_that_json_cannot_express_are_left_out(self):
        table = SampleTable()
        numbers = table.add(episode(1))
        assert read_again(table).get(numbers)[0].item == {"prompt": "go", "tests": ["a", "b"]}

    def test_a_long_episode(self):
        samples = episode(3000)
        table = SampleTable()
        numbers = table.add(samples[:2])
        back = read_again(table).get(numbers)[0]
        length = 1
        while back.next is not None:
            back, length = back.next, length + 1
        assert length == 3000


class TestOptimizer:
    def stepped(self, layer: nn.Module, optimizer: Optimizer, times: int, first: int = 0) -> None:
        for k in range(first, first + times):
            inputs = torch.full((1, 3), float(k + 1))
            (layer(inputs) ** 2).sum().backward()
            optimizer.step()

    def pair(self) -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        layer.bias.requires_grad_(False)
        return layer, Optimizer(layer.parameters(), 0.1, max_grad_norm=1.0)

    def test_goes_on_as_if_never_stopped(self):
        straight, steps = self.pair()
        steps.set_progress(0.5)
        self.stepped(straight, steps, 5)
        first, before = self.pair()
        before.set_progress(0.5)
        self.stepped(first, before, 2)
        second, after = self.pair()
        second.load_state_dict(first.state_dict())
        after.load_state_tensors({k: v.clone() for k, v in before.state_tensors().items()})
        assert after.learning_rate == 0.05
        self.stepped(second, after, 3, first=2)
        assert torch.equal(second.weight, straight.weight)
        for name, value in steps.state_tensors().items():
            assert torch.equal(after.state_tensors()[name], value), name

    def test_state_before_the_first_step(self):
        _, optimizer = self.pair()
        _, other = self.pair()
        other.load_state_tensors(optimizer.state_tensors())
        assert set(other.state_tensors()) == {"learning_rate"}

    def test_state_of_other_parameters_is_refused(self):
        layer, optimizer = self.pair()
        self.stepped(layer, optimizer, 1)
        with pytest.raises(ValueError, match="other parameters"):
            Optimizer(nn.Linear(4, 2).parameters(), 0.1).load_state_tensors(
                optimizer.state_tensors()
            )
