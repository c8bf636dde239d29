"""Hidden states, logits and padding; which models are run whole, and which are refused."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    BertModel,
    RobertaConfig,
    RobertaForCausalLM,
)
from transformers.utils import logging as transformers_logging

from marlogue.agents import Answered, Trunk, pad, score
from tests.support.architectures import ARCHITECTURES, VOCABULARY, build, has_plain_head
from tests.support.cf import cf_model, random_gpt2, tiny_llama

CPU = torch.device("cpu")
SEQUENCES = [[5, 6, 7], [2, 2, 2, 2], [9], [1, 0, 31, 30, 2, 4, 4, 17, 3]]


class CountingHead:
    """Counts the rows that go through a model's head."""

    def __init__(self, model):
        self.rows = 0
        model.get_output_embeddings().register_forward_hook(self.count)

    def count(self, module, inputs, output):
        self.rows += output[..., 0].numel()


class TestPad:
    def test_on_the_right(self):
        batch = pad([[5, 6], [7], [2, 2, 2]], pad_id=2, device=CPU)
        assert batch.ids.tolist() == [[5, 6, 2], [7, 2, 2], [2, 2, 2]]
        assert batch.mask.tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
        assert batch.positions[0, :2].tolist() == [0, 1]
        assert batch.positions[2].tolist() == [0, 1, 2]

    def test_on_the_left(self):
        batch = pad([[5, 6], [7], [2, 2, 2]], pad_id=2, device=CPU, left=True)
        assert batch.ids.tolist() == [[2, 5, 6], [2, 2, 7], [2, 2, 2]]
        assert batch.mask.tolist() == [[0, 1, 1], [0, 0, 1], [1, 1, 1]]
        assert batch.positions.tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 2]]

    def test_positions_stay_inside_the_table(self):
        for left in (False, True):
            batch = pad(SEQUENCES, pad_id=0, device=CPU, left=left)
            assert batch.positions.min() == 0
            assert batch.positions.max() == 8

    def test_the_mask_comes_from_lengths(self):
        """C04: a padding id inside a sequence is a token."""
        batch = pad([[2, 2, 5, 2], [2]], pad_id=2, device=CPU, left=True)
        assert batch.mask.sum(-1).tolist() == [4, 1]

    def test_tuples_and_integers_of_any_kind(self):
        batch = pad([(5, 6), torch.tensor([7])], pad_id=0, device=CPU)
        assert batch.ids.tolist() == [[5, 6], [7, 0]]
        assert {field.dtype for field in batch} == {torch.int64}


def test_left_padding_keeps_absolute_positions():
    """C11: [5, 6, 7] alone, and behind three padding tokens."""
    model = random_gpt2()
    trunk = Trunk(model)
    with torch.no_grad():
        alone = model(torch.tensor([[5, 6, 7]])).logits[0, -1].log_softmax(-1)
        batch = pad([[5, 6, 7], [8] * 6], pad_id=2, device=CPU, left=True)
        padded = trunk.next_logits(batch, trunk.new_cache())[0].log_softmax(-1)
        # The fault that this is about is large on this model.
        ids, mask = batch.ids[:1], batch.mask[:1]
        without = model(ids, attention_mask=mask, position_ids=torch.arange(6)[None]).logits
    assert (padded - alone).abs().max() < 1e-5
    assert (without[0, -1].log_softmax(-1) - alone).abs().max() > 0.5


@pytest.mark.parametrize("name", ARCHITECTURES)
class TestArchitectures:
    def test_next_logits_step_by_step(self, name):
        """Prompts of very unequal length, padded on the left, then five tokens from the cache."""
        model = build(name)
        trunk = Trunk(model)
        more = torch.tensor([[3, 4, 5, 2, 6], [31, 2, 2, 1, 9], [0, 0, 7, 7, 7], [8, 9, 10, 11, 2]])
        with torch.no_grad():
            batch = pad(SEQUENCES, pad_id=0, device=CPU, left=True)
            cache = trunk.new_cache()
            logits = trunk.next_logits(batch, cache)
            for step in range(6):
                for row, sequence in enumerate(SEQUENCES):
                    ids = torch.tensor([[*sequence, *more[row, :step].tolist()]])
                    expected = model(ids, use_cache=False).logits[0, -1]
                    torch.testing.assert_close(logits[row], expected, atol=1e-3, rtol=1e-3)
                if step == 5:
                    break
                mask = torch.cat([batch.mask, torch.ones(4, 1, dtype=torch.long)], dim=-1)
                positions = batch.positions[:, -1:] + 1
                batch = type(batch)(more[:, step : step + 1], mask, positions)
                logits = trunk.next_logits(batch, cache)

    def test_last_hidden(self, name):
        model = build(name)
        with torch.no_grad():
            found = Trunk(model).last_hidden(SEQUENCES, pad_id=2)
            for row, sequence in enumerate(SEQUENCES):
                output = model.base_model(torch.tensor([sequence]), use_cache=False)
                torch.testing.assert_close(
                    found[row], output.last_hidden_state[0, -1], atol=2e-4, rtol=2e-4
                )

    def test_logits_only_where_they_are_asked_for(self, name):
        model = build(name)
        trunk = Trunk(model)
        head = CountingHead(model)
        batch = pad(SEQUENCES, pad_id=0, device=CPU)
        select = torch.zeros_like(batch.mask, dtype=torch.bool)
        select[0, 1] = select[3, 8] = select[3, 0] = True
        with torch.no_grad():
            hidden, logits = trunk.hidden_and_logits(batch, select)
            assert hidden.shape == (4, 9, 16)
            assert logits.shape == (3, VOCABULARY)
            assert head.rows == (3 if has_plain_head(name) else 36)
            for found, ids in zip(logits, ([5, 6], [1], SEQUENCES[3]), strict=True):
                expected = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
                torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


class TestWholeForwardPass:
    @pytest.mark.parametrize("name", ["gemma2", "cohere"])
    def test_what_follows_the_head_is_not_left_out(self, name):
        """Not even where it hardly shows when the trunk is built: tiny logits, barely capped."""
        model = build(name, scale=1.0)
        trunk = Trunk(model)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(200)
            found = score(trunk, [Answered([5, 6, 7], [8, 9])], pad_id=0).token_log_probs
            logits = model(torch.tensor([[5, 6, 7, 8, 9]])).logits[0].log_softmax(-1)
            bare = model.lm_head(model.model(torch.tensor([[5, 6, 7, 8, 9]])).last_hidden_state)
        expected = torch.stack([logits[2, 8], logits[3, 9]])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        assert (bare[0].log_softmax(-1)[2, 8] - expected[0]).abs() > 0.1

    def test_cached_steps_too(self):
        model = build("gemma2", scale=1.0)
        trunk = Trunk(model)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(200)
            batch = pad([[5, 6, 7]], pad_id=0, device=CPU, left=True)
            found = trunk.next_logits(batch, trunk.new_cache())
        assert found.abs().max() <= 3.0


class TestConstruction:
    def test_changes_neither_modes_nor_gradients_nor_the_generator(self):
        model = random_gpt2(dropout=0.5).train()
        torch.manual_seed(4)
        before = torch.get_rng_state()
        Trunk(model)
        assert all(module.training for module in model.modules())
        assert all(parameter.grad is None for parameter in model.parameters())
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("pad_token_id", [0, 1, 2])
    def test_there_is_nothing_to_warn_of(self, pad_token_id, caplog):
        """Where a probe's id pads by chance, transformers suspects padding without a mask."""
        model = random_gpt2()
        model.config.pad_token_id = pad_token_id
        transformers_logging.warning_once.cache_clear()  # said before, it is not said again
        logger = logging.getLogger("transformers")
        logger.addHandler(caplog.handler)
        try:
            Trunk(model)
        finally:
            logger.removeHandler(caplog.handler)
        assert not caplog.records

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_every_architecture_in_other_precisions(self, name, dtype):
        Trunk(build(name, scale=2.0).to(dtype))

    def test_a_model_without_a_head_gives_hidden_states(self, tmp_path):
        model = build("llama")
        model.save_pretrained(tmp_path)
        bare = AutoModel.from_pretrained(tmp_path)
        with torch.no_grad():
            torch.testing.assert_close(
                Trunk(bare).last_hidden(SEQUENCES), Trunk(model).last_hidden(SEQUENCES)
            )

    def test_the_head_is_not_run_for_hidden_states(self):
        model = random_gpt2()
        trunk = Trunk(model)
        head = CountingHead(model)
        trunk.last_hidden(SEQUENCES)
        assert head.rows == 0

    def test_a_vocabulary_of_one(self):
        model, _ = cf_model((1.0,))
        assert Trunk(model).last_hidden([[0]]).shape == (1, 8)

    def test_weights_that_change_later_are_seen(self):
        model = tiny_llama()
        trunk = Trunk(model)
        with torch.no_grad():
            before = trunk.last_hidden([[3, 4]])
            model.model.norm.weight.mul_(2)
            torch.testing.assert_close(trunk.last_hidden([[3, 4]]), 2 * before)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_which_models_are_causal(name):
    assert Trunk(build(name)).is_causal


def test_a_model_that_reads_both_ways():
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1}
    config = BertConfig(**sizes, num_attention_heads=2, intermediate_size=16)
    assert not Trunk(BertModel(config)).is_causal
    assert Trunk(
        BertLMHeadModel(BertConfig(**config.to_diff_dict() | {"is_decoder": True}))
    ).is_causal


class TestRefusals:
    def test_positions_of_its_own_kind(self):
        """Roberta's positions start behind the padding id: with ours, its scores would be wrong."""
        model = RobertaForCausalLM(
            RobertaConfig(
                vocab_size=32,
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=40,
                initializer_range=0.5,
                is_decoder=True,
            )
        )
        with pytest.raises(ValueError, match=r"RobertaForCausalLM.*position"):
            Trunk(model)


def test_a_causal_model_loaded_twice_agrees(tmp_path):
    model = build("qwen2")
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    rows = [Answered([5, 6], [7, 2])]
    with torch.no_grad():
        first, second = (score(Trunk(m), rows, pad_id=0).log_probs for m in (model, again))
    assert torch.equal(first, second)
