"""PooledHidden: prompts as hidden states of a transformers model."""

import copy
import logging
import pickle

import numpy as np
import pytest
import torch
from pettingzoo.test import parallel_api_test
from transformers import AutoModel, GPT2Config, GPT2Model

from marlogue.agents import tiny_model
from marlogue.envs import coordination_v0
from marlogue.wrappers.candidates import CandidateActions
from marlogue.wrappers.embeddings import EmbedObservations
from marlogue.wrappers.hidden_states import PooledHidden
from tests.support.envs import LeaverEnv

WORDS = coordination_v0.VOCABULARY


def parts(**settings):
    return tiny_model(WORDS, **{"n_embd": 16, "n_positions": 8, **settings})


def states(model, tokenizer, prompt):
    """Hidden states [L, D], by transformers alone."""
    with torch.no_grad():
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        return model(ids, output_hidden_states=True).hidden_states[-1][0].numpy()


@pytest.mark.parametrize("prompt", ["dawn", "night heard red", "unknown words"])
def test_mean_and_last_by_transformers_alone(prompt):
    model, tokenizer = parts()
    expected = states(model, tokenizer, prompt)
    mean, last = (PooledHidden(model, tokenizer, pooling=p) for p in ("mean", "last"))
    assert mean.size == 16
    assert mean(prompt).dtype == np.float32
    assert np.allclose(mean(prompt), expected.mean(0), atol=1e-5)
    assert np.allclose(last(prompt), expected[-1], atol=1e-5)


def test_a_bare_transformer_and_another_dtype():
    _, tokenizer = parts()
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = GPT2Model(config).to(torch.bfloat16).eval()
    vector = PooledHidden(model, tokenizer)("dusk heard red")
    assert vector.dtype == np.float32
    assert vector.shape == (8,)
    assert np.isfinite(vector).all()


def test_the_model_is_left_as_it_was():
    model, tokenizer = parts(dropout=0.5)
    embed = PooledHidden(model, tokenizer, remember=0)
    calm = embed("dawn")
    model.train()
    assert np.array_equal(embed("dawn"), calm)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_vectors_are_remembered_until_told_to_forget():
    model, tokenizer = parts()
    embed = PooledHidden(model, tokenizer, remember=2)
    reads = []
    model.base_model.register_forward_hook(lambda *_: reads.append(1))
    first = embed("dawn")
    first[:] = 7
    assert not np.array_equal(embed("dawn"), first)
    assert len(reads) == 1
    embed("noon")
    embed("dusk")
    embed("dawn")
    assert len(reads) == 4
    before = embed("dawn")
    with torch.no_grad():
        model.base_model.wte.weight.mul_(2)
    assert np.array_equal(embed("dawn"), before)
    embed.forget()
    assert not np.array_equal(embed("dawn"), before)


def test_standardized_over_prompts_of_the_task():
    model, tokenizer = parts()
    with torch.no_grad():
        model.base_model.ln_f.bias[3] = 500.0  # one number drowns the others, as in real models
    cues = list(coordination_v0.ANSWERS)
    plain = PooledHidden(model, tokenizer)
    embed = PooledHidden(model, tokenizer, standardize_on=[*cues, "dawn"])
    vectors = np.stack([embed(cue) for cue in cues])
    assert np.allclose(vectors.mean(0), 0, atol=1e-3)
    assert np.allclose(np.median(vectors.std(0)), 1, atol=1e-3)
    similar = [
        [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a in vs]
        for vs, b in (
            ([plain(cue) for cue in cues], plain("noon")),
            ([embed(cue) for cue in cues], embed("noon")),
        )
    ]
    assert min(similar[0]) > 0.99
    assert sorted(similar[1])[-2] < 0.9
    before = embed("dusk heard")
    with torch.no_grad():
        model.base_model.ln_f.bias[3] = 0.0
    embed.forget()
    # The mean was measured again, so that what all prompts have in common plays no part.
    assert np.allclose(embed("dusk heard"), before, atol=0.05)
    assert embed("").tolist() == [0.0] * 16


def test_a_number_that_does_not_change_does_not_explode():
    class Flat(torch.nn.Module):
        def forward(self, states):
            return states * torch.tensor([1.0] * 8 + [0.0] * 8)

    model, tokenizer = parts()
    model.base_model.ln_f = torch.nn.Sequential(model.base_model.ln_f, Flat())
    embed = PooledHidden(model, tokenizer, standardize_on=["dawn", "noon"])
    assert np.isfinite(embed("dusk")).all()
    assert embed("dusk")[8:].tolist() == [0.0] * 8


@pytest.mark.parametrize("prompt", ["", " ", "\n\t"])
def test_a_blank_prompt_gives_zeros(prompt):
    assert PooledHidden(*parts())(prompt).tolist() == [0.0] * 16


def test_a_prompt_that_is_too_long(caplog):
    model, tokenizer = parts()
    with pytest.raises(ValueError, match=r"max_prompt_tokens \(8\) must hold the prompt \(9 tok"):
        PooledHidden(model, tokenizer)("dawn " * 9)
    short = PooledHidden(model, tokenizer, max_prompt_tokens=2)
    with pytest.raises(ValueError, match=r"max_prompt_tokens \(2\)"):
        short("dawn noon dusk")
    cut = PooledHidden(model, tokenizer, max_prompt_tokens=2, prompt_overflow="truncate")
    with caplog.at_level(logging.WARNING):
        assert np.allclose(cut("dawn noon dusk"), short("noon dusk"), atol=1e-6)
    assert "prompt cut from 3 to 2 tokens" in caplog.text


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"pooling": "max"}, ValueError, r"pooling \('max'\) must be one of mean, last"),
        ({"max_prompt_tokens": 9}, ValueError, r"max_prompt_tokens \(9\).*context of 8"),
        ({"max_prompt_tokens": 0}, ValueError, r"max_prompt_tokens \(0\)"),
        ({"prompt_overflow": "cut"}, ValueError, r"prompt_overflow \('cut'\)"),
        ({"standardize_on": ["dawn", "dawn"]}, ValueError, r"\['dawn'\]\) must hold at least two"),
        ({"standardize_on": ["dawn", "", " "]}, ValueError, r"\['dawn'\]\) must hold at least two"),
        ({"standardize_on": ["dawn", "dawn ", " dawn"]}, ValueError, "that the model tells apart"),
        ({"standardize_on": "dawn"}, TypeError, r"standardize_on \('dawn'\) must be texts"),
        ({"remember": -1}, ValueError, r"remember \(-1\)"),
    ],
)
def test_bad_arguments(settings, error, message):
    with pytest.raises(error, match=message):
        PooledHidden(*parts(), **settings)


def test_in_an_environment():
    model, tokenizer = parts()
    embed = PooledHidden(model, tokenizer)
    inner = CandidateActions(coordination_v0.parallel_env(num_turns=2), list(WORDS))
    env = EmbedObservations(inner, embed)
    shown, _ = env.reset(seed=0)
    assert np.allclose(shown["agent_0"], states(*parts(), "dawn").mean(0), atol=1e-5)
    parallel_api_test(env, num_cycles=10)
    twin = copy.deepcopy(env)
    assert twin.embedder.embed.trunk.model is model
    loaded = pickle.loads(pickle.dumps(env)).reset(seed=0)[0]["agent_0"]
    assert np.array_equal(loaded, shown["agent_0"])


def test_a_model_of_nan_is_found_out():
    model, tokenizer = parts()
    env = EmbedObservations(LeaverEnv(), PooledHidden(model, tokenizer, remember=0))
    with torch.no_grad():
        model.base_model.wte.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"embed \(PooledHidden\) must return finite .* agent_0"):
        env.reset()


def test_weights_on_disk(tmp_path):
    model, tokenizer = parts()
    model.save_pretrained(tmp_path)
    loaded = PooledHidden(AutoModel.from_pretrained(tmp_path), tokenizer)
    assert np.allclose(loaded("noon"), PooledHidden(model, tokenizer)("noon"), atol=1e-6)
