"""Batched, cached decoding against a slow loop without a batch and without a cache."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from transformers import GenerationConfig, MambaConfig, MambaForCausalLM

from marlogue.agents import (
    Generated,
    SamplingParams,
    TransformersBackend,
    end_token_ids,
    sample_tokens,
    tiny_model,
    uniforms,
)
from tests.support.architectures import ARCHITECTURES, EOS, build
from tests.support.cf import cf_model, cf_tokenizer, random_gpt2

# Lengths from 1 to 20, some more than once, some prompts equal, ids that pad or end among them.
PROMPTS = [
    (5, 6, 7),
    (2,),
    (9,) * 20,
    (5, 6, 7),
    (2, 2, 1, 1, 2, 2, 30),
    (8, 3),
    (31, 30, 29, 28, 27, 26, 25, 24, 23, 22),
    (5, 6, 7),
    (1, 2, 3),
]
STREAMS = [(11, k) for k in range(len(PROMPTS))]


def backend(model, *, end_ids=(EOS,), batch_size=64, **settings):
    settings = {"pad_id": 0, **settings}
    return TransformersBackend(model, end_ids=frozenset(end_ids), batch_size=batch_size, **settings)


@torch.no_grad()
def reference(model, prompt, params, stream, end_ids=(EOS,)):
    """One completion, a whole forward pass per token."""
    numbers = uniforms([stream], params.max_new_tokens)[0]
    ids = list(prompt)
    for step in range(params.max_new_tokens):
        logits = model(torch.tensor([ids]), use_cache=False).logits[:, -1].clone()
        if step < params.min_new_tokens:
            logits[:, list(end_ids)] = -torch.inf
        token = sample_tokens(logits, numbers[step : step + 1], params).item()
        ids.append(token)
        if token in end_ids:
            return Generated(tuple(ids[len(prompt) :]), truncated=False)
    return Generated(tuple(ids[len(prompt) :]), truncated=True)


def cf_generate(p, params, count=200, *, prompt=(3, 4), **settings):
    model, _ = cf_model(p)
    streams = [(0, k) for k in range(count)]
    return backend(model, **settings).generate([prompt] * count, params, streams)


@pytest.mark.parametrize("name", ARCHITECTURES)
class TestArchitectures:
    def test_equals_the_slow_loop(self, name):
        model = build(name)
        params = SamplingParams(max_new_tokens=12, temperature=0.8)
        found = backend(model).generate(PROMPTS, params, STREAMS)
        expected = [
            reference(model, prompt, params, stream)
            for prompt, stream in zip(PROMPTS, STREAMS, strict=True)
        ]
        assert found == expected
        assert len({answer.ids for answer in found}) > len(PROMPTS) - 2

    def test_a_completion_does_not_depend_on_its_batch(self, name):
        model = build(name)
        params = SamplingParams(max_new_tokens=10)
        together = backend(model).generate(PROMPTS, params, STREAMS)
        for batch_size in (1, 2, 4):
            assert backend(model, batch_size=batch_size).generate(PROMPTS, params, STREAMS) == (
                together
            )
        for row, answer in enumerate(together):
            alone = backend(model).generate([PROMPTS[row]], params, [STREAMS[row]])
            assert alone == [answer]


class TestBatches:
    def test_order_and_company_change_nothing(self):
        model = random_gpt2(scale=3.0)
        params = SamplingParams(max_new_tokens=12)
        together = backend(model).generate(PROMPTS, params, STREAMS)
        for rows in ([8, 7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 7], [2, 1], [4, 4, 4]):
            some = backend(model, batch_size=5).generate(
                [PROMPTS[row] for row in rows], params, [STREAMS[row] for row in rows]
            )
            assert some == [together[row] for row in rows]

    def test_the_padding_id_changes_nothing(self):
        model = random_gpt2(scale=3.0)
        params = SamplingParams(max_new_tokens=8)
        first, second, third = (
            backend(model, pad_id=pad_id).generate(PROMPTS, params, STREAMS)
            for pad_id in (0, EOS, 31)
        )
        assert first == second == third

    def test_repeated_prompts_are_sampled_apart(self):
        model = random_gpt2(scale=1.0)
        params = SamplingParams(max_new_tokens=6)
        streams = [(k,) for k in range(40)]
        found = backend(model).generate([(3, 4)] * 40, params, streams)
        assert len({answer.ids for answer in found}) > 35
        assert found[7] == reference(model, (3, 4), params, (7,))

    def test_one_stream_gives_one_completion(self):
        model = random_gpt2(scale=1.0)
        found = backend(model, batch_size=2).generate(
            [(3, 4)] * 5, SamplingParams(max_new_tokens=6), [(1, 2)] * 5
        )
        assert len(set(found)) == 1

    def test_a_lower_limit_gives_the_beginning(self):
        model = random_gpt2(scale=3.0)
        long, short = (
            backend(model).generate(PROMPTS, SamplingParams(max_new_tokens=limit), STREAMS)
            for limit in (12, 5)
        )
        assert [answer.ids for answer in short] == [answer.ids[:5] for answer in long]

    def test_nothing_to_do(self):
        assert backend(random_gpt2()).generate([], SamplingParams(), []) == []

    def test_a_stream_per_prompt_or_an_error(self):
        with pytest.raises(ValueError, match=r"streams \(1\).*\(2\)"):
            backend(random_gpt2()).generate([(3,), (4,)], SamplingParams(), [(0,)])

    def test_batch_size_is_checked(self):
        with pytest.raises(ValueError, match=r"generation_batch_size \(0\)"):
            backend(random_gpt2(), batch_size=0)

    @pytest.mark.parametrize(
        "settings",
        [{"top_k": 3}, {"top_p": 0.7}, {"top_k": 5, "top_p": 0.6}, {"temperature": 0}],
        ids=str,
    )
    def test_restricted_sampling_equals_the_slow_loop(self, settings):
        model = random_gpt2(scale=3.0)
        params = SamplingParams(max_new_tokens=8, **settings)
        found = backend(model, batch_size=4).generate(PROMPTS, params, STREAMS)
        assert found == [
            reference(model, prompt, params, stream)
            for prompt, stream in zip(PROMPTS, STREAMS, strict=True)
        ]

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    @pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "gpt2"])
    def test_either_attention(self, name, attention):
        model = build(name)
        model.set_attn_implementation(attention)
        params = SamplingParams(max_new_tokens=8)
        found = backend(model).generate(PROMPTS, params, STREAMS)
        expected = [
            reference(model, prompt, params, stream)
            for prompt, stream in zip(PROMPTS, STREAMS, strict=True)
        ]
        assert found == expected

    def test_greedy_is_the_most_probable_token(self):
        model = random_gpt2(scale=3.0)
        params = SamplingParams(max_new_tokens=8, temperature=0)
        (found,) = backend(model, end_ids=()).generate([(5, 6)], params, [(0,)])
        ids = [5, 6, *found.ids]
        logits = model(torch.tensor([ids])).logits[0]
        assert logits[1:-1].argmax(-1).tolist() == list(found.ids)


class TestEnds:
    P = (0.4, 0.3, 0.3)

    def test_ends_at_the_end_token_and_keeps_it(self):
        found = cf_generate(self.P, SamplingParams(max_new_tokens=30))
        lengths = [len(answer.ids) for answer in found]
        assert {1, 2, 3, 4} < set(lengths)
        for ids, truncated in found:
            assert not truncated
            assert ids[-1] == EOS
            assert EOS not in ids[:-1]
        # Geometric with p = .3.
        assert sum(lengths) / len(lengths) == pytest.approx(1 / 0.3, abs=1.0)

    def test_cut_at_the_limit(self):
        """C05: no end token is invented; the length is the limit and the flag says so."""
        found = cf_generate((0.5, 0.5), SamplingParams(max_new_tokens=4), count=20)
        for ids, truncated in found:
            assert truncated
            assert len(ids) == 4
            assert set(ids) <= {0, 1}

    def test_an_end_token_exactly_at_the_limit_is_an_end(self):
        found = cf_generate(self.P, SamplingParams(max_new_tokens=2))
        ended = [ids for ids, truncated in found if len(ids) == 2 and not truncated]
        cut = [ids for ids, truncated in found if truncated]
        assert ended
        assert cut
        assert all(ids[-1] == EOS for ids in ended)
        assert all(len(ids) == 2 and EOS not in ids for ids in cut)

    def test_a_limit_of_one(self):
        found = cf_generate(self.P, SamplingParams(max_new_tokens=1))
        assert {answer.ids for answer in found} == {(0,), (1,), (2,)}
        assert all(answer.truncated == (answer.ids != (EOS,)) for answer in found)

    def test_all_end_at_once(self):
        found = cf_generate((0, 0, 1.0), SamplingParams(max_new_tokens=9), count=5)
        assert found == [Generated((EOS,), truncated=False)] * 5

    def test_several_end_tokens(self):
        params = SamplingParams(max_new_tokens=30)
        found = cf_generate((0.3, 0.2, 0.2, 0.3), params, end_ids=(EOS, 1))
        assert {answer.ids[-1] for answer in found} == {1, EOS}
        assert all(not set(answer.ids[:-1]) & {1, EOS} for answer in found)

    def test_no_end_token(self):
        found = cf_generate(self.P, SamplingParams(max_new_tokens=6), count=30, end_ids=())
        assert all(answer.truncated and len(answer.ids) == 6 for answer in found)
        assert any(EOS in answer.ids for answer in found)

    def test_an_end_token_in_the_prompt_ends_nothing(self):
        params = SamplingParams(max_new_tokens=3)
        found = cf_generate((0.5, 0.5), params, count=3, prompt=(2, 3, 2, 2))
        assert all(len(answer.ids) == 3 for answer in found)

    @pytest.mark.parametrize("minimum", [1, 3, 6])
    def test_min_new_tokens(self, minimum):
        params = SamplingParams(max_new_tokens=6, min_new_tokens=minimum)
        found = cf_generate((0.1, 0.1, 0.8), params)
        assert all(EOS not in answer.ids[:minimum] for answer in found)
        lengths = {len(answer.ids) for answer in found}
        assert min(lengths) == min(minimum + 1, 6)
        assert {answer.truncated for answer in found} == ({True} if minimum == 6 else {False}) or (
            minimum == 3 and {answer.truncated for answer in found} == {False, True}
        )

    def test_min_new_tokens_leaves_the_other_proportions(self):
        """Of (.4, .1, .5) without the end token: .8 and .2."""
        params = SamplingParams(max_new_tokens=1, min_new_tokens=1)
        found = cf_generate((0.4, 0.1, 0.5), params, count=4000)
        share = sum(answer.ids == (0,) for answer in found) / 4000
        assert share == pytest.approx(0.8, abs=5 * (0.8 * 0.2 / 4000) ** 0.5)

    def test_min_new_tokens_forbids_every_end_token(self):
        params = SamplingParams(max_new_tokens=4, min_new_tokens=2)
        found = cf_generate((0.2, 0.4, 0.4), params, end_ids=(1, EOS))
        assert all(answer.ids[:2] == (0, 0) for answer in found)

    def test_sequences_that_end_at_different_times_equal_the_slow_loop(self):
        """About one in three tokens ends a sequence, so that the batch shrinks at every step."""
        end_ids = tuple(range(2, 13))
        for name in ("gpt2", "mistral", "gemma2", "bloom"):
            model = build(name, scale=2.0)
            params = SamplingParams(max_new_tokens=9, min_new_tokens=1)
            prompts = [PROMPTS[k % len(PROMPTS)] for k in range(24)]
            streams = [(3, k) for k in range(24)]
            found = backend(model, end_ids=end_ids).generate(prompts, params, streams)
            assert len({len(answer.ids) for answer in found}) >= 4
            assert found == [
                reference(model, prompt, params, stream, end_ids)
                for prompt, stream in zip(prompts, streams, strict=True)
            ]


class TestEndTokenIds:
    def test_one_place(self):
        model, tokenizer = cf_model((0.5, 0.5))
        assert end_token_ids(model, tokenizer) == {EOS}

    def test_all_places(self):
        model, tokenizer = cf_model((0.5, 0.5))
        model.config.eos_token_id = 3
        model.generation_config.eos_token_id = [4, 1]
        assert end_token_ids(model, tokenizer) == {1, 2, 3, 4}

    def test_lists_and_nothing(self):
        model, tokenizer = cf_model((0.5, 0.5))
        model.config.eos_token_id = [0, 5]
        model.generation_config.eos_token_id = None
        tokenizer.eos_token = None
        assert end_token_ids(model, tokenizer) == {0, 5}
        model.config.eos_token_id = None
        assert end_token_ids(model, tokenizer) == frozenset()

    def test_id_zero_counts(self):
        model, tokenizer = cf_model((0.5, 0.5))
        model.config.eos_token_id = 0
        model.generation_config.eos_token_id = 0
        assert end_token_ids(model, tokenizer) == {0, 2}

    def test_a_model_without_a_generation_config(self):
        model, _ = cf_model((0.5, 0.5))
        model.generation_config = None
        assert end_token_ids(model, cf_tokenizer()) == {EOS}


class TestCheckpointSettings:
    """C09: what a checkpoint says about sampling plays no part, and is not changed."""

    HOSTILE: dict = {  # noqa: RUF012
        "top_k": 1,
        "temperature": 0.01,
        "repetition_penalty": 1.3,
        "top_p": 0.1,
        "do_sample": True,
        "min_new_tokens": 40,
        "max_new_tokens": 2,
        "no_repeat_ngram_size": 1,
        "bad_words_ids": [[5]],
        "suppress_tokens": [6, 7],
        "num_return_sequences": 3,
    }

    def test_the_checkpoint_says_nothing_about_sampling(self):
        words = [f"w{k}" for k in range(300)]
        model, tokenizer = tiny_model(words, n_positions=64)
        params = SamplingParams(max_new_tokens=32)
        streams = [(k,) for k in range(20)]
        ends = end_token_ids(model, tokenizer)
        plain = backend(model, end_ids=ends).generate([(0, 1)] * 20, params, streams)
        distinct = {token for answer in plain for token in answer.ids}
        assert len(distinct) > 200

        eos = model.generation_config.eos_token_id
        model.generation_config = GenerationConfig(eos_token_id=eos, **self.HOSTILE)
        before = copy.deepcopy(model.generation_config.to_dict())
        config = copy.deepcopy(model.config.to_dict())
        hostile = backend(model, end_ids=end_token_ids(model, tokenizer))
        assert hostile.generate([(0, 1)] * 20, params, streams) == plain
        assert model.generation_config.to_dict() == before
        assert model.config.to_dict() == config

    def test_the_list_of_end_tokens_is_read(self):
        model, tokenizer = cf_model((0.4, 0.3, 0.3))
        model.generation_config.eos_token_id = [1, 2]
        found = backend(model, end_ids=end_token_ids(model, tokenizer)).generate(
            [(3,)] * 50, SamplingParams(max_new_tokens=20), [(k,) for k in range(50)]
        )
        assert {answer.ids[-1] for answer in found} == {1, 2}
        assert all(set(answer.ids[:-1]) <= {0} for answer in found)


class TestTheModelAfterwards:
    def test_train_mode_is_left_outside_and_given_back(self):
        """Dropout plays no part; every module's flag is as it was."""
        model = random_gpt2(dropout=0.5, scale=3.0)
        params = SamplingParams(max_new_tokens=8)
        expected = backend(model).generate(PROMPTS, params, STREAMS)
        model.train()
        model.transformer.h[0].eval()
        before = [module.training for module in model.modules()]
        assert backend(model).generate(PROMPTS, params, STREAMS) == expected
        assert [module.training for module in model.modules()] == before

    def test_no_graph_no_gradient_no_change(self):
        model = random_gpt2()
        before = copy.deepcopy(model.state_dict())
        backend(model).generate(PROMPTS, SamplingParams(max_new_tokens=4), STREAMS)
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())

    def test_the_global_generator_is_left_alone(self):
        torch.manual_seed(3)
        before = torch.get_rng_state()
        backend(random_gpt2()).generate(PROMPTS, SamplingParams(max_new_tokens=4), STREAMS)
        assert torch.equal(torch.get_rng_state(), before)

    def test_weights_that_are_nan_are_reported(self):
        model = random_gpt2()
        ours = backend(model)
        with torch.no_grad():
            model.transformer.ln_f.weight.fill_(float("nan"))
        with pytest.raises(FloatingPointError, match="not finite"):
            ours.generate([(3,)], SamplingParams(max_new_tokens=2), [(0,)])


class TestContext:
    def test_prompt_and_completion_may_fill_the_context(self):
        model = random_gpt2(n_positions=16, scale=3.0)
        params = SamplingParams(max_new_tokens=6)
        prompt = tuple(range(3, 13))
        (found,) = backend(model, end_ids=()).generate([prompt], params, [(0,)])
        assert found == reference(model, prompt, params, (0,), end_ids=())
        assert len(found.ids) == 6

    def test_very_unequal_prompts_may_fill_the_context(self):
        """Left padding must not push the short prompt's positions out of the model's table."""
        model = random_gpt2(n_positions=48, scale=3.0)
        params = SamplingParams(max_new_tokens=8)
        prompts = [(3,), (*range(31, -1, -1), *(4,) * 8)]
        streams = [(0,), (1,)]
        found = backend(model, end_ids=()).generate(prompts, params, streams)
        assert found == [
            reference(model, prompt, params, stream, end_ids=())
            for prompt, stream in zip(prompts, streams, strict=True)
        ]


class TestDecodingCopy:
    def test_follows_the_model_when_synchronised(self):
        model = random_gpt2(scale=3.0)
        ours = backend(model, dtype=torch.bfloat16)
        params = SamplingParams(max_new_tokens=12)

        def bf16_reference():
            plain = copy.deepcopy(model).to(torch.bfloat16)
            return backend(plain).generate(PROMPTS, params, STREAMS)

        first = ours.generate(PROMPTS, params, STREAMS)
        assert first == bf16_reference()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9).add_(0.05)
        assert ours.generate(PROMPTS, params, STREAMS) == first  # still the old weights
        ours.sync(model)
        second = ours.generate(PROMPTS, params, STREAMS)
        assert second == bf16_reference()
        assert second != first

    def test_shares_nothing_with_the_model_and_is_not_trained(self):
        model = build("llama")
        ours = backend(model, dtype=torch.bfloat16)
        copies = list(ours.trunk.model.parameters())
        assert {parameter.dtype for parameter in copies} == {torch.bfloat16}
        assert not any(parameter.requires_grad for parameter in copies)
        assert not {p.data_ptr() for p in copies} & {p.data_ptr() for p in model.parameters()}
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert all(parameter.requires_grad for parameter in model.parameters())

    def test_tied_embeddings_stay_tied(self):
        model = build("llama")
        ours = backend(model, dtype=torch.bfloat16)
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(2)
        ours.sync(model)
        copied = ours.trunk.model
        assert copied.lm_head.weight is copied.model.embed_tokens.weight
        expected = model.lm_head.weight.to(torch.bfloat16)
        assert torch.equal(copied.lm_head.weight, expected)

    def test_without_a_dtype_the_model_itself_decodes(self):
        model = random_gpt2(scale=3.0)
        for ours in (backend(model), backend(model, dtype=torch.float32)):
            assert ours.trunk.model is model
            params = SamplingParams(max_new_tokens=8)
            first = ours.generate(PROMPTS, params, STREAMS)
            with torch.no_grad():
                model.transformer.wte.weight.neg_()
            ours.sync(model)
            second = ours.generate(PROMPTS, params, STREAMS)
            assert second != first
            assert second[0] == reference(model, PROMPTS[0], params, STREAMS[0])


class TestConstruction:
    def test_recurrent_models_are_refused(self):
        """Padding would flow through the state into what is sampled, and nothing would say so."""
        config = MambaConfig(
            vocab_size=32,
            hidden_size=16,
            state_size=4,
            num_hidden_layers=1,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=0,
        )
        with pytest.raises(ValueError, match="MambaForCausalLM"):
            backend(MambaForCausalLM(config))

    def test_a_dtype_is_a_torch_dtype(self):
        with pytest.raises(TypeError, match=r"generation_dtype \('bfloat16'\)"):
            backend(random_gpt2(), dtype="bfloat16")

    def test_end_tokens_that_the_model_cannot_say(self):
        """An end token added to the tokenizer alone; the smallest and largest real ids count."""
        ours = backend(random_gpt2(), end_ids=(0, 31, 32, 1000))
        params = SamplingParams(max_new_tokens=3, min_new_tokens=1)
        found = ours.generate(PROMPTS, params, STREAMS)
        assert all(answer.ids[0] not in {0, 31} for answer in found)
        assert ours.end_ids == {0, 31}


def test_log_probabilities_of_what_was_sampled_match_its_frequency():
    """All completions of two tokens, sampled often, against their exact probabilities."""
    model = random_gpt2(vocab_size=4, scale=2.0, eos_token_id=2)
    count = 6000
    params = SamplingParams(max_new_tokens=2)
    found = backend(model, batch_size=1000).generate(
        [(3, 1)] * count, params, [(5, k) for k in range(count)]
    )
    tally: dict = {}
    for answer in found:
        tally[answer.ids] = tally.get(answer.ids, 0) + 1
    total = 0.0
    with torch.no_grad():
        for ids in [(EOS,), *itertools.product((0, 1, 3), range(4))]:
            log_probs = model(torch.tensor([[3, 1, *ids]])).logits[0].log_softmax(-1)
            exact = sum(log_probs[1 + k, token] for k, token in enumerate(ids)).exp().item()
            total += exact
            share = tally.pop(ids, 0) / count
            assert abs(share - exact) <= 5 * (exact * (1 - exact) / count) ** 0.5 + 1e-9
    assert total == pytest.approx(1, abs=1e-5)
    assert not tally
