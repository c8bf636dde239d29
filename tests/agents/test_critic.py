"""The critic: where the value is read, what is trained, and how it sits on its trunk."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    MambaConfig,
    MambaModel,
    OPTConfig,
    OPTForCausalLM,
)

from marlogue.agents import Critic, ValueHead, load_causal_lm, load_smollm2, load_trunk, tiny_model
from tests.support.architectures import ARCHITECTURES, build
from tests.support.cf import EOS, cf_model, cf_tokenizer, random_gpt2, tiny_llama

HISTORIES = [[5, 6, 7], [2], [2, 2, 1, 1, 30, 31, 4, 4, 4, 11, 12], [9, 8, 2]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def critic(model, **settings) -> Critic:
    return Critic(model, cf_tokenizer(), **{"generator": seeded(), **settings})


def plain_value(judge: Critic, history):
    output = judge.model.base_model(torch.tensor([history]), use_cache=False)
    return judge.value_head(output.last_hidden_state[0, -1])


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_a_padded_batch_equals_one_by_one(name):
    judge = critic(build(name), value_head_hidden_dim=4)
    found = judge.values(HISTORIES)
    assert found.shape == (4,)
    assert found.dtype == torch.float32
    for value, history in zip(found, HISTORIES, strict=True):
        torch.testing.assert_close(value, plain_value(judge, history), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(value, judge.values([history])[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["both ways", "recurrent"])
@torch.no_grad()
def test_critics_that_are_no_causal_transformer(kind):
    """A critic may read both ways, or keep a state: padding reaches neither."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "pad_token_id": 0}
    if kind == "both ways":
        model = BertModel(BertConfig(**sizes, num_attention_heads=2, intermediate_size=16)).eval()
    else:
        ends = {"bos_token_id": None, "eos_token_id": 2}
        model = MambaModel(MambaConfig(**sizes, state_size=4, **ends)).eval()
    for parameter in model.parameters():
        parameter.mul_(4 if parameter.dim() > 1 else 1)
    judge = critic(model)
    found = judge.values(HISTORIES)
    alone = torch.cat([judge.values([history]) for history in HISTORIES])
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)
    assert found.std() > 1e-3


def test_the_value_is_read_at_the_last_token():
    """By hand: a trunk whose hidden state is the same everywhere, then one that sees positions."""
    model, tokenizer = cf_model((0.5, 0.5))
    judge = Critic(model, tokenizer, generator=seeded())
    with torch.no_grad():
        judge.value_head.layers[0].weight.zero_()
        judge.value_head.layers[0].weight[0, 0] = 3.0
        judge.value_head.layers[0].bias.fill_(0.25)
    assert judge.values([[3], [3, 4, 0]]).tolist() == [3.25, 3.25]

    judge = critic(random_gpt2())
    first, second, longer = judge.values([[5, 6, 7], [5, 6, 8], [5, 6, 7, 9]]).tolist()
    assert len({first, second, longer}) == 3


def test_the_state_before_the_action_does_not_see_it():
    """C14, on a tiny model: the state at n - 1 is the same whatever follows."""
    model = random_gpt2()
    with torch.no_grad():
        states = [
            model.transformer(torch.tensor([[5, 6, 7, token]])).last_hidden_state[0]
            for token in (8, 9)
        ]
        value = critic(model).values([[5, 6, 7]])
    judge = critic(model)
    assert torch.equal(states[0][2], states[1][2])
    assert not torch.equal(states[0][3], states[1][3])
    torch.testing.assert_close(judge.value_head(states[0][2]), value[0])


@pytest.mark.smollm2
def test_smollm2_state_before_the_action():
    """C14: the prompt's value with either completion behind it."""
    model, tokenizer = load_smollm2()
    judge = Critic(model, tokenizer, generator=seeded())
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say hi."}], add_generation_prompt=True, return_dict=False
    )
    assert len(prompt) == 33
    with torch.no_grad():
        states = judge.trunk.base(
            torch.tensor([[*prompt, 26843], [*prompt, 504]]), use_cache=False
        ).last_hidden_state
        value = judge.values([prompt])
        acted = judge.values([[*prompt, 26843], [*prompt, 504]])
    assert torch.equal(states[0, 32], states[1, 32])
    assert (states[0, 33] - states[1, 33]).abs().max() > 10
    values = judge.value_head(states[:, 32])
    torch.testing.assert_close(values, value.expand(2), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(acted, judge.value_head(states[:, 33]), atol=1e-4, rtol=1e-4)


class TestWhatIsTrained:
    def test_trunk_and_head_but_no_language_model_head(self):
        model = build("llama_untied")
        judge = critic(model, value_head_hidden_dim=4)
        trained = {id(parameter) for parameter in judge.parameters()}
        expected = {id(p) for p in [*model.model.parameters(), *judge.value_head.parameters()]}
        assert trained == expected
        assert id(model.lm_head.weight) not in trained
        assert len(list(judge.parameters())) == len(trained)

    def test_a_tied_embedding_is_trained_once(self):
        model = tiny_llama()
        names = [id(parameter) for parameter in critic(model).parameters()]
        assert names.count(id(model.model.embed_tokens.weight)) == 1

    def test_gradients_reach_all_of_it_and_nothing_else(self):
        model = build("llama_untied", scale=2.0)
        judge = critic(model)
        calls: list[int] = []
        model.lm_head.register_forward_hook(lambda *_: calls.append(1))
        judge.values(HISTORIES).sum().backward()
        assert model.lm_head.weight.grad is None
        assert all(parameter.grad is not None for parameter in judge.parameters())
        assert not calls  # the language-model head is not even computed

    def test_gradient_equals_that_of_a_plain_loop(self):
        model = random_gpt2(scale=2.0)
        judge = critic(model, value_head_hidden_dim=4)
        targets = torch.tensor([1.0, -1.0, 0.5, 2.0])
        gradients = []
        for values in (
            lambda: judge.values(HISTORIES),
            lambda: torch.stack([plain_value(judge, history) for history in HISTORIES]),
        ):
            for parameter in judge.parameters():
                parameter.grad = None
            (values() - targets).square().mean().backward()
            gradients.append([parameter.grad.clone() for parameter in judge.parameters()])
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)

    def test_one_step_moves_the_trunk_and_keeps_embeddings_tied(self):
        """C73."""
        model = tiny_llama()
        judge = critic(model)
        before = copy.deepcopy(model.state_dict())
        optimizer = torch.optim.AdamW(judge.parameters(), lr=1e-2)
        judge.values([[3, 4], [0]]).sum().backward()
        optimizer.step()
        assert model.lm_head.weight is model.model.embed_tokens.weight
        name = "model.embed_tokens.weight"
        assert not torch.equal(model.state_dict()[name], before[name])

    def test_no_graph_under_no_grad(self):
        with torch.no_grad():
            assert not critic(random_gpt2()).values([[3]]).requires_grad


class TestTrunks:
    def test_bare_and_with_a_head_agree(self, tmp_path):
        """A trunk without a head, and the same weights inside a language model."""
        model = build("qwen2")
        model.save_pretrained(tmp_path)
        whole = critic(load_causal_lm(tmp_path))
        for bare in (load_trunk(tmp_path), AutoModel.from_pretrained(tmp_path)):
            judge = critic(bare)
            assert judge.model.get_output_embeddings() is None
            assert torch.equal(judge.values(HISTORIES), whole.values(HISTORIES))
            assert len(list(judge.parameters())) == len(list(whole.parameters()))

    def test_the_head_fits_the_states_and_not_the_config(self):
        """Some models (the 350M OPT) give states of another width than hidden_size."""
        torch.manual_seed(0)
        config = OPTConfig(
            vocab_size=32,
            hidden_size=16,
            ffn_dim=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
            word_embed_proj_dim=8,
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=1,
        )
        assert critic(OPTForCausalLM(config).eval()).values(HISTORIES).shape == (4,)

    def test_a_head_of_ones_own_is_used_itself(self):
        head = ValueHead(32, 5)
        judge = critic(random_gpt2(), value_head=head)
        assert judge.value_head is head
        assert {id(p) for p in head.parameters()} <= {id(p) for p in judge.parameters()}

    def test_new_heads_are_the_generators_and_nobody_elses(self):
        """C32: two critics share nothing; the global generator is left alone."""
        torch.manual_seed(7)
        before = torch.get_rng_state()
        model = random_gpt2()
        first, same, other = (critic(model, generator=seeded(seed)) for seed in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(first.values([[3]]), same.values([[3]]))
        assert not torch.equal(first.values([[3]]), other.values([[3]]))
        assert not {id(p) for p in first.value_head.parameters()} & {
            id(p) for p in same.value_head.parameters()
        }

    def test_dropout_is_the_modes_business(self):
        """The critic leaves the modes alone; in evaluation mode two passes agree."""
        model = random_gpt2(dropout=0.5)
        judge = critic(model)
        assert torch.equal(judge.values(HISTORIES), judge.values(HISTORIES))
        model.train()
        assert not torch.equal(judge.values(HISTORIES), judge.values(HISTORIES))
        assert model.training


class TestPrecision:
    def test_values_of_a_half_precision_trunk(self):
        judge = critic(random_gpt2(scale=1.0).to(torch.bfloat16))
        values = judge.values(HISTORIES)
        assert values.dtype == torch.float32
        assert {parameter.dtype for parameter in judge.value_head.parameters()} == {torch.float32}

    def test_values_under_autocast(self):
        judge = critic(random_gpt2(scale=1.0))
        exact = judge.values(HISTORIES)
        with torch.autocast("cpu", torch.bfloat16):
            values = judge.values(HISTORIES)
        assert values.dtype == torch.float32
        torch.testing.assert_close(values, exact, atol=0.02, rtol=0.05)
        # More digits than bfloat16 has.
        assert not torch.equal(values, values.to(torch.bfloat16).float())


class TestContext:
    def test_a_history_may_fill_the_context_and_no_more(self):
        judge = critic(random_gpt2(n_positions=16))
        assert judge.values([[3] * 16, [4]]).shape == (2,)
        with pytest.raises(ValueError, match=r"17 tokens.*context of 16"):
            judge.values([[4], [3] * 17])

    def test_models_that_would_go_on_silently(self):
        judge = critic(tiny_llama(n_positions=16))
        with pytest.raises(ValueError, match=r"17 tokens.*context of 16"):
            judge.values([[3] * 17])

    def test_models_without_a_limit(self):
        assert critic(build("bloom")).values([[3] * 200]).shape == (1,)


class TestOtherVocabulary:
    """C86."""

    def test_a_critic_reads_text_with_its_own_tokenizer(self):
        words = [f"w{k}" for k in range(40)]
        model, tokenizer = tiny_model(words[:20], seed=1)
        judge = Critic(model, tokenizer, generator=seeded())
        _, other = tiny_model(words[::-1], seed=2)
        text = "w3 w7 w7 w19"
        assert other(text)["input_ids"] != judge.tokenizer(text)["input_ids"]
        ids = judge.tokenizer(text)["input_ids"]
        longer = judge.tokenizer("w1 " * 9)["input_ids"]
        values = judge.values([longer, ids])
        torch.testing.assert_close(values[1], judge.values([ids])[0], atol=1e-6, rtol=1e-5)

    def test_equal_sizes_are_still_other_words(self):
        words = [f"w{k}" for k in range(20)]
        model, tokenizer = tiny_model(words, seed=1)
        _, other = tiny_model(words[::-1], seed=1)
        judge = Critic(model, tokenizer, generator=seeded())
        right, wrong = (which("w3 w7")["input_ids"] for which in (tokenizer, other))
        assert not torch.equal(judge.values([right]), judge.values([wrong]))

    def test_ids_that_the_critic_does_not_have(self):
        """An actor's id 40 and a critic of 32 words."""
        judge = critic(random_gpt2(vocab_size=32))
        assert judge.values([[31]]).shape == (1,)
        with pytest.raises(ValueError, match=r"40.*vocabulary.*31"):
            judge.values([[3], [4, 40, 5]])


def test_a_history_of_no_token():
    """Silently, its value would be read at a padding token."""
    for histories in ([[]], [[], [3]]):
        with pytest.raises(ValueError, match="at least one token"):
            critic(random_gpt2()).values(histories)


def test_a_head_of_another_width():
    with pytest.raises(ValueError, match=r"value_head.*5.*32"):
        critic(random_gpt2(), value_head=ValueHead(5))


@pytest.mark.parametrize("hidden_dim", [None, 4])
def test_saved_and_loaded(hidden_dim, tmp_path):
    """C71 and C73: a tied Llama with a value head; V('q r') bit-equal before and after."""
    model, tokenizer = tiny_llama(), cf_tokenizer()
    judge = Critic(model, tokenizer, value_head_hidden_dim=hidden_dim, generator=seeded())
    history = tokenizer("q r")["input_ids"]
    value = judge.values([history])
    logits = model(torch.tensor([history])).logits

    model.save_pretrained(tmp_path)
    save_file(judge.value_head.state_dict(), tmp_path / "value_head.safetensors")
    again = Critic(
        load_causal_lm(tmp_path),
        tokenizer,
        value_head_hidden_dim=hidden_dim,
        generator=seeded(99),
    )
    assert not torch.equal(again.values([history]), value)
    again.value_head.load_state_dict(load_file(tmp_path / "value_head.safetensors"))
    assert torch.equal(again.values([history]), value)
    assert torch.equal(again.model(torch.tensor([history])).logits, logits)
    assert again.model.lm_head.weight is again.model.model.embed_tokens.weight
    assert again.model.config.eos_token_id == EOS
