"""Next-token sampling against exact probabilities, and the named streams of random numbers."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from marlogue.agents import SamplingParams, sample_tokens, uniforms

P = (0.4, 0.3, 0.2, 0.1)
LOGITS = torch.tensor(P).log()
DRAWS = 40_000
ALMOST_ONE = math.nextafter(1.0, 0.0)


def draw(logits, uniform, **settings):
    """One token of one row."""
    params = SamplingParams(**settings)
    number = torch.tensor([uniform], dtype=torch.float64)
    return sample_tokens(torch.as_tensor(logits)[None], number, params).item()


def frequencies(logits, seed=0, **settings):
    logits = torch.as_tensor(logits)
    uniform = torch.from_numpy(np.random.default_rng(seed).random(DRAWS))
    chosen = sample_tokens(logits.expand(DRAWS, -1), uniform, SamplingParams(**settings))
    return torch.bincount(chosen, minlength=len(logits)).double() / DRAWS


def assert_follows(found, expected):
    """Every frequency within five standard errors; what is impossible never happens."""
    expected = torch.tensor(expected, dtype=torch.float64)
    assert expected.sum() == pytest.approx(1, abs=1e-6)
    spread = (expected * (1 - expected) / DRAWS).sqrt()
    assert torch.all((found - expected).abs() <= 5 * spread), (found, expected)


def power(p, exponent):
    raised = [x**exponent for x in p]
    return [x / sum(raised) for x in raised]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, P),
        ({"temperature": 0.5}, power(P, 2)),
        ({"temperature": 2.0}, power(P, 0.5)),
        ({"top_k": 2}, (4 / 7, 3 / 7, 0, 0)),
        ({"top_k": 1}, (1, 0, 0, 0)),
        ({"top_k": 4}, P),
        ({"top_k": 1000}, P),
        # .4 is short of .6, .4 + .3 is not: the token that crosses the line belongs to the set.
        ({"top_p": 0.6}, (4 / 7, 3 / 7, 0, 0)),
        ({"top_p": 0.75}, (4 / 9, 3 / 9, 2 / 9, 0)),
        ({"top_p": 0.3}, (1, 0, 0, 0)),
        ({"top_p": 1e-9}, (1, 0, 0, 0)),
        ({"top_p": 0.95}, P),
        # top-p inside top-k: of (4/9, 3/9, 2/9) the first two hold 7/9.
        ({"top_k": 3, "top_p": 0.77}, (4 / 7, 3 / 7, 0, 0)),
        ({"top_k": 3, "top_p": 0.79}, (4 / 9, 3 / 9, 2 / 9, 0)),
        # The temperature comes before top-p: (16, 9, 4, 1) / 30.
        ({"temperature": 0.5, "top_p": 0.8}, (16 / 25, 9 / 25, 0, 0)),
        ({"temperature": 0.5, "top_p": 0.85}, (16 / 29, 9 / 29, 4 / 29, 0)),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.85}, (16 / 25, 9 / 25, 0, 0)),
        ({"temperature": 0.0}, (1, 0, 0, 0)),
        ({"temperature": 0.0, "top_p": 0.1, "top_k": 3}, (1, 0, 0, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)], ids=["sorted", "mixed"])
def test_frequencies_are_the_exact_probabilities(settings, expected, order):
    found = frequencies(LOGITS[list(order)], **settings)
    assert_follows(found, [expected[place] for place in order])


def test_logits_need_no_normalisation_and_may_be_large():
    assert_follows(frequencies(LOGITS + 5000.0), P)
    assert_follows(frequencies(LOGITS - 5000.0), P)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_floating_dtype_is_sampled_in_float32(dtype):
    logits = LOGITS.to(dtype)
    assert_follows(frequencies(logits), torch.softmax(logits.float(), -1).tolist())


def test_every_row_has_its_own_distribution():
    logits = torch.full((5, 5), -torch.inf)
    logits.fill_diagonal_(0.0)
    uniform = torch.linspace(0, 0.99, 5, dtype=torch.float64)
    for settings in ({}, {"top_k": 2}, {"top_p": 0.9}, {"temperature": 0}):
        chosen = sample_tokens(logits, uniform, SamplingParams(**settings))
        assert chosen.tolist() == [0, 1, 2, 3, 4]


def test_inversion_by_hand():
    """Cumulative .4 .7 .9 1: the token is the first whose cumulative probability exceeds u."""
    quarters = torch.zeros(4)  # exact in binary: .25 .5 .75 1
    for uniform, token in [(0.0, 0), (0.2499, 0), (0.25, 1), (0.5, 2), (0.75, 3), (0.99, 3)]:
        assert draw(quarters, uniform) == token
    for uniform, token in [(0.0, 0), (0.39, 0), (0.41, 1), (0.69, 1), (0.71, 2), (0.91, 3)]:
        assert draw(LOGITS, uniform) == token


def test_a_large_vocabulary_keeps_its_tail():
    """One word of .99 and 50,000 of 2e-7: too small for a float32 running sum, but not nothing."""
    logits = torch.full((50_001,), math.log(0.01 / 50_000))
    logits[0] = math.log(0.99)
    uniform = torch.linspace(0.9901, 0.99999, 200, dtype=torch.float64)
    for settings in ({}, {"top_k": 50_000}, {"top_p": 0.9999999}):
        chosen = sample_tokens(logits.expand(200, -1), uniform, SamplingParams(**settings))
        assert (chosen > 0).all()
        assert chosen.unique().numel() > 190


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.99}, {"temperature": 0.3}])
def test_a_token_of_probability_zero_is_never_chosen(settings):
    """Not at u = 0 (a leading zero) and not where u rounds to 1 in float32 (a trailing zero)."""
    logits = torch.tensor([-torch.inf, 0.0, -1e4, 1.0, -torch.inf, 0.5, -torch.inf])
    for uniform in (0.0, 1e-300, 1e-12, 0.5, 1 - 1e-7, 1 - 1e-9, ALMOST_ONE):
        assert draw(logits, uniform, **settings) in {1, 3, 5}


def test_u_close_to_one_takes_the_last_possible_token():
    assert draw(LOGITS, ALMOST_ONE) == 3
    assert draw(LOGITS, ALMOST_ONE, top_k=2) == 1
    assert draw(LOGITS, ALMOST_ONE, top_p=0.75) == 2
    # A third each: the running sum in float32 may end above or below 1.
    for size in (3, 7, 11, 1000):
        assert draw(torch.zeros(size), ALMOST_ONE) == size - 1
        assert draw(torch.zeros(size), 0.0) == 0


def test_all_but_one_token_impossible():
    logits = torch.tensor([-torch.inf, -torch.inf, 3.0, -torch.inf])
    for settings in ({}, {"top_k": 1}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 0}):
        for uniform in (0.0, 0.5, ALMOST_ONE):
            assert draw(logits, uniform, **settings) == 2


class TestTies:
    def test_top_k_keeps_exactly_k_of_equal_tokens(self):
        found = frequencies(torch.zeros(6), top_k=3)
        kept = (found > 0).nonzero().flatten()
        assert len(kept) == 3
        assert_follows(found[kept], [1 / 3] * 3)

    def test_top_p_keeps_as_few_equal_tokens_as_reach_it(self):
        found = frequencies(torch.zeros(8), top_p=0.5)  # eighths are exact
        kept = (found > 0).nonzero().flatten()
        assert len(kept) == 4
        assert_follows(found[kept], [1 / 4] * 4)

    def test_greedy_takes_one_of_the_best_and_always_the_same(self):
        logits = torch.tensor([0.0, 2.0, 2.0, 1.0])
        chosen = {draw(logits, u, temperature=0) for u in (0.0, 0.3, 0.9)}
        assert len(chosen) == 1
        assert chosen <= {1, 2}

    def test_a_tie_is_broken_alike_in_any_batch(self):
        row = torch.tensor([0.0, 1.0, 1.0, 1.0, -1.0])
        for settings in ({"top_k": 2}, {"top_p": 0.5}, {"temperature": 0}):
            params = SamplingParams(**settings)
            alone = sample_tokens(row[None], torch.tensor([0.9], dtype=torch.float64), params)
            others = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
            batch = torch.cat([others, row[None]])
            uniform = torch.full((7,), 0.9, dtype=torch.float64)
            assert sample_tokens(batch, uniform, params)[-1] == alone[0]


class TestNumbersThatAreNone:
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_k": 2}, {"top_p": 0.5}])
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_nan_and_inf_are_refused(self, settings, bad):
        logits = LOGITS.clone()
        logits[1] = bad
        batch = torch.stack([LOGITS, logits])
        uniform = torch.tensor([0.1, 0.1], dtype=torch.float64)
        with pytest.raises(FloatingPointError, match="not finite"):
            sample_tokens(batch, uniform, SamplingParams(**settings))

    @pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_k": 2}, {"top_p": 0.5}])
    def test_nothing_possible_is_refused(self, settings):
        with pytest.raises(FloatingPointError, match="not finite"):
            draw(torch.full((4,), -torch.inf), 0.5, **settings)


class TestSamplingParams:
    def test_defaults_sample_what_the_model_says(self):
        params = SamplingParams()
        assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, None)
        assert (params.max_new_tokens, params.min_new_tokens) == (256, 0)
        assert not params.restricts

    @pytest.mark.parametrize("settings", [{"top_p": 0.9}, {"top_k": 5}, {"min_new_tokens": 1}])
    def test_restricts(self, settings):
        assert SamplingParams(**settings).restricts

    def test_temperature_alone_does_not_restrict(self):
        assert not SamplingParams(temperature=0.3).restricts

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_new_tokens", 0),
            ("max_new_tokens", -1),
            ("min_new_tokens", -1),
            ("min_new_tokens", 257),
            ("temperature", -0.1),
            ("temperature", math.nan),
            ("temperature", math.inf),
            ("top_p", 0),
            ("top_p", 1.1),
            ("top_p", math.nan),
            ("top_k", 0),
            ("top_k", -1),
            # Wrong types: a bool is no number, half a token is none either.
            ("max_new_tokens", True),
            ("max_new_tokens", 2.5),
            ("max_new_tokens", None),
            ("min_new_tokens", True),
            ("top_k", 2.5),
            ("top_k", True),
            ("top_p", "0.9"),
            ("top_p", True),
            ("temperature", "hot"),
            ("temperature", True),
            ("temperature", None),
        ],
    )
    def test_a_value_out_of_range_is_named(self, name, value):
        with pytest.raises(ValueError, match=rf"^{name} \({re.escape(repr(value))}\) must"):
            SamplingParams(**{name: value})


class TestUniforms:
    def test_shape_range_and_level(self):
        numbers = uniforms([(0, i) for i in range(200)], 50)
        assert numbers.shape == (200, 50)
        assert numbers.dtype == torch.float64
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert numbers.mean() == pytest.approx(0.5, abs=5 / math.sqrt(12 * 200 * 50))

    def test_a_stream_depends_on_its_name_alone(self):
        alone = uniforms([(7, 3)], 5)
        among = uniforms([(7, 2), (7, 3), (8, 3), (3, 7)], 5)
        assert torch.equal(among[1:2], alone)
        assert len({tuple(row) for row in among.tolist()}) == 4

    def test_names_of_other_lengths_are_other_names(self):
        names = [(1,), (1, 0), (1, 0, 0), (0, 1), (0,), (0, 0), ()]
        assert len({tuple(row) for row in uniforms(names, 2).tolist()}) == len(names)

    def test_large_numbers_and_no_streams(self):
        assert uniforms([(2**63, 2**32)], 2).shape == (1, 2)
        with pytest.raises(ValueError, match="non-negative"):
            uniforms([(-1,)], 2)

    def test_a_longer_stream_begins_like_a_shorter_one(self):
        assert torch.equal(uniforms([(1, 2)], 30)[:, :4], uniforms([(1, 2)], 4))

    def test_no_global_generator_is_read_or_moved(self):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        legacy = np.random.get_state()[1].copy()  # noqa: NPY002
        first = uniforms([(1,)], 3)
        assert torch.equal(torch.get_rng_state(), before)
        assert (np.random.get_state()[1] == legacy).all()  # noqa: NPY002
        torch.manual_seed(6)
        assert torch.equal(uniforms([(1,)], 3), first)

    def test_neighbouring_names_are_unrelated(self):
        numbers = uniforms([(0, i) for i in range(2000)], 2).numpy()
        assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.12
        assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.12
