"""Evaluation and update mode, borrowed and given back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import FalconConfig, FalconForCausalLM, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from marlogue.agents import Answered, Trunk, eval_mode, score, update_mode
from tests.support.cf import random_gpt2, tiny_llama

ROWS = [Answered([5, 6, 7], [8, 9, 2]), Answered([4], [3, 2])]


def mixed_flags(model: nn.Module) -> list[bool]:
    """Put every third module in training mode; return the flags."""
    for number, module in enumerate(model.modules()):
        module.training = number % 3 == 0
    return flags(model)


def flags(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def with_dropout(name: str):
    """Models with much dropout; in OPT and Falcon a layer drops by itself, too."""
    sizes = {
        "vocab_size": 32,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    if name == "gpt2":
        return random_gpt2(dropout=0.5, scale=2.0)
    torch.manual_seed(0)
    if name == "opt":
        more = {"ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 64}
        return OPTForCausalLM(OPTConfig(**sizes, **more, dropout=0.5, attention_dropout=0.5)).eval()
    dropout = {"hidden_dropout": 0.5, "attention_dropout": 0.5}
    return FalconForCausalLM(FalconConfig(**sizes, **dropout)).eval()


def hooks(model: nn.Module) -> list[int]:
    return [
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    ]


class TestEvalMode:
    def test_restores_every_module_as_it_was(self):
        model = random_gpt2()
        before = mixed_flags(model)
        with eval_mode(model):
            assert not any(flags(model))
        assert flags(model) == before

    def test_restores_after_an_exception_and_lets_it_pass(self):
        model = random_gpt2()
        before = mixed_flags(model)
        with pytest.raises(KeyError, match="mine"), eval_mode(model):
            raise KeyError("mine")
        assert flags(model) == before

    def test_several_models_nested_and_shared(self):
        first, second = random_gpt2(), tiny_llama()
        before = mixed_flags(first), mixed_flags(second)
        with eval_mode(first, second, first.transformer):
            with eval_mode(second):
                assert not any(flags(first) + flags(second))
            assert not any(flags(first) + flags(second))
        assert (flags(first), flags(second)) == before

    def test_nothing(self):
        with eval_mode():
            pass


class TestUpdateMode:
    @pytest.mark.parametrize("checkpointing", [False, True])
    @pytest.mark.parametrize("fails", [False, True])
    def test_restores_flags_and_leaves_no_hook(self, checkpointing, fails):
        models = [random_gpt2(), tiny_llama(vocab_size=32)]
        before = [mixed_flags(model) for model in models]
        hooked = [hooks(model) for model in models]
        attributes = [vars(module).keys() for model in models for module in model.modules()]
        attributes = [set(names) for names in attributes]
        try:
            with update_mode(*models, checkpointing=checkpointing):
                for model in models:
                    score(Trunk(model), ROWS, pad_id=0).log_probs.sum().backward()
                if fails:
                    raise RuntimeError("mine")
        except RuntimeError as error:
            assert fails
            assert str(error) == "mine"  # noqa: PT017
        assert [flags(model) for model in models] == before
        assert [hooks(model) for model in models] == hooked
        after = [set(vars(module)) for model in models for module in model.modules()]
        assert after == attributes

    def test_restores_after_a_failure_inside_a_layer(self):
        model = random_gpt2()
        before = mixed_flags(model)
        trunk = Trunk(model)
        with pytest.raises(IndexError), update_mode(model, checkpointing=True):
            score(trunk, [Answered([3] * 70, [2])], pad_id=0)  # beyond the context
        assert flags(model) == before
        log_probs = score(trunk, ROWS, pad_id=0).log_probs
        with update_mode(model, checkpointing=True):
            torch.testing.assert_close(score(trunk, ROWS, pad_id=0).log_probs, log_probs)

    @pytest.mark.parametrize("checkpointing", [False, True])
    @pytest.mark.parametrize("name", ["gpt2", "opt", "falcon"])
    def test_there_is_no_dropout(self, name, checkpointing):
        """The policy that is scored is the one that was sampled; in the backward pass as well."""
        model = with_dropout(name)
        trunk = Trunk(model)

        def gradients(log_probs):
            model.zero_grad()
            log_probs.sum().backward()
            return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

        expected = score(trunk, ROWS, pad_id=0).log_probs
        expected_gradients = gradients(expected)
        model.train()
        assert not torch.allclose(score(trunk, ROWS, pad_id=0).log_probs, expected)
        with update_mode(model, checkpointing=checkpointing):
            with torch.no_grad():
                assert torch.equal(score(trunk, ROWS, pad_id=0).log_probs, expected)
            found = score(trunk, ROWS, pad_id=0).log_probs
            found_gradients = gradients(found)
        assert torch.equal(found, expected)
        assert found_gradients.keys() == expected_gradients.keys()
        for name_, gradient in expected_gradients.items():
            torch.testing.assert_close(found_gradients[name_], gradient)

    @pytest.mark.parametrize(("checkpointing", "passes"), [(True, 2), (False, 1)])
    @pytest.mark.parametrize("switched_on", [False, True], ids=["ours alone", "transformers' too"])
    @pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")
    def test_layers_are_computed_again_only_with_checkpointing(
        self, checkpointing, passes, switched_on
    ):
        """Whatever transformers' own switch says."""
        for model in (random_gpt2(), tiny_llama(vocab_size=32)):
            if switched_on:
                model.gradient_checkpointing_enable()
            counts: list[int] = []
            layers = (
                model.transformer.h if isinstance(model, GPT2LMHeadModel) else model.model.layers
            )
            for number, layer in enumerate(layers):
                # Before and not after: what is computed again stops at the last tensor needed.
                layer.mlp.register_forward_pre_hook(lambda *_, k=number, c=counts: c.append(k))
            trunk = Trunk(model)
            counts.clear()
            with update_mode(model, checkpointing=checkpointing):
                scores = score(trunk, ROWS, pad_id=0)
                assert counts == [0, 1]
                scores.log_probs.sum().backward()
            assert sorted(counts) == sorted([0, 1] * passes)

    def test_a_forward_that_somebody_else_put_there_stays(self):
        """Accelerate, for one, replaces `forward` on the modules of a model that it spreads."""
        model = random_gpt2()
        layer = model.transformer.h[0]
        calls: list[int] = []
        original = layer.forward

        def theirs(*args, **kwargs):
            calls.append(1)
            return original(*args, **kwargs)

        layer.forward = theirs
        trunk = Trunk(model)
        with update_mode(model, checkpointing=True):
            calls.clear()
            score(trunk, ROWS, pad_id=0).log_probs.sum().backward()
            assert len(calls) == 2
        assert layer.forward is theirs

    def test_checkpointing_keeps_less(self):
        """Tensors kept for the backward pass: what the feature is for."""
        model = random_gpt2(n_layer=6)
        trunk = Trunk(model)
        kept = {}
        for checkpointing in (False, True):
            saved: list[int] = []

            def keep(tensor, saved=saved):
                saved.append(tensor.numel())
                return tensor

            with (
                update_mode(model, checkpointing=checkpointing),
                torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            ):
                score(trunk, [Answered([3] * 30, [4] * 30)] * 8, pad_id=0)
            kept[checkpointing] = sum(saved)
        assert kept[True] < kept[False] / 3
