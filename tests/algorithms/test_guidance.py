"""Descent guidance against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from marlogue.agents.rules import check_fields
from marlogue.algorithms import guidance as g
from marlogue.algorithms.aac_losses import advantages
from marlogue.algorithms.annealing import Anneal, AnnealLike, annealed, as_anneal


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


STATE, REFERENCE = doubles([[3.0, 1.0]]), doubles([1.0, 1.0])
#: Agent 0 takes 1 or 0 off the first component; agent 1 adds (0, 0) or (2, 5).
INFLUENCE = doubles([[[[-1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [2.0, 5.0]]]])


class TestValues:
    def test_influence(self):
        """x - x_ref = (2, 0): 2, 0 and 0, -4."""
        found = g.influence_values(STATE, REFERENCE, INFLUENCE)
        assert found.tolist() == [[[2.0, 0.0], [0.0, -4.0]]]

    def test_distance_with_an_action_replaced(self):
        """Agent 0 took 1 (nothing): the state would be (2, 1) or (3, 1), half the square of the
        distance 0.5 or 2. Agent 1 took 0: (3, 1) or (5, 6): 2 or (16 + 25) / 2."""
        found = g.distance_values(STATE, REFERENCE, INFLUENCE, torch.tensor([[1, 0]]))
        assert found.tolist() == [[[-0.5, -2.0], [-2.0, -20.5]]]

    def test_distance_is_influence_up_to_a_constant_for_small_steps(self):
        random = torch.Generator().manual_seed(0)
        state, reference = torch.rand(4, 5, generator=random), torch.rand(4, 5, generator=random)
        influence = 1e-3 * torch.rand(4, 3, 6, 5, generator=random)
        actions = torch.randint(6, (4, 3), generator=random)
        log_probs = torch.zeros(4, 3, 6).log_softmax(-1)
        exact = g.distance_values(state.double(), reference.double(), influence.double(), actions)
        linear = g.influence_values(state.double(), reference.double(), influence.double())
        gap = (exact - linear) - (exact - linear).mean(-1, keepdim=True)
        assert gap.abs().max() < 1e-5 < linear.std()
        assert g.gradient_cosine(
            g.logit_gradients(log_probs, exact.float()),
            g.logit_gradients(log_probs, linear.float()),
        ).item() == pytest.approx(1.0, abs=1e-3)

    def test_a_linear_value_has_the_given_gradient(self):
        actions = doubles([[[1.0, 2.0]]]).requires_grad_()
        value = g.linear_value(doubles([[[3.0, -1.0]]]), actions)
        value.sum().backward()
        assert value.item() == 1.0
        assert actions.grad.flatten().tolist() == [3.0, -1.0]


class TestSpread:
    def test_by_hand(self):
        """Standard deviations 1 and 3 over two actions: sqrt((1 + 9) / 2)."""
        values = doubles([[[0.0, 2.0], [10.0, 4.0]]])
        assert g.spread(values).item() == pytest.approx(math.sqrt(5))
        assert g.spread(g.unit_spread(values)).item() == pytest.approx(1.0)

    def test_absent_agents_and_actions_count_for_nothing(self):
        """Left: agent 0 with actions 0 and 2, agent 1 with one action (no spread)."""
        values = doubles([[[0.0, math.nan, 2.0], [5.0, 1e9, 1e9], [math.nan, math.inf, 0.0]]])
        mask = torch.tensor([[True, True, False]])
        available = torch.tensor([[True, False, True], [True, False, False], [True, True, True]])
        assert g.spread(values, mask, available).item() == pytest.approx(math.sqrt(1 / 2))

    def test_equal_values_stay_finite(self):
        assert g.unit_spread(torch.zeros(2, 3, 4)).abs().max() == 0.0


class TestMixing:
    def test_by_hand(self):
        """pi = (1/4, 3/4), G = (8, 4), so centred (3, -1); A = (1, 0), centred (3/4, -1/4):
        0.3 (3/4, -1/4) + 0.7 (3, -1)."""
        log_probs = doubles([[[0.25, 0.75]]]).log()
        mixed = g.mixed_values(doubles([[[1.0, 0.0]]]), doubles([[[8.0, 4.0]]]), 0.7)
        found = advantages(mixed, log_probs)
        assert found.flatten().tolist() == pytest.approx([2.325, -0.775])

    def test_the_ends_are_pure(self):
        learned, guidance = doubles([1.0, 2.0]), doubles([5.0, 7.0])
        assert torch.equal(g.mixed_values(learned, guidance, 0.0), learned)
        assert torch.equal(g.mixed_values(learned, guidance, 1.0), guidance)

    @pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
    def test_other_weights_are_refused(self, weight):
        with pytest.raises(ValueError, match="must be between 0 and 1"):
            g.mixed_values(doubles([1.0]), doubles([1.0]), weight)

    def test_cosines(self):
        first, second = doubles([[[1.0, 0.0], [5.0, 5.0]]]), doubles([[[3.0, 4.0], [9.0, -1.0]]])
        mask = torch.tensor([[True, False]])
        assert g.gradient_cosine(first, second, mask).item() == pytest.approx(0.6)
        assert g.gradient_cosine(first, torch.zeros_like(first)).item() == 0.0

    def test_cosine_is_that_of_parameter_gradients_of_a_tabular_policy(self):
        """For logits as parameters both are the same thing."""
        logits = torch.tensor([[[0.1, 0.5, -0.2]]], dtype=torch.float64, requires_grad=True)
        values = doubles([[[1.0, 2.0, 0.0]]]), doubles([[[0.0, 1.0, 4.0]]])
        pi = logits.softmax(-1)
        wanted = [torch.autograd.grad((pi * v).sum(), logits, retain_graph=True)[0] for v in values]
        found = [g.logit_gradients(logits.log_softmax(-1), v) for v in values]
        cosine = torch.nn.functional.cosine_similarity(*(w.flatten() for w in wanted), dim=0)
        assert g.gradient_cosine(*found).item() == pytest.approx(cosine.item(), abs=1e-12)


class TestWhatACallableGives:
    agents = ("left", "right")

    def check(self, given, **kwargs):
        return g.checked_guidance(given, list(self.agents), 3, **kwargs)

    def test_shapes(self):
        assert self.check([1, 2]).shape == (1, 2)
        assert self.check(np.zeros((2, 3))).shape == (1, 2, 3)
        assert self.check(np.zeros((4, 2, 3)), envs=4).shape == (4, 2, 3)

    def test_another_shape_is_refused(self):
        with pytest.raises(
            ValueError, match=r"shape \(2, 4\), which must be \(1, 2\).*\(1, 2, 3\)"
        ):
            self.check(np.zeros((2, 4)))

    def test_what_is_not_finite_is_named(self):
        values = np.zeros((4, 2, 3))
        values[3, 1, 2] = math.nan
        with pytest.raises(ValueError, match="nan for right for action 2 in environment 3"):
            self.check(values, envs=4)


class TestAnneal:
    @pytest.mark.parametrize(
        ("shape", "wanted"), [("linear", 0.725), ("cosine", 0.7974874), ("exponential", 0.6179301)]
    )
    def test_a_quarter_of_the_way(self, shape, wanted):
        assert Anneal(0.9, 0.2, shape=shape)(0.25) == pytest.approx(wanted, abs=1e-6)

    def test_the_end_stays(self):
        anneal = Anneal(0.9, 0.2, until=0.5)
        assert [anneal(p) for p in (0.0, 0.25, 0.5, 0.8, 1.0, 3.0)] == [
            0.9, pytest.approx(0.55), 0.2, 0.2, 0.2, 0.2,
        ]  # fmt: skip
        assert Anneal(0.9, 0.2, until=0.0)(0.0) == 0.2

    def test_bad_values(self):
        with pytest.raises(ValueError, match=r"until \(1.5\) must be at least 0 and at most 1"):
            Anneal(1.0, 0.0, 1.5)
        with pytest.raises(ValueError, match="must be above 0 when shape is 'exponential'"):
            Anneal(1.0, 0.0, shape="exponential")
        with pytest.raises(ValueError, match=r"progress \(nan\)"):
            Anneal()(math.nan)


@dataclass
class Settings:
    weight: AnnealLike = annealed(Anneal(0.9, 0.2), at_least=0, at_most=1)
    noise: AnnealLike | None = annealed(None, at_least=0, optional=True)

    def __post_init__(self):
        check_fields(self)


class TestAnnealedField:
    def test_ways_to_write_one(self):
        assert Settings().weight == Anneal(0.9, 0.2)
        assert Settings().noise is None
        assert Settings(weight=0.5).weight == Anneal(0.5, 0.5)
        assert Settings(weight=Anneal(0.3, 0.0, 0.5)).weight == Anneal(0.3, 0.0, 0.5)
        # A mapping changes what it names of the default.
        assert Settings(weight={"end": 0, "shape": "cosine"}).weight == Anneal(
            0.9, 0, shape="cosine"
        )
        assert Settings(noise={"start": 3, "end": 1}).noise == Anneal(3, 1)
        assert replace(Settings(weight=0.5), noise=1).weight == Anneal(0.5, 0.5)
        assert as_anneal(2)(0.3) == 2

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"weight": 1.5}, r"weight.start \(1.5\) must be at least 0 and at most 1"),
            ({"weight": {"end": -0.1}}, r"weight.end \(-0.1\) must be at least 0"),
            ({"weight": {"strt": 0.1}}, "weight has the unknown key 'strt'; known are start, end"),
            ({"weight": {"until": 2}}, r"weight: until \(2\) must be at least 0 and at most 1"),
            ({"weight": {"end": 0, "shape": "exponential"}}, "weight: start .* must be above 0"),
            ({"weight": "0.5"}, r"weight \('0.5'\) must be a number, an Anneal, or a mapping"),
            ({"weight": True}, r"weight \(True\) must be a number"),
            ({"weight": None}, r"weight \(None\) must be a number"),
            ({"weight": math.nan}, r"weight: start \(nan\) must be a finite number"),
        ],
    )
    def test_bad_values(self, given, message):
        with pytest.raises(ValueError, match=message):
            Settings(**given)
