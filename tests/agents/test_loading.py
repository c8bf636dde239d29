"""Models and tokenizers from identifiers and objects, with float32 weights."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from transformers import GPT2LMHeadModel, GPT2Model, LlamaForCausalLM, LlamaModel

from marlogue.agents import (
    load_causal_lm,
    load_tokenizer,
    load_trunk,
    resolve_identifier,
    smollm2_path,
    tiny_model,
)
from tests.support.architectures import build
from tests.support.cf import cf_tokenizer, tiny_llama

LOADERS = [load_causal_lm, load_trunk]
IDS = torch.tensor([[3, 4, 0]])


@pytest.fixture
def folder(tmp_path):
    """A saved model and tokenizer."""
    model, tokenizer = tiny_model(["yes", "no"], seed=3)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


class TestFolders:
    @pytest.mark.parametrize("kind", [str, lambda path: path])
    def test_round_trip(self, folder, kind):
        original, tokenizer = tiny_model(["yes", "no"], seed=3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = load_causal_lm(kind(folder))
        assert isinstance(model, GPT2LMHeadModel)
        assert not model.training
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert torch.equal(model(IDS).logits, original(IDS).logits)
        again = load_tokenizer(kind(folder))
        assert again("yes no maybe")["input_ids"] == tokenizer("yes no maybe")["input_ids"]
        assert again.eos_token_id == tokenizer.eos_token_id

    def test_a_trunk_has_no_head(self, folder):
        original, _ = tiny_model(["yes", "no"], seed=3)
        trunk = load_trunk(folder)
        assert isinstance(trunk, GPT2Model)
        assert trunk.get_output_embeddings() is None
        expected = original.transformer(IDS).last_hidden_state
        assert torch.equal(trunk(IDS).last_hidden_state, expected)

    def test_each_call_gives_a_model_of_its_own(self, folder):
        """C32: independent copies of one identifier."""
        for load in LOADERS:
            first, second = load(folder), load(folder)
            assert not {p.data_ptr() for p in first.parameters()} & {
                p.data_ptr() for p in second.parameters()
            }

    def test_tied_embeddings_stay_tied(self, tmp_path):
        """C73."""
        original = tiny_llama()
        original.save_pretrained(tmp_path)
        model = load_causal_lm(tmp_path)
        assert isinstance(model, LlamaForCausalLM)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert torch.equal(model(IDS).logits, original(IDS).logits)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model(IDS).logits.sum().backward()
        optimizer.step()
        assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
        assert not torch.equal(model.lm_head.weight, original.lm_head.weight)
        assert isinstance(load_trunk(tmp_path), LlamaModel)

    def test_from_pretrained_arguments_are_passed_on(self, tmp_path):
        build("llama").save_pretrained(tmp_path)
        for load in LOADERS:
            model = load(tmp_path, {"attn_implementation": "eager"})
            assert model.config._attn_implementation == "eager"


class TestPrecision:
    """C74: what is trained is float32."""

    def test_a_checkpoint_in_half_precision(self, tmp_path):
        original = tiny_llama().to(torch.bfloat16)
        original.save_pretrained(tmp_path)
        for load in LOADERS:
            model = load(tmp_path)
            assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
            assert model.dtype == torch.float32
        weight = load_causal_lm(tmp_path).lm_head.weight
        assert torch.equal(weight, original.lm_head.weight.float())

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_an_object_in_half_precision(self, dtype):
        model = tiny_llama().to(dtype)
        expected = model.lm_head.weight.float()
        for load in LOADERS:
            with pytest.warns(UserWarning, match=f"{dtype}.*float32") as caught:
                loaded = load(tiny_llama().to(dtype))
            assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
            assert [warning.filename for warning in caught] == [__file__]
        assert torch.equal(loaded.lm_head.weight, expected)
        assert loaded.lm_head.weight is loaded.model.embed_tokens.weight

    @pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16"])
    def test_half_precision_asked_for(self, folder, dtype):
        for load in LOADERS:
            with pytest.warns(UserWarning, match="float32"):
                model = load(folder, {"dtype": dtype})
            assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}

    def test_small_steps_are_not_lost(self):
        """C74: .02 after 100 steps of AdamW at 5e-6 is .0195; in bfloat16 it is .02 still."""
        with pytest.warns(UserWarning, match="float32"):
            model = load_causal_lm(tiny_llama().to(torch.bfloat16))
        weight = model.model.norm.weight
        with torch.no_grad():
            weight.fill_(0.02)
        optimizer = torch.optim.AdamW([weight], lr=5e-6, weight_decay=0.0)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        assert weight[0].item() == pytest.approx(0.0195, abs=1e-6)

    def test_double_precision_is_left_alone(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = load_causal_lm(tiny_llama().double())
        assert model.dtype == torch.float64


class TestObjects:
    def test_an_object_is_used_itself(self):
        for load in LOADERS:
            model = tiny_llama()
            weights = [parameter.data_ptr() for parameter in model.parameters()]
            assert load(model) is model
            assert [parameter.data_ptr() for parameter in model.parameters()] == weights


class TestErrors:
    @pytest.mark.parametrize("load", [*LOADERS, load_tokenizer])
    @pytest.mark.parametrize("name", ["no-such-owner/no-such-model", "/no/such/folder", "", "a b?"])
    def test_the_identifier_is_named(self, load, name):
        with pytest.raises(ValueError, match="could be loaded") as caught:
            load(name)
        assert repr(name) in str(caught.value)
        assert caught.value.__cause__ is not None

    @pytest.mark.parametrize("load", [*LOADERS, load_tokenizer])
    def test_an_empty_folder(self, load, tmp_path):
        with pytest.raises(ValueError, match="could be loaded") as caught:
            load(tmp_path)
        assert str(tmp_path) in str(caught.value)

    @pytest.mark.parametrize("load", LOADERS)
    def test_a_folder_without_weights(self, load, folder):
        (folder / "model.safetensors").unlink()
        with pytest.raises(ValueError, match="could be loaded") as caught:
            load(folder)
        assert str(folder) in str(caught.value)

    @pytest.mark.parametrize("load", LOADERS)
    def test_weights_that_are_cut_short(self, load, folder):
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        with pytest.raises(ValueError, match="could be loaded") as caught:
            load(folder)
        assert str(folder) in str(caught.value)

    def test_weights_without_the_head_that_a_policy_needs(self, tmp_path):
        """Its words would be drawn by chance; a trunk needs no head, and tied ones are there."""
        build("llama_untied").model.save_pretrained(tmp_path / "untied")
        assert isinstance(load_trunk(tmp_path / "untied"), LlamaModel)
        with pytest.raises(ValueError, match=r"lm_head") as caught:
            load_causal_lm(tmp_path / "untied")
        assert str(tmp_path / "untied") in str(caught.value)
        tied = build("llama")
        tied.model.save_pretrained(tmp_path / "tied")
        assert torch.equal(load_causal_lm(tmp_path / "tied")(IDS).logits, tied(IDS).logits)

    @pytest.mark.parametrize("load", LOADERS)
    def test_an_unknown_architecture(self, load, folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "mine"}))
        with pytest.raises(ValueError, match="could be loaded") as caught:
            load(folder)
        assert str(folder) in str(caught.value)

    @pytest.mark.parametrize("load", LOADERS)
    @pytest.mark.parametrize("source", [None, 5, b"smollm2", ["smollm2"], torch.nn.Linear(2, 2)])
    def test_wrong_types_of_models(self, load, source):
        with pytest.raises(TypeError, match=rf"{type(source).__name__}.*identifier"):
            load(source)

    @pytest.mark.parametrize("source", [None, 5, cf_tokenizer(), ["smollm2"]], ids=type)
    def test_wrong_types_of_tokenizers(self, source):
        with pytest.raises(TypeError, match="tokenizer"):
            load_tokenizer(source)


class TestIdentifiers:
    def test_others_pass_as_they_are(self):
        for name in ("gpt2", "owner/model", "./folder", "SmolLM2", ""):
            assert resolve_identifier(name) == name

    @pytest.mark.smollm2
    def test_smollm2(self):
        assert resolve_identifier("smollm2") == str(smollm2_path())
        tokenizer = load_tokenizer("smollm2")
        assert len(tokenizer) == 49152
        trunk = load_trunk("smollm2")
        assert isinstance(trunk, LlamaModel)
        assert trunk.dtype == torch.float32
        assert not trunk.training
