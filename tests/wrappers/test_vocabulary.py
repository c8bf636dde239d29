"""Vocabularies: words, and a tokenizer's tokens or a few of them."""

import copy
import pickle
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from marlogue.wrappers.tokens import TokenActions
from marlogue.wrappers.vocabulary import TokenizerVocabulary, Words, as_vocabulary
from tests.support.strangers import EchoGame

TEXTS = ["the red fox and the gold fox", "naïve 🙂 and 🙂", "red and gold and red"]


@pytest.fixture(scope="module")
def raw_tokenizer():
    """A byte-level BPE tokenizer: a token may be a part of a character."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


@pytest.fixture(scope="module")
def tokenizer(raw_tokenizer):
    return PreTrainedTokenizerFast(
        tokenizer_object=raw_tokenizer, eos_token="<eos>", pad_token="<pad>"
    )


def test_words():
    words = Words(["red", "gold", "not sure"], end="<end>", unknown="?")
    assert len(words) == 5
    assert (words.end, words.unknown, words.pad) == (3, 4, None)
    assert [words.piece(index) for index in range(5)] == ["red", "gold", "not sure", "<end>", "?"]
    assert words.decode([0, 2, 1, 3, 0]) == "red not sure gold"  # nothing behind the end
    assert words.decode([3, 0]) == words.decode([]) == ""
    # The longest words that fit; any white space separates; what is unknown has one word.
    assert words.encode(" red\nnot  sure not red <end>") == [0, 2, 4, 0, 3]
    assert words.encode("") == []


def test_the_end_may_be_one_of_the_words():
    words = Words(["red", ".", "gold"], end=".", unknown="gold")
    assert (len(words), words.end, words.unknown) == (3, 1, 2)
    assert words.decode([0, 2, 1, 0]) == "red gold"
    assert Words(["red"]).end is None
    assert Words(["red", "gold"]).decode([1, 1, 1]) == "gold gold gold"


def test_other_separators():
    letters = Words([*"abc", "ca"], separator="")
    assert letters.decode([0, 3, 1]) == "acab"
    assert letters.encode("acab") == [0, 3, 1]
    commas = Words(["a b", "c"], separator=", ")
    assert commas.encode("a b, c") == [0, 1]
    assert commas.decode([0, 1]) == "a b, c"


def test_emoji_and_cut_characters_are_words_like_others():
    words = Words(["🙂", "\N{REPLACEMENT CHARACTER}"])
    assert words.encode("\N{REPLACEMENT CHARACTER} 🙂") == [1, 0]
    assert words.decode([0, 0]) == "🙂 🙂"


def test_a_word_that_is_not_there():
    with pytest.raises(ValueError, match=r"'blue' is not in the vocabulary of 2 words; add it, or"):
        Words(["red", "gold"]).encode("red blue")


@pytest.mark.parametrize(
    ("words", "kwargs", "error", "message"),
    [
        ("red gold", {}, TypeError, "must be a list of words, not one text"),
        (["red", 3], {}, TypeError, "one of them is 3"),
        (["red"], {"end": 3}, TypeError, "one of them is 3"),
        (["red"], {"separator": None}, TypeError, r"separator \(None\)"),
        ([], {}, ValueError, "one or more different texts"),
        ([], {"end": "."}, ValueError, "one or more different texts"),
        (["red", ""], {}, ValueError, "not empty"),
        (["red", "red"], {}, ValueError, r"'red', 'red'\) must be"),
    ],
)
def test_bad_words(words, kwargs, error, message):
    with pytest.raises(error, match=message):
        Words(words, **kwargs)


def test_the_whole_vocabulary_of_a_tokenizer(tokenizer):
    vocabulary = TokenizerVocabulary(tokenizer)
    assert len(vocabulary) == len(tokenizer)
    assert vocabulary.end == tokenizer.eos_token_id
    assert vocabulary.pad == tokenizer.pad_token_id
    for text in TEXTS:
        indices = vocabulary.encode(text)
        assert indices == tokenizer.encode(text)
        assert vocabulary.decode(indices) == text
        assert vocabulary.decode([*indices, vocabulary.end, 5, 6]) == text
    red = tokenizer.encode("red")
    assert vocabulary.decode([*red, tokenizer.pad_token_id, *red]) == "redred"  # not "red<pad>red"
    assert as_vocabulary(vocabulary) is vocabulary
    assert len(as_vocabulary(tokenizer)) == len(tokenizer)


def test_a_few_tokens_of_a_tokenizer(tokenizer):
    chosen = [tokenizer.encode(text)[0] for text in ("red", " and", " gold")]
    vocabulary = TokenizerVocabulary(tokenizer, chosen)
    assert (len(vocabulary), vocabulary.end, vocabulary.pad) == (3, None, None)
    assert [vocabulary.piece(index) for index in range(3)] == ["red", " and", " gold"]
    assert vocabulary.decode([0, 1, 2]) == "red and gold"
    assert vocabulary.encode("red and gold") == [0, 1, 2]
    with pytest.raises(ValueError, match=r"not among the 3 that were chosen; add them to ids"):
        vocabulary.encode("red fox")

    ended = TokenizerVocabulary(tokenizer, chosen, end=tokenizer.eos_token_id)
    assert (len(ended), ended.end, ended.pad) == (4, 3, 3)  # filled up with the end
    assert ended.decode([0, 3, 1]) == "red"
    assert ended.piece(3) == "<eos>"
    within = TokenizerVocabulary(tokenizer, [*chosen, tokenizer.eos_token_id, 1])
    assert (len(within), within.end, within.pad) == (5, 3, 4)
    assert TokenizerVocabulary(tokenizer, chosen, end=chosen[1]).end == 1


def test_a_tokenizer_without_names_of_special_tokens(raw_tokenizer):
    vocabulary = TokenizerVocabulary(raw_tokenizer)
    assert (vocabulary.end, vocabulary.pad) == (None, None)
    assert vocabulary.decode(vocabulary.encode(TEXTS[1])) == TEXTS[1]


def test_any_object_with_the_methods_will_do():
    class Letters:
        def __len__(self):
            return 26

        def encode(self, text, add_special_tokens=True):
            assert not add_special_tokens
            return [ord(letter) - ord("a") for letter in text]

        def decode(self, ids, skip_special_tokens=False):
            return "".join(chr(ord("a") + i) for i in ids)

    vocabulary = TokenizerVocabulary(Letters())
    assert (len(vocabulary), vocabulary.end) == (26, None)
    assert vocabulary.decode(vocabulary.encode("naive")) == "naive"
    assert vocabulary.longest_text(3) == 6


def test_half_a_surrogate_pair_is_no_character(tokenizer):
    vocabulary = TokenizerVocabulary(tokenizer)
    assert vocabulary.decode(vocabulary.encode("red \ud83d")) == "red \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("separator", [" ", "", ", "])
def test_no_text_is_longer_than_the_bound_words(separator):
    words = Words(["a", "bcd", "🙂"], separator=separator, end="the end is not said")
    longest = max(len(words.decode([index] * 5)) for index in range(3))
    assert longest == words.longest_text(5)


def test_no_text_is_longer_than_the_bound_tokens(tokenizer):
    draw = random.Random(0)
    for ids in (None, range(100, 160)):
        vocabulary = TokenizerVocabulary(tokenizer, ids)
        assert vocabulary.longest_text(1) < 12  # and it is not just any bound
        for _ in range(200):
            indices = draw.choices(range(len(vocabulary)), k=6)
            assert len(vocabulary.decode(indices)) <= vocabulary.longest_text(6)


@pytest.mark.parametrize(
    ("ids", "end", "error", "message"),
    [
        ([], None, ValueError, "one or more different token ids"),
        ([3, 3], None, ValueError, "one or more different token ids"),
        ([3, -1], None, ValueError, r"ids \(-1\) must be a token id from 0 to 2"),
        ([3, 9999], None, ValueError, r"ids \(9999\)"),
        ([3.0], None, TypeError, r"ids \(3.0\) must be token ids"),
        ([True], None, TypeError, r"ids \(True\)"),
        ([3], 9999, ValueError, r"end \(9999\)"),
        ([3], "<eos>", TypeError, r"end \('<eos>'\)"),
    ],
)
def test_bad_ids(tokenizer, ids, end, error, message):
    with pytest.raises(error, match=message):
        TokenizerVocabulary(tokenizer, ids, end)


def test_what_is_no_tokenizer():
    for wrong in (None, ["red", "gold"], "red"):
        with pytest.raises(TypeError, match=r"must have the method (en|de)code"):
            as_vocabulary(wrong)


def test_copies(tokenizer):
    for vocabulary in (Words(["red"], end="."), TokenizerVocabulary(tokenizer, [70, 71], 0)):
        for twin in (copy.deepcopy(vocabulary), pickle.loads(pickle.dumps(vocabulary))):
            assert twin.decode([0, 0]) == vocabulary.decode([0, 0])
            assert twin.end == vocabulary.end


def test_tokens_outside_a_stock_text_space_are_refused_at_once():
    """Text() has neither a space nor an exclamation mark."""
    with pytest.raises(ValueError, match=r"ann .*must contain ' '.*UnicodeText"):
        TokenActions(EchoGame(3), Words(["a", "b"]), 2)
    with pytest.raises(ValueError, match=r"ann .*must contain '!'"):
        TokenActions(EchoGame(3), Words(["a", "b!"], separator=""), 2)
    TokenActions(EchoGame(3), Words(["a", "b"], separator=""), 2)


def test_an_empty_text_has_no_words():
    assert Words(["a"], separator="--").encode("") == []
