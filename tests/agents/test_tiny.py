"""The tiny model, and the fixtures of tests/support that rest on the same parts."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marlogue.agents.tiny import tiny_model
from tests.support.cf import WORDS, cf_model, random_gpt2, tiny_llama


def test_ids_follow_the_words_and_special_tokens_differ() -> None:
    model, tokenizer = tiny_model(["left", "right", "don't"])
    assert tokenizer("right don't left").input_ids == [1, 2, 0]
    assert tokenizer("left sideways").input_ids == [0, 3]
    assert tokenizer.decode([0, 2, 1]) == "left don't right"
    assert tokenizer.decode([0, 4], skip_special_tokens=True) == "left"
    specials = (tokenizer.unk_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert specials == (3, 4, 5)
    assert len(tokenizer) == model.config.vocab_size == 6
    assert model.generation_config.eos_token_id == 4
    assert model.generation_config.pad_token_id == 5
    assert model.generation_config.do_sample in (None, False)


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generators_alone() -> None:
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    first, _ = tiny_model(["a", "b"], seed=3)
    torch.rand(5)
    torch_state_later = torch.get_rng_state()
    again, _ = tiny_model(["a", "b"], seed=3)
    other, _ = tiny_model(["a", "b"], seed=4)
    assert torch.equal(torch_state_later, torch.get_rng_state())
    torch.set_rng_state(torch_state)
    torch.rand(5)
    assert torch.equal(torch_state_later, torch.get_rng_state()), "the first build drew numbers"
    assert random.getstate() == python_state
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert not torch.equal(first.transformer.wte.weight, other.transformer.wte.weight)


def test_no_dropout_unless_asked() -> None:
    ids = torch.tensor([[0, 1, 0, 1]])
    model, _ = tiny_model(["a", "b"])
    model.train()
    assert torch.equal(model(ids).logits, model(ids).logits)
    model, _ = tiny_model(["a", "b"], dropout=0.5)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)


def test_the_size_of_the_weights() -> None:
    for given, size in (({}, 0.02), ({"initializer_range": 0.2}, 0.2)):
        model, _ = tiny_model([f"w{i}" for i in range(40)], **given)
        assert model.transformer.wte.weight.std().item() == pytest.approx(size, rel=0.1)
        assert model.transformer.h[0].attn.c_attn.weight.std().item() == pytest.approx(
            size, rel=0.1
        )


def test_saved_and_loaded_through_the_auto_classes(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(["a", "b", "c"], seed=1, n_positions=40)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    loaded_tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.tensor([[0, 1, 2, 3]])
    assert torch.equal(model(ids).logits, loaded(ids).logits)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    assert loaded_tokenizer("c zz a").input_ids == tokenizer("c zz a").input_ids == [2, 3, 0]
    assert loaded_tokenizer.decode([2, 0, 4]) == tokenizer.decode([2, 0, 4]) == "c a <eos>"
    for name in ("pad_token_id", "eos_token_id", "unk_token_id", "bos_token_id", "padding_side"):
        assert getattr(loaded_tokenizer, name) == getattr(tokenizer, name), name


def test_it_learns_in_seconds() -> None:
    """Ten words, each to be followed by the next: cross entropy from ln(13) to nearly nothing."""
    words = [f"w{i}" for i in range(10)]
    model, tokenizer = tiny_model(words)
    ids = tokenizer(" ".join(words), return_tensors="pt").input_ids
    before = model(ids, labels=ids).loss.item()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimiser.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimiser.step()
    assert before == pytest.approx(math.log(13), abs=0.1)
    assert model(ids, labels=ids).loss.item() < 0.1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"words": []}, r"words \(\[\]\).*at least one"),
        ({"words": "a b"}, r"words \('a b'\).*set words=\['a', 'b'\]"),
        ({"words": ["a", "a"]}, r"words \('a'\).*differ"),
        ({"words": ["a", "b c"]}, r"words \('b c'\).*white space"),
        ({"words": [" a"]}, r"words \(' a'\).*white space"),
        ({"words": ["a", ""]}, r"words \(''\).*non-empty"),
        ({"words": ["a", 3]}, r"words \(3\).*strings"),
        ({"words": ["a", "<eos>"]}, r"words \('<eos>'\).*special token"),
        ({"words": ["a", "x<pad>"]}, r"words \('x<pad>'\).*special token"),
        ({"words": ["a"], "n_embd": 30, "n_head": 4}, r"n_embd \(30\).*n_head \(4\).*n_embd=32"),
        ({"words": ["a"], "n_layer": 0}, r"n_layer \(0\).*at least 1"),
        ({"words": ["a"], "n_positions": 8.0}, r"n_positions \(8.0\).*integer"),
        ({"words": ["a"], "n_head": True}, r"n_head \(True\).*integer"),
        ({"words": ["a"], "dropout": 1.0}, r"dropout \(1.0\).*\[0, 1\)"),
        ({"words": ["a"], "initializer_range": 0.0}, r"initializer_range \(0.0\).*above 0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        tiny_model(**arguments)  # type: ignore[arg-type]


# The fixtures of tests/support/cf.py: everything else is measured against them.


@pytest.mark.parametrize(
    "p",
    [
        (0.5, 0.25, 0.25),
        {"A": 0.5, "B": 0.5},
        {"</s>": 1.0},
        (0.1, 0.2, 0.3, 0.15, 0.15, 0.1),
    ],
)
def test_cf_distribution_is_p_everywhere(p: dict[str, float] | tuple[float, ...]) -> None:
    model, _ = cf_model(p)
    wanted = torch.zeros(6)
    for i, word in enumerate(WORDS):
        wanted[i] = p.get(word, 0.0) if isinstance(p, dict) else (p + (0.0,) * 6)[i]
    ids = torch.tensor([[3, 4, 0, 1, 2, 5], [5, 5, 2, 2, 0, 0]])
    for training in (False, True):
        model.train(training)
        got = torch.softmax(model(ids, attention_mask=torch.ones_like(ids)).logits, -1)
        assert (got - wanted).abs().max().item() < 1e-6
    assert torch.isfinite(model(ids, attention_mask=torch.ones_like(ids)).logits).all()


def test_cf_log_prob_and_gradient_are_those_on_paper() -> None:
    p = torch.tensor([0.5, 0.25, 0.25, 0.0, 0.0, 0.0])
    model, tokenizer = cf_model(p.tolist())
    prompt, response, advantage = tokenizer("q r").input_ids, [0, 1, 2], 1.75
    assert prompt == [3, 4]
    ids = torch.tensor([prompt + response])
    logits = model(ids, attention_mask=torch.ones_like(ids)).logits[0, 1:-1]
    log_prob = torch.log_softmax(logits, -1).gather(1, torch.tensor(response)[:, None]).sum()
    assert log_prob.item() == pytest.approx(-3.4657, abs=1e-4)
    (-advantage * log_prob).backward()
    count = torch.tensor([1.0, 1, 1, 0, 0, 0])
    gradient = model.transformer.wte.weight.grad
    assert gradient is not None
    assert torch.allclose(gradient[:, 0], -advantage * (count - 3 * p), atol=1e-6)
    assert gradient[:, 1:].abs().max().item() == 0.0


def test_cf_refuses_what_is_no_distribution() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        cf_model((0.5, 0.4))
    with pytest.raises(ValueError, match=r"lacks: \['C'\]"):
        cf_model({"C": 1.0})


def test_random_gpt2_shows_missing_position_ids() -> None:
    """C11: the fixture tells right left padding from wrong (4.8e-7 against more than 1)."""
    model = random_gpt2()
    alone = model(torch.tensor([[5, 6, 7]])).logits[0, -1].log_softmax(-1)
    padded, mask = torch.tensor([[2, 2, 2, 5, 6, 7]]), torch.tensor([[0, 0, 0, 1, 1, 1]])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    right = model(padded, attention_mask=mask, position_ids=positions).logits[0, -1]
    wrong = model(padded, attention_mask=mask, position_ids=torch.arange(6)[None]).logits[0, -1]
    assert (right.log_softmax(-1) - alone).abs().max().item() < 1e-5
    assert (wrong.log_softmax(-1) - alone).abs().max().item() > 0.5


def test_tiny_llama_is_tied() -> None:
    model = tiny_llama()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.tie_word_embeddings
    free = tiny_llama(tie_word_embeddings=False)
    assert free.lm_head.weight is not free.model.embed_tokens.weight
