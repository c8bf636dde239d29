"""The language-model policy: prompts in, completions out, scores and values of the same ids."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModel,
    BertConfig,
    BertLMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from marlogue.agents import (
    Answered,
    Completion,
    Generated,
    LLMPolicy,
    SamplingParams,
    TransformersBackend,
    ValueHead,
    load_causal_lm,
    load_smollm2,
    tiny_model,
)
from tests.support.architectures import build
from tests.support.cf import EOS, cf_model, cf_tokenizer, random_gpt2, tiny_llama

PARAMS = SamplingParams(max_new_tokens=6)
STREAMS = [(0, k) for k in range(4)]


class Recited:
    """A generation backend that gives ids written down beforehand (and is a user's own kind)."""

    def __init__(self, *ids: tuple[int, ...], truncated: bool = False) -> None:
        self.ids = ids
        self.truncated = truncated
        self.seen: list = []

    def generate(self, prompts, params, streams):
        self.seen.append((list(prompts), params, list(streams)))
        return [Generated(ids, self.truncated) for ids in self.ids]

    def sync(self, model):
        """There is nothing to bring up to date."""


def bos_tokenizer() -> PreTrainedTokenizerFast:
    """C48: a word tokenizer that puts <s> in front, with a template that writes it."""
    words = {"</s>": 0, "<s>": 1, "<unk>": 2, "hi": 3, "U:": 4, "A:": 5}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template="{{bos_token}} U: {{messages[-1]['content']}} A:",
    )


def cf_policy(p, **settings) -> LLMPolicy:
    return LLMPolicy(*cf_model(p), **settings)


class TestAct:
    def test_a_completion_by_hand(self):
        (completion,) = cf_policy((1.0,)).act(["q r"], SamplingParams(max_new_tokens=4), [(0,)])
        assert completion == Completion((3, 4), (0, 0, 0, 0), "A A A A", truncated=True)

    def test_cut_at_the_limit(self):
        """C05: four words, a flag, and no end token in ids or score."""
        policy = cf_policy((0.5, 0.5))
        for completion in policy.act(["q"] * 4, SamplingParams(max_new_tokens=4), STREAMS):
            assert completion.truncated
            assert len(completion.ids) == 4
            assert completion.text.split() == ["AB"[token] for token in completion.ids]
            found = policy.score([Answered(completion.prompt_ids, completion.ids)])
            assert found.log_probs.item() == pytest.approx(4 * math.log(0.5), abs=1e-5)

    def test_the_end_token_is_kept_in_ids_and_left_out_of_the_text(self):
        policy = cf_policy((0.5, 0, 0.5))
        completions = policy.act(["q"] * 30, PARAMS, [(k,) for k in range(30)])
        ended = [completion for completion in completions if not completion.truncated]
        assert ended
        for completion in ended:
            assert completion.ids[-1] == EOS
            assert completion.text == " ".join("A" * (len(completion.ids) - 1))

    def test_an_empty_text(self):
        (completion,) = cf_policy((0, 0, 1.0)).act(["q"], PARAMS, [(0,)])
        assert completion == Completion((3,), (EOS,), "", truncated=False)

    def test_what_is_sampled_has_the_scored_probability(self):
        """C07: sampled at T = .5, words follow p squared, and are scored so."""
        policy = cf_policy((0.5, 0.25, 0.25))
        params = SamplingParams(max_new_tokens=1, temperature=0.5)
        completions = policy.act(["q"] * 6000, params, [(k,) for k in range(6000)])
        for token, p in ((0, 2 / 3), (1, 1 / 6), (2, 1 / 6)):
            share = sum(completion.ids == (token,) for completion in completions) / 6000
            assert share == pytest.approx(p, abs=5 * (p * (1 - p) / 6000) ** 0.5)
            found = policy.score([Answered([3], [token])], temperature=0.5).log_probs.item()
            assert math.exp(found) == pytest.approx(p, abs=1e-5)

    def test_prompts_stay_with_their_completions(self):
        """Sorted by length inside; the order outside is the caller's."""
        policy = LLMPolicy(random_gpt2(vocab_size=6, scale=3.0), cf_tokenizer())
        prompts = ["q r q r q r q", "q", "A B", "q", "r q A", "q r q r q r q"]
        streams = [(5, k) for k in range(6)]
        together = policy.act(prompts, PARAMS, streams)
        words = ["A", "B", "</s>", "q", "r"]
        for prompt, completion in zip(prompts, together, strict=True):
            assert completion.prompt_ids == tuple(map(words.index, prompt.split()))
        for row in (5, 1, 2, 0):
            assert policy.act([prompts[row]], PARAMS, [streams[row]]) == [together[row]]

    def test_a_batch_size_changes_nothing(self):
        model = random_gpt2(vocab_size=6, scale=3.0)
        prompts = ["q r q r q r q", "q", "A B", "q"]
        first, second = (
            LLMPolicy(model, cf_tokenizer(), generation_batch_size=size).act(
                prompts, PARAMS, STREAMS
            )
            for size in (1, 64)
        )
        assert first == second

    def test_nobody_asked(self):
        assert cf_policy((1.0,)).act([], PARAMS, []) == []

    def test_a_stream_for_each(self):
        with pytest.raises(ValueError, match="streams"):
            cf_policy((1.0,)).act(["q", "r"], PARAMS, [(0,)])

    def test_a_prompt_that_is_no_text(self):
        with pytest.raises(TypeError, match=r"prompt \(5\)"):
            cf_policy((1.0,)).act([5], PARAMS, [(0,)])

    def test_completions_are_values(self):
        """Hashable, comparable, frozen."""
        policy = cf_policy((0.5, 0.5))
        first, second = (policy.act(["q"], PARAMS, [(3,)])[0] for _ in range(2))
        assert first == second
        assert len({first, second}) == 1
        with pytest.raises(AttributeError):
            first.text = "mine"

    def test_the_checkpoint_settings_play_no_part(self):
        """C09: top_k 1 and a temperature of .01 in the checkpoint, and 200 words all the same."""
        words = [f"w{k}" for k in range(400)]
        model, tokenizer = tiny_model(words, n_positions=64)
        for name, value in {"top_k": 1, "temperature": 0.01, "repetition_penalty": 1.3}.items():
            setattr(model.generation_config, name, value)
        before = copy.deepcopy(model.generation_config.to_dict())
        completions = LLMPolicy(model, tokenizer).act(
            ["w1 w2"] * 20, SamplingParams(max_new_tokens=20), [(k,) for k in range(20)]
        )
        assert len({word for one in completions for word in one.text.split()}) > 200
        assert model.generation_config.to_dict() == before

    def test_end_tokens_of_the_checkpoint(self):
        model, tokenizer = cf_model((0.5, 0.25, 0.25))
        model.generation_config.eos_token_id = [1, 2]
        completions = LLMPolicy(model, tokenizer).act(
            ["q"] * 40, SamplingParams(max_new_tokens=30), [(k,) for k in range(40)]
        )
        assert {completion.ids[-1] for completion in completions} == {1, 2}


class TestPrompts:
    """What the encoder makes of them has tests of its own; here, that the policy uses it."""

    def test_one_bos_and_no_more(self):
        """C48."""
        model = random_gpt2(vocab_size=6, eos_token_id=0)
        for chat_template, ids in ((True, (1, 4, 3, 5)), (False, (1, 3))):
            policy = LLMPolicy(model, bos_tokenizer(), chat_template=chat_template)
            assert policy.act(["hi"], PARAMS, [(0,)])[0].prompt_ids == ids
            assert policy.read("hi", PARAMS) == Completion(ids, (), "", truncated=False)

    def test_the_arguments_reach_the_encoder(self):
        template = "{% for m in messages %}{{m['content']}} {% endfor %}A"
        policy = cf_policy((1.0,), chat_template=template, system_prompt="r", max_prompt_tokens=4)
        assert policy.read("q", PARAMS).prompt_ids == (4, 3, 0)
        with pytest.raises(ValueError, match=r"max_prompt_tokens \(4\)"):
            policy.read("q q q", PARAMS)
        cut = cf_policy((1.0,), max_prompt_tokens=2, prompt_overflow="truncate")
        assert cut.act(["q q r B"], PARAMS, [(0,)])[0].prompt_ids == (4, 1)

    def test_prompt_and_completion_may_fill_the_context_and_no_more(self):
        policy = cf_policy((1.0,))  # 64 positions
        params = SamplingParams(max_new_tokens=14)
        (completion,) = policy.act([" ".join("q" * 50)], params, [(0,)])
        assert len(completion.prompt_ids) + len(completion.ids) == 64
        policy.score([Answered(completion.prompt_ids, completion.ids)])
        with pytest.raises(ValueError, match=r"leaves 50 .*51 tokens"):
            policy.act(["q", " ".join("q" * 51)], params, [(0,), (1,)])

    def test_an_over_long_prompt_is_cut_only_where_that_was_asked(self, caplog):
        policy = cf_policy((1.0,), prompt_overflow="truncate")
        params = SamplingParams(max_new_tokens=60)
        (completion,) = policy.act(["A A A q r A B"], params, [(0,)])
        assert completion.prompt_ids == (3, 4, 0, 1)
        assert "cut" in caplog.text

    @pytest.mark.parametrize("limit", [64, 65, 1000])
    def test_a_limit_that_leaves_no_prompt(self, limit):
        with pytest.raises(ValueError, match=rf"max_new_tokens \({limit}\) .*64"):
            cf_policy((1.0,)).act(["q"], SamplingParams(max_new_tokens=limit), [(0,)])

    def test_a_model_without_a_context_limit(self):
        policy = LLMPolicy(build("bloom"), cf_tokenizer())
        (completion,) = policy.act([" ".join("q" * 150)], PARAMS, [(0,)])
        assert len(completion.prompt_ids) == 150


class TestPadding:
    """C04: padding by length; the id that pads is of no account."""

    @pytest.mark.parametrize("pad_token", [None, "</s>", "q", "<a new one>"])
    def test_any_padding_token_or_none(self, pad_token):
        model, tokenizer = random_gpt2(vocab_size=6, scale=3.0), cf_tokenizer()
        prompts = ["q r q r q r q", "q", "A </s> B </s>", "r"]
        expected = LLMPolicy(model, tokenizer).act(prompts, PARAMS, STREAMS)
        other = cf_tokenizer()
        if pad_token is None:
            other.pad_token = None
        else:
            other.add_special_tokens({"pad_token": pad_token})  # perhaps outside the model
        policy = LLMPolicy(model, other)
        found = policy.act(prompts, PARAMS, STREAMS)
        assert [one.ids for one in found] == [one.ids for one in expected]
        rows = [Answered(one.prompt_ids, one.ids) for one in found]
        with torch.no_grad():
            first, second = (p.score(rows).log_probs for p in (policy, LLMPolicy(model, tokenizer)))
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)
        assert other.pad_token == pad_token  # the tokenizer is the user's

    def test_no_special_tokens_at_all(self):
        tokenizer = cf_tokenizer()
        tokenizer.pad_token = tokenizer.eos_token = None
        policy = LLMPolicy(random_gpt2(vocab_size=6), tokenizer)
        assert len(policy.act(["q r", "q"], PARAMS, STREAMS[:2])) == 2


class TestBackends:
    def test_ones_own(self):
        """It gets ids, settings and streams; its ids are kept as they are."""
        backend = Recited((0, 1), (1,))
        policy = cf_policy((1.0,), backend=backend)
        assert policy.backend is backend
        found = policy.act(["q r", "r"], PARAMS, [(7,), (8,)])
        assert backend.seen == [([(3, 4), (4,)], PARAMS, [(7,), (8,)])]
        assert [(one.ids, one.text) for one in found] == [((0, 1), "A B"), ((1,), "B")]

    def test_ids_are_kept_where_the_text_means_others(self):
        """C50, on words: '<unk>' as sampled is another id than the text that stands for it."""
        backend = Recited((0, EOS, EOS, 1))
        policy = cf_policy((0.4, 0.3, 0.3), backend=backend)
        (completion,) = policy.act(["q"], PARAMS, [(0,)])
        assert completion.ids == (0, EOS, EOS, 1)
        assert completion.text == "A B"
        found = policy.score([Answered(completion.prompt_ids, completion.ids)]).log_probs.item()
        assert found == pytest.approx(math.log(0.4) + 3 * math.log(0.3), abs=1e-5)

    def test_a_decoding_copy_follows_the_weights_when_synchronised(self):
        model, tokenizer = random_gpt2(vocab_size=6, scale=3.0), cf_tokenizer()
        policy = LLMPolicy(model, tokenizer, generation_dtype=torch.bfloat16)
        prompts = ["q r", "r", "A A A", "B q"]

        def expected():
            plain = LLMPolicy(copy.deepcopy(model).to(torch.bfloat16), tokenizer)
            return plain.act(prompts, PARAMS, STREAMS)

        first = policy.act(prompts, PARAMS, STREAMS)
        assert first == expected()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        policy.score([Answered([3, 4], [0, 1])]).log_probs.sum().backward()
        optimizer.step()
        assert policy.act(prompts, PARAMS, STREAMS) == first
        policy.backend.sync(model)
        second = policy.act(prompts, PARAMS, STREAMS)
        assert second == expected()
        assert second != first
        assert model.dtype == torch.float32

    def test_without_a_copy_the_weights_are_seen_at_once(self):
        model = random_gpt2(vocab_size=6, scale=3.0)
        policy = LLMPolicy(model, cf_tokenizer())
        assert isinstance(policy.backend, TransformersBackend)
        first = policy.act(["q r"] * 4, PARAMS, STREAMS)
        with torch.no_grad():
            model.transformer.wte.weight.neg_()
        assert policy.act(["q r"] * 4, PARAMS, STREAMS) != first


class TestValues:
    def policy(self, model=None, **settings):
        model = model or tiny_llama()
        head = ValueHead(16, generator=torch.Generator().manual_seed(0), **settings)
        return LLMPolicy(model, cf_tokenizer(), value_head=head)

    def test_by_hand(self):
        model, tokenizer = cf_model((0.5, 0.5))
        head = ValueHead(8)
        with torch.no_grad():
            head.layers[0].weight.zero_()
            head.layers[0].weight[0, 0] = 3.0
            head.layers[0].bias.fill_(0.25)
        policy = LLMPolicy(model, tokenizer, value_head=head)
        assert policy.values([[3], [3, 4, 0]]).tolist() == [3.25, 3.25]

    def test_the_scoring_pass_gives_the_same_values(self):
        """V(h) at the last prompt token, Q(h, a) at the last of the completion."""
        policy = self.policy()
        rows = [Answered([3, 4], [0, 1, EOS]), Answered([4], [1]), Answered([3] * 9, [0] * 5)]
        with torch.no_grad():
            scores = policy.score(rows)
            for hidden, histories in (
                (scores.prompt_hidden, [row.prompt_ids for row in rows]),
                (scores.last_hidden, [[*row.prompt_ids, *row.completion_ids] for row in rows]),
            ):
                torch.testing.assert_close(
                    policy.value_head(hidden), policy.values(histories), atol=1e-6, rtol=1e-5
                )

    def test_a_value_does_not_see_the_action(self):
        """C14: bit-identical for completions that differ, in one pass."""
        policy = self.policy()
        scores = policy.score([Answered([3, 4, 3], [0, 5]), Answered([3, 4, 3], [1, 2])])
        assert torch.equal(scores.prompt_hidden[0], scores.prompt_hidden[1])
        assert not torch.equal(scores.last_hidden[0], scores.last_hidden[1])

    def test_without_a_head(self):
        with pytest.raises(ValueError, match="value_head"):
            cf_policy((1.0,)).values([[3]])

    def test_gradients_reach_head_and_trunk(self):
        policy = self.policy()
        policy.values([[3, 4]]).sum().backward()
        assert policy.value_head.layers[0].weight.grad.abs().sum() > 0
        assert policy.model.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0

    @pytest.mark.parametrize("hidden_dim", [None, 4])
    def test_saved_and_loaded(self, hidden_dim, tmp_path):
        """C71 and C73: shared trunk, tied embeddings."""
        policy = self.policy(head_hidden_dim=hidden_dim)
        optimizer = torch.optim.AdamW(
            [*policy.model.parameters(), *policy.value_head.parameters()], lr=1e-2
        )
        (policy.values([[3]]) + policy.score([Answered([3], [0])]).log_probs).sum().backward()
        optimizer.step()
        embeddings = policy.model.model.embed_tokens.weight
        assert policy.model.lm_head.weight is embeddings
        policy.model.save_pretrained(tmp_path)
        save_file(policy.value_head.state_dict(), tmp_path / "value_head.safetensors")
        head = ValueHead(16, hidden_dim)
        head.load_state_dict(load_file(tmp_path / "value_head.safetensors"))
        again = LLMPolicy(load_causal_lm(tmp_path), cf_tokenizer(), value_head=head)
        history = policy.tokenizer("q r")["input_ids"]
        assert torch.equal(again.values([history]), policy.values([history]))
        rows = [Answered(history, [0, EOS])]
        assert torch.equal(again.score(rows).log_probs, policy.score(rows).log_probs)
        assert again.model.lm_head.weight is again.model.model.embed_tokens.weight
        params = SamplingParams(max_new_tokens=5)
        assert again.act(["q r"], params, [(1,)]) == policy.act(["q r"], params, [(1,)])


class TestRefusals:
    def test_a_model_without_a_head(self, tmp_path):
        model = random_gpt2()
        model.save_pretrained(tmp_path)
        bare = AutoModel.from_pretrained(tmp_path)
        with pytest.raises(ValueError, match=r"model \(GPT2Model\).*AutoModelForCausalLM"):
            LLMPolicy(bare, cf_tokenizer())

    def test_an_encoder_and_decoder(self):
        config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        with pytest.raises(ValueError, match=r"T5ForConditionalGeneration.*causal"):
            LLMPolicy(T5ForConditionalGeneration(config), cf_tokenizer())

    def test_a_model_that_sees_what_comes_next(self):
        """Its scores would be those of words that it has been shown."""
        config = BertConfig(
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
        with pytest.raises(ValueError, match="BertLMHeadModel"):
            LLMPolicy(BertLMHeadModel(config), cf_tokenizer())

    def test_a_tokenizer_of_more_words_than_the_model_has(self):
        """C86: found before the model looks up what it does not have."""
        model, _ = tiny_model(["w0", "w1"])
        _, tokenizer = tiny_model([f"w{k}" for k in range(9)])
        policy = LLMPolicy(model, tokenizer)
        assert policy.act(["w0 w4"], PARAMS, [(0,)])[0].prompt_ids == (0, 4)
        with pytest.raises(ValueError, match=r"7.*vocabulary.*4"):
            policy.act(["w0", "w7 w1"], PARAMS, [(0,), (1,)])

    def test_a_history_of_no_token(self):
        policy = cf_policy((1.0,), value_head=ValueHead(8))
        for histories in ([[]], [[], [3]]):
            with pytest.raises(ValueError, match="at least one token"):
                policy.values(histories)

    def test_a_head_of_another_width(self):
        with pytest.raises(ValueError, match=r"value_head.*5.*8"):
            cf_policy((1.0,), value_head=ValueHead(5))

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"generation_batch_size": 0}, "generation_batch_size"),
            ({"system_prompt": "x"}, "system_prompt"),
            ({"chat_template": True}, "chat_template"),
            ({"prompt_overflow": "cut"}, "prompt_overflow"),
            ({"max_prompt_tokens": 0}, "max_prompt_tokens"),
        ],
    )
    def test_arguments_that_do_not_fit(self, settings, message):
        with pytest.raises(ValueError, match=message):
            cf_policy((1.0,), **settings)


@pytest.fixture(scope="module")
def smollm2():
    return load_smollm2()


@pytest.mark.smollm2
class TestSmolLM2:
    def test_ids_are_kept_as_sampled(self, smollm2):
        """C50: 'Hel' and 'lo' are scored, not the one token that the text would become."""
        policy = LLMPolicy(*smollm2, chat_template=True, backend=Recited((11653, 5365, 2)))
        (completion,) = policy.act(["Say hi."], PARAMS, [(0,)])
        assert completion.text == "Hello"
        assert completion.ids == (11653, 5365, 2)
        assert policy.tokenizer(completion.text)["input_ids"] == [19556]
        with torch.no_grad():
            scores = policy.score([Answered(completion.prompt_ids, completion.ids)])
        assert scores.log_probs.item() == pytest.approx(-29.0433, abs=2e-3)

    def test_half_a_character(self, smollm2):
        """C53: cut inside an emoji, U+FFFD is the text; ids are scored; JSON takes both."""
        policy = LLMPolicy(*smollm2, chat_template=True, backend=Recited((10813,), truncated=True))
        (completion,) = policy.act(["Say hi."], SamplingParams(max_new_tokens=1), [(0,)])
        assert completion.text == "\ufffd"
        assert completion.ids == (10813,)
        assert completion.truncated
        assert json.loads(json.dumps([completion.text, *completion.ids])) == ["\ufffd", 10813]
        with torch.no_grad():
            found = policy.score([Answered(completion.prompt_ids, completion.ids)])
        assert torch.isfinite(found.log_probs).all()

    def test_a_conversation(self, smollm2):
        """Greedy, in a batch with a longer prompt: as transformers' own generate has it."""
        model, tokenizer = smollm2
        policy = LLMPolicy(model, tokenizer, chat_template=True)
        params = SamplingParams(max_new_tokens=12, temperature=0)
        prompts = ["Say hi.", "Name the largest planet of the solar system, please. " * 3]
        found = policy.act(prompts, params, [(0,), (1,)])
        for completion in found:
            ids = torch.tensor([completion.prompt_ids])
            expected = model.generate(ids, max_new_tokens=12, do_sample=False, num_beams=1)
            assert completion.ids == tuple(expected[0, ids.size(1) :].tolist())
        assert found[0].prompt_ids.count(2) == 2
