"""Log-probabilities of completions: by hand, and against one plain forward pass per sequence."""

from __future__ import annotations

import math

import pytest
import torch

from marlogue.agents import (
    Answered,
    LLMPolicy,
    Trunk,
    k3,
    load_smollm2,
    micro_batches,
    score,
    sum_by_row,
)
from tests.support.architectures import ARCHITECTURES, build
from tests.support.cf import EOS, cf_model, random_gpt2, tiny_llama

A, B, Q, R = 0, 1, 3, 4
CPU = torch.device("cpu")

# Unequal prompts and completions; ids that are also the end or the padding id, in both.
ROWS = [
    Answered([5, 6, 7], [8, 9, 2]),
    Answered([2], [2]),
    Answered([1, 2, 2, 1, 30, 31, 4, 4, 4, 11, 12, 2, 1], [3, 0, 1, 2, 1, 5, 5]),
    Answered([9, 8], [7] * 15),
]


def plain_token_log_probs(model, answered, temperature=1.0):
    """What :func:`score` is to say about one completion, the slow way: no padding, no batch."""
    ids = [*answered.prompt_ids, *answered.completion_ids]
    logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
    log_probs = (logits / temperature).log_softmax(-1)
    first = len(answered.prompt_ids)
    return torch.stack([log_probs[place - 1, ids[place]] for place in range(first, len(ids))])


def cf_score(p, prompt, completion, **settings):
    model, _ = cf_model(p)
    scores = score(Trunk(model), [Answered(prompt, completion)], pad_id=EOS, **settings)
    return scores.log_probs.item()


class TestByHand:
    def test_the_end_token_counts_although_it_is_the_padding_token(self):
        """C01: ln .5 + 2 ln .25."""
        found = cf_score((0.5, 0.25, 0.25), [Q, R], [A, B, EOS])
        assert found == pytest.approx(math.log(0.5) + 2 * math.log(0.25), abs=1e-5)

    def test_the_end_token_counts_in_a_padded_batch(self):
        """C01: 'A A </s>' beside a longer one; what pads is the end token's own id."""
        model, _ = cf_model((0.5, 0.25, 0.25))
        rows = [Answered([Q], [A, EOS]), Answered([Q, R], [A, B, A, B, EOS]), Answered([Q], [A])]
        scores = score(Trunk(model), rows, pad_id=EOS)
        expected = [
            math.log(0.5) + math.log(0.25),
            2 * math.log(0.5) + 3 * math.log(0.25),
            math.log(0.5),
        ]
        assert scores.log_probs.tolist() == pytest.approx(expected, abs=1e-5)
        assert scores.rows.tolist() == [0, 0, 1, 1, 1, 1, 1, 2]
        assert len(scores.token_log_probs) == 8

    def test_a_cut_completion_has_no_end_token_to_score(self):
        """C05: 4 ln .5."""
        assert cf_score((0.5, 0.5), [Q], [A, B, A, B]) == pytest.approx(4 * math.log(0.5), abs=1e-5)

    def test_the_temperature_of_sampling(self):
        """C07: p squared and normalised is (2/3, 1/6, 1/6)."""
        found = cf_score((0.5, 0.25, 0.25), [Q, R], [A, B, EOS], temperature=0.5)
        assert found == pytest.approx(math.log(2 / 3) + 2 * math.log(1 / 6), abs=1e-5)

    def test_the_gradient(self):
        """d(-advantage * log pi) / d wte[:, 0] = -advantage * (count - n p)."""
        model, _ = cf_model((0.5, 0.25, 0.25))
        scores = score(Trunk(model), [Answered([Q, R], [A, B, EOS])], pad_id=EOS)
        (-2.0 * scores.log_probs.sum()).backward()
        gradient = model.transformer.wte.weight.grad[:, 0]
        expected = [-2 * (1 - 1.5), -2 * (1 - 0.75), -2 * (1 - 0.75), 0, 0, 0]
        assert gradient.tolist() == pytest.approx(expected, abs=1e-5)

    def test_what_is_impossible_spoils_no_other_row(self):
        """C20: an impossible token beside a possible one."""
        model, _ = cf_model((0.5, 0.5))
        rows = [Answered([Q], [A]), Answered([Q], [EOS])]
        scores = score(Trunk(model), rows, pad_id=EOS)
        assert scores.log_probs[0].item() == pytest.approx(math.log(0.5), abs=1e-5)
        assert scores.log_probs[1].item() < -1000


@pytest.fixture(scope="module")
def policy():
    return LLMPolicy(*load_smollm2(), chat_template=True)


@pytest.mark.smollm2
class TestSmolLM2:
    """C01, C04, C07, C50 on the real model."""

    @pytest.mark.parametrize(
        ("completion", "temperature", "expected"),
        [
            ([26843, 665, 17, 2], 1.0, -10.2171),
            ([26843, 665, 17], 1.0, -5.7958),
            ([26843, 665, 17, 2], 0.6, -11.5734),
            ([11653, 5365, 2], 1.0, -29.0433),  # 'Hel', 'lo' as sampled
            ([19556, 2], 1.0, -14.6987),  # the same text, encoded anew
        ],
    )
    def test_reference_numbers(self, policy, completion, temperature, expected):
        prompt = policy.encode("Say hi.")
        assert len(prompt) == 33
        assert prompt.count(policy.tokenizer.pad_token_id) == 2  # C04: no mask from values
        longer = Answered([*prompt, 5, 6, 7], [11, 12, 13, 14, 15, 16, 17, 18])
        with torch.no_grad():
            scores = policy.score([Answered(prompt, completion), longer], temperature=temperature)
        assert scores.log_probs[0].item() == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", ARCHITECTURES)
class TestArchitectures:
    def test_equals_a_plain_forward_pass_per_sequence(self, name):
        model = build(name)
        for temperature in (1.0, 0.7):
            with torch.no_grad():
                scores = score(Trunk(model), ROWS, pad_id=0, temperature=temperature)
                expected = [plain_token_log_probs(model, row, temperature) for row in ROWS]
            torch.testing.assert_close(
                scores.token_log_probs, torch.cat(expected), atol=2e-4, rtol=2e-4
            )
            torch.testing.assert_close(
                scores.log_probs, torch.stack([x.sum() for x in expected]), atol=1e-3, rtol=1e-3
            )

    def test_the_hidden_states_of_values(self, name):
        model = build(name)
        with torch.no_grad():
            scores = score(Trunk(model), ROWS, pad_id=0)
            for row, (prompt, completion) in enumerate(ROWS):
                ids = torch.tensor([[*prompt, *completion]])
                hidden = model.base_model(ids, use_cache=False).last_hidden_state[0]
                for found, place in (
                    (scores.prompt_hidden[row], len(prompt) - 1),
                    (scores.last_hidden[row], -1),
                ):
                    torch.testing.assert_close(found, hidden[place], atol=2e-4, rtol=2e-4)

    def test_a_batch_equals_its_rows_one_by_one(self, name):
        trunk = Trunk(build(name))
        with torch.no_grad():
            together = score(trunk, ROWS, pad_id=0)
            alone = [score(trunk, [row], pad_id=0) for row in ROWS]
        torch.testing.assert_close(
            together.token_log_probs,
            torch.cat([scores.token_log_probs for scores in alone]),
            atol=2e-4,
            rtol=2e-4,
        )

    def test_the_padding_id_changes_nothing(self, name):
        trunk = Trunk(build(name))
        with torch.no_grad():
            first, second = (score(trunk, ROWS, pad_id=pad_id).log_probs for pad_id in (0, 31))
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "bloom"])
def test_gradient_equals_that_of_a_plain_loop(name):
    advantages = [1.5, -0.5, 0.25, 2.0]
    model = build(name, scale=3.0)
    losses = {
        "ours": lambda: score(Trunk(model), ROWS, pad_id=0, temperature=0.8).log_probs,
        "plain": lambda: torch.stack(
            [plain_token_log_probs(model, row, 0.8).sum() for row in ROWS]
        ),
    }
    gradients = {}
    for which, log_probs in losses.items():
        model.zero_grad()
        (-(log_probs() * torch.tensor(advantages)).mean()).backward()
        gradients[which] = {
            n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad
        }
    for parameter, expected in gradients["plain"].items():
        scale = expected.abs().max().clamp(min=1e-3).item()
        torch.testing.assert_close(
            gradients["ours"][parameter], expected, atol=1e-4 * scale, rtol=1e-3, msg=parameter
        )


def test_gradient_of_values_read_from_the_same_pass():
    model = random_gpt2(scale=2.0)
    weight = torch.randn(32, generator=torch.Generator().manual_seed(0))

    def ours():
        scores = score(Trunk(model), ROWS, pad_id=0)
        return (scores.prompt_hidden @ weight + scores.last_hidden @ weight).sum()

    def plain():
        total = torch.zeros(())
        for prompt, completion in ROWS:
            hidden = model.transformer(torch.tensor([[*prompt, *completion]])).last_hidden_state[0]
            total = total + hidden[len(prompt) - 1] @ weight + hidden[-1] @ weight
        return total

    gradients = []
    for compute in (ours, plain):
        model.zero_grad()
        compute().backward()
        gradients.append(model.transformer.wte.weight.grad.clone())
    torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-3)


def test_scoring_builds_no_graph_under_no_grad_and_leaves_modes_alone():
    model = random_gpt2().train()
    with torch.no_grad():
        assert not score(Trunk(model), ROWS[:1], pad_id=0).log_probs.requires_grad
    assert model.training


def test_scores_are_float32_in_a_half_precision_model():
    model = random_gpt2(scale=1.0).to(torch.bfloat16)
    scores = score(Trunk(model), ROWS[3:], pad_id=0, temperature=0.7)
    assert scores.token_log_probs.dtype == torch.float32
    assert scores.log_probs.dtype == torch.float32
    # Only the logits are rounded: in bfloat16, a sum of about -50 comes in steps of .25.
    expected = plain_token_log_probs(model, ROWS[3], 0.7)
    torch.testing.assert_close(scores.token_log_probs, expected, atol=1e-5, rtol=1e-5)
    assert scores.log_probs.item() == pytest.approx(expected.sum().item(), abs=1e-4)


def test_scores_are_float32_under_autocast():
    model = random_gpt2(scale=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        scores = score(Trunk(model), ROWS, pad_id=0)
    assert scores.log_probs.dtype == torch.float32
    exact = score(Trunk(model), ROWS, pad_id=0).log_probs
    torch.testing.assert_close(scores.log_probs, exact, atol=0.5, rtol=0.02)


def test_many_tokens_go_through_the_logit_chunks():
    """More generated tokens than one chunk of logits holds, and a number that does not divide."""
    model = random_gpt2(scale=2.0)
    generator = torch.Generator().manual_seed(1)
    rows = [
        Answered([3], torch.randint(32, (length,), generator=generator).tolist())
        for length in (63, 40, 63, 63, 17, 63, 1, 63, 63)
    ]
    with torch.no_grad():
        scores = score(Trunk(model), rows, pad_id=0, temperature=1.3)
        expected = torch.cat([plain_token_log_probs(model, row, 1.3) for row in rows])
    assert len(scores.token_log_probs) > 256
    torch.testing.assert_close(scores.token_log_probs, expected, atol=1e-4, rtol=1e-4)


def test_the_longest_sequence_may_fill_the_context():
    model = random_gpt2(n_positions=8)
    with torch.no_grad():
        scores = score(Trunk(model), [Answered([3, 4, 5], [6, 7, 8, 9, 2])], pad_id=0)
        expected = plain_token_log_probs(model, Answered([3, 4, 5], [6, 7, 8, 9, 2]))
    torch.testing.assert_close(scores.token_log_probs, expected, atol=1e-4, rtol=1e-4)


def test_tied_embeddings_score_and_train_as_one_tensor():
    model = tiny_llama()
    score(Trunk(model), [Answered([Q], [A, EOS])], pad_id=EOS).log_probs.sum().backward()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.grad.abs().sum() > 0


class TestRefusals:
    @pytest.mark.parametrize("temperature", [0, 0.0, -1.0, math.nan])
    def test_a_temperature_that_scores_nothing(self, temperature):
        with pytest.raises(ValueError, match=r"temperature \("):
            score(Trunk(random_gpt2()), ROWS, pad_id=0, temperature=temperature)

    @pytest.mark.parametrize("row", [Answered([], [3]), Answered([3], [])])
    def test_a_prompt_or_completion_of_no_token(self, row):
        """Silently, the first token of a neighbour would be read at the last place of the row."""
        with pytest.raises(ValueError, match="at least one"):
            score(Trunk(random_gpt2()), [ROWS[0], row], pad_id=0)


class TestSumByRow:
    def test_by_hand(self):
        values = torch.tensor([1.0, 2.0, 4.0, 8.0])
        assert sum_by_row(values, torch.tensor([0, 0, 2, 0]), 4).tolist() == [11, 0, 4, 0]

    def test_what_is_no_number_stays_in_its_row(self):
        """C20: nothing is masked by multiplication."""
        for bad in (-math.inf, math.nan):
            values = torch.tensor([-1.0, bad], requires_grad=True)
            sums = sum_by_row(values, torch.tensor([0, 1]), 2)
            assert sums[0].item() == -1.0
            sums[0].backward()
            assert values.grad.tolist() == [1.0, 0.0]


class TestK3:
    def test_by_hand(self):
        """d = ln(q/p): exp(d) - d - 1 at d = 0, ln 2, -ln 2."""
        policy = torch.tensor([-1.0, -1.0, -1.0])
        reference = policy + torch.tensor([0.0, math.log(2), -math.log(2)])
        expected = [0, 2 - math.log(2) - 1, 0.5 + math.log(2) - 1]
        assert k3(policy, reference).tolist() == pytest.approx(expected, abs=1e-6)

    def test_exactly_zero_where_they_agree(self):
        log_probs = -torch.rand(50) * 20
        assert (k3(log_probs, log_probs.clone()) == 0).all()

    @pytest.mark.parametrize("size", [20.0, 1.0, 1e-2, 1e-3, 1e-4])
    def test_exact_and_never_negative(self, size):
        """Also where the two hardly differ: d squared / 2 must not drown in the rounding of 1."""
        generator = torch.Generator().manual_seed(0)
        policy = -torch.rand(2000, generator=generator)
        reference = policy + size * (torch.rand(2000, generator=generator) - 0.5)
        found = k3(policy, reference)
        difference = (reference - policy).double()
        assert (found >= 0).all()
        assert found.double().mean().item() == pytest.approx(
            (torch.expm1(difference) - difference).mean().item(), rel=1e-3
        )

    def test_its_mean_under_the_policy_is_the_divergence(self):
        """KL(p || q) of (.5, .25, .25) and (.25, .5, .25), tokens weighted by p."""
        p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
        assert (p * k3(p.log(), q.log())).sum().item() == pytest.approx(
            (p * (p / q).log()).sum().item(), abs=1e-6
        )


class TestMicroBatches:
    @pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 100])
    @pytest.mark.parametrize("count", [0, 1, 2, 7, 50])
    def test_every_row_once(self, size, count):
        generator = torch.Generator().manual_seed(count)
        lengths = torch.randint(1, 700, (count,), generator=generator).tolist()
        batches = list(micro_batches(lengths, size, CPU))
        assert sorted(row for rows in batches for row in rows) == list(range(count))
        assert all(batches)
        if size is not None:
            assert all(len(rows) == size for rows in batches[:-1])
            assert all(len(rows) <= size for rows in batches)

    @pytest.mark.parametrize("size", [0, -1])
    def test_a_size_below_one(self, size):
        with pytest.raises(ValueError, match=rf"micro_batch_size \({size}\)"):
            list(micro_batches([1, 2], size, CPU))

    def test_longest_first_and_alike_together(self):
        batches = list(micro_batches([3, 9, 1, 8, 2, 9], 2, CPU))
        assert batches == [[1, 5], [3, 0], [4, 2]]

    def test_left_to_itself_it_bounds_the_padded_tokens(self):
        lengths = [10] * 100 + [300] * 5 + [5000]
        batches = list(micro_batches(lengths, None, CPU))
        padded = [len(rows) * max(lengths[row] for row in rows) for rows in batches]
        assert batches[0] == [105]  # too long for any bound: alone
        assert max(padded[1:]) <= 512
        assert len(batches) < 20

    def test_lengths_of_zero(self):
        batches = list(micro_batches([0, 0, 0], None, CPU))
        assert sorted(row for rows in batches for row in rows) == [0, 1, 2]
