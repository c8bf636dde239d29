"""EmbedObservations and HashedNgrams."""

import copy
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from pettingzoo.test import parallel_api_test

from marlogue.envs import coordination_v0, story_length_v0
from marlogue.wrappers.candidates import CandidateActions
from marlogue.wrappers.embeddings import EmbedObservations, HashedNgrams
from tests.support.envs import LeaverEnv, text_env
from tests.support.strangers import EchoGame


def lengths(prompt):
    """How long a prompt is, and how many words it has."""
    return [len(prompt), len(prompt.split())]


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        np.array,
        lambda x: np.array(x, dtype=np.float64),
        torch.tensor,
        lambda x: torch.tensor(x, dtype=torch.bfloat16),
        lambda x: torch.tensor(x, dtype=torch.float32, requires_grad=True),
    ],
)
def test_a_prompt_becomes_a_vector(convert):
    env = EmbedObservations(text_env(num_turns=2), lambda prompt: convert(lengths(prompt)))
    assert env.observation_space("agent_0") == Box(-np.inf, np.inf, (2,), np.float32)
    shown, infos = env.reset()
    assert shown["agent_0"].dtype == np.float32
    assert shown["agent_0"].tolist() == [1.0, 1.0]
    assert infos["agent_0"]["row"] == 0
    result = env.step({"agent_0": "to be", "agent_1": ""})
    assert result.observations["agent_0"].tolist() == [9.0, 2.0]  # "0|x|to be"
    last = env.step({"agent_0": "", "agent_1": ""})
    assert last.observations["agent_0"].tolist() == [9.0, 2.0]
    for agent, vector in last.observations.items():
        assert env.observation_space(agent).contains(vector)


def test_the_size_is_measured_once_or_given():
    calls = []

    def embed(prompt):
        calls.append(prompt)
        return [0.0] * 5

    env = EmbedObservations(text_env(), embed)
    assert (env.embedder.size, len(calls)) == (5, 1)
    env = EmbedObservations(text_env(), embed, size=5)
    assert len(calls) == 1
    env.reset()
    assert calls[1:] == ["x", "x"]


def test_observations_are_not_the_functions_own_arrays():
    held = np.zeros(2, dtype=np.float32)
    env = EmbedObservations(text_env(), lambda prompt: held)
    shown, _ = env.reset()
    shown["agent_0"][:] = 7
    assert held.tolist() == [0, 0]
    assert shown["agent_1"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], r"a vector of 2 numbers for agent_0, not a list of shape \(1,\)"),
        ([[1.0, 2.0]], r"a vector of 2 numbers for agent_0, not a list of shape \(1, 2\)"),
        (3.0, r"a vector of 2 numbers for agent_0, not a float of shape \(\)"),
        (None, "numbers for agent_0, not None"),
        ([1j, 2.0], "numbers for agent_0, not a list: they are of dtype complex"),
        (["1", "2"], "numbers for agent_0, not a list: they are of dtype <U1"),
        ([1.0, np.nan], "finite numbers for agent_0; number 1 is nan"),
        ([np.inf, 0.0], "finite numbers for agent_0; number 0 is inf"),
        ([0.0, 1e39], r"finite numbers for agent_0; number 1 is 1e\+39"),
        (["a", "b"], "numbers for agent_0, not a list"),
        ([[1.0], [1.0, 2.0]], "numbers for agent_0, not a list"),
        ([0.0, 1.5], "numbers from -1.0 to 1.0 for agent_0, not 0.0 to 1.5"),
    ],
)
def test_a_bad_embedding_names_agent_and_function(returned, message):
    def embed_badly(prompt):
        return returned

    env = EmbedObservations(text_env(), embed_badly, size=2, low=-1, high=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=rf"embed \(.*embed_badly\) must return {message}"):
            env.reset()


@pytest.mark.parametrize("returned", [[], 3.0, [[1.0, 2.0]]])
def test_a_size_that_cannot_be_measured(returned):
    with pytest.raises(ValueError, match="must return a vector of some numbers for 'text'"):
        EmbedObservations(text_env(), lambda prompt: returned)


def test_an_exception_of_the_function_says_where():
    def embed(prompt):
        raise LookupError(prompt)

    with pytest.raises(LookupError) as caught:
        EmbedObservations(text_env(), embed)
    assert "set size to skip that" in " ".join(caught.value.__notes__)
    env = EmbedObservations(text_env(), embed, size=3)
    with pytest.raises(LookupError, match="x") as caught:
        env.reset()
    assert "the prompt of agent_0" in " ".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"embed": "ngrams"}, TypeError, r"embed \('ngrams'\) must be callable"),
        ({"embed": lengths, "size": 0}, ValueError, r"size \(0\)"),
        ({"embed": lengths, "size": "2"}, TypeError, r"size \('2'\)"),
        ({"embed": lengths, "low": 1, "high": 1}, ValueError, r"low \(1\) and high \(1\)"),
        ({"embed": lengths, "low": np.nan}, ValueError, r"low \(nan\)"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        EmbedObservations(text_env(), **arguments)


def test_what_is_inside_must_be_texts():
    env = EmbedObservations(text_env(), lengths)
    with pytest.raises(TypeError, match=r"EmbedObservations needs .* observations are texts"):
        EmbedObservations(env, lengths)
    with pytest.raises(TypeError, match="ParallelEnv"):
        EmbedObservations("coordination_v0", lengths)


def test_copies_share_the_function():
    class Model:
        def __call__(self, prompt):
            return [1.0]

        def __deepcopy__(self, memo):
            raise AssertionError("a model must not be copied")

    env = EmbedObservations(text_env(), Model())
    assert copy.deepcopy(env).embedder is env.embedder


@pytest.mark.parametrize(
    "make", [coordination_v0.parallel_env, story_length_v0.parallel_env, EchoGame, LeaverEnv]
)
def test_pettingzoos_own_suite(make):
    env = EmbedObservations(make(), HashedNgrams(16))
    parallel_api_test(env, num_cycles=20)
    assert pickle.loads(pickle.dumps(env)).embedder.size == 16


def test_the_same_seed_gives_the_same_episodes():
    inner = coordination_v0.parallel_env(num_turns=2, shuffle=True)
    env = EmbedObservations(
        CandidateActions(inner, list(coordination_v0.ANSWERS.values())), HashedNgrams(32)
    )

    def played(env):
        vectors = [env.reset(seed=3)[0]["agent_1"]]
        while env.agents:
            vectors.append(env.step({"agent_0": 2, "agent_1": 1}).observations["agent_1"])
        return np.stack(vectors)

    assert np.array_equal(played(env), played(copy.deepcopy(env)))
    assert len({row.tobytes() for row in played(env)}) == 2  # the last prompt is shown twice


# --- HashedNgrams ---------------------------------------------------------------------------------


def cosine(embed, first, second):
    return float(embed(first) @ embed(second))


def test_ngrams_by_hand():
    """With one place for each n-gram, the vector of "a b a" is made of those of its n-grams."""
    embed = HashedNgrams(64, (1, 2), hashes=1)
    a, b = embed("a"), embed("b")
    assert np.count_nonzero(a) == 1
    assert abs(a).max() == 1
    pairs = HashedNgrams(64, (2,), hashes=1)
    expected = 2 * a + b + pairs("a b") + pairs("b a")
    assert np.allclose(embed("a b a"), expected / np.linalg.norm(expected), atol=1e-6)


def test_vectors_have_length_one():
    embed = HashedNgrams(100, characters=(3, 4))
    for text in ("a", "Two words.", "naïve \N{SLIGHTLY SMILING FACE}", "\ud800", "x " * 5000):
        vector = embed(text)
        assert vector.dtype == np.float32
        assert vector.shape == (100,)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_nothing_gives_zeros(text):
    assert not HashedNgrams(8)(text).any()


def test_words_are_told_apart():
    embed = HashedNgrams()
    assert cosine(embed, "red gold", "red  gold") == pytest.approx(1)
    assert cosine(embed, "red gold", "gold red") < 0.9
    assert cosine(embed, "red gold", "Red gold") < 0.9
    assert cosine(embed, "red gold blue", "red gold black") > 0.3
    assert abs(cosine(embed, "red", "blue")) < 0.6
    assert cosine(HashedNgrams(words=(1,)), "red gold", "gold red") == pytest.approx(1)
    assert cosine(embed, "red!", "red?") < 0.9


def test_a_letter_as_a_word_and_as_a_character():
    words, characters = HashedNgrams(512, (1,)), HashedNgrams(512, (), characters=(1,))
    assert cosine(characters, "ab", "ba") == pytest.approx(1)
    assert abs(float(words("a") @ characters("a"))) < 0.9
    assert cosine(HashedNgrams(512, (), characters=(3,)), "colour", "colours") > 0.8


@pytest.mark.parametrize("size", [16, 32, 64, 256])
def test_cues_and_stories_differ(size):
    embed = HashedNgrams(size)
    prompts = list(coordination_v0.ANSWERS)
    prompts += [f"{cue} heard {word}" for cue in prompts for word in (*coordination_v0.VOCABULARY,)]
    env = story_length_v0.parallel_env()
    for _ in range(4):
        prompts += env.reset()[0].values()
    vectors = np.stack([embed(prompt) for prompt in dict.fromkeys(prompts)])
    similar = vectors @ vectors.T - 2 * np.eye(len(vectors))
    assert similar.max() < 0.999


def test_size_and_seed_draw_other_places():
    texts = ["red", "gold", "blue", "red gold blue"]
    one, other = HashedNgrams(64), HashedNgrams(64, seed=1)
    assert all(not np.array_equal(one(text), other(text)) for text in texts)


def test_signs_and_places_are_spread():
    embed = HashedNgrams(32, (1,), hashes=1)
    vectors = np.stack([embed(f"w{k}") for k in range(6400)])
    per_place = np.abs(vectors).sum(0)
    # 200 on average, with a standard deviation of 14.
    assert per_place.min() > 130
    assert per_place.max() < 270
    assert abs(vectors.sum()) < 320  # standard deviation 80


def test_the_same_in_every_process():
    code = (
        "from marlogue.wrappers.embeddings import HashedNgrams\n"
        "vector = HashedNgrams(48, characters=(3,))('dusk heard gold')\n"
        "import sys; sys.stdout.write(vector.tobytes().hex())\n"
        "assert 'torch' not in sys.modules, 'heavy'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = HashedNgrams(48, characters=(3,))("dusk heard gold").tobytes().hex()
    assert done.stdout == here
    # As it has always been: saved policies rely on it.
    signs = np.array([0, -2, 1, 4, 4, -3, 1, -3])
    assert np.allclose(HashedNgrams(8)("dusk heard gold"), signs / np.sqrt(56))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 0}, ValueError, r"size \(0\)"),
        ({"size": 2.5}, TypeError, r"size \(2.5\)"),
        ({"words": (0,)}, ValueError, r"words \(0\)"),
        ({"words": ()}, ValueError, "must not both be empty"),
        ({"words": 2}, TypeError, r"words \(2\) must be a list of lengths; set it to \[2\]"),
        ({"characters": ("3",)}, TypeError, r"characters \('3'\)"),
        ({"hashes": 0}, ValueError, r"hashes \(0\)"),
        ({"seed": -1}, ValueError, r"seed \(-1\)"),
    ],
)
def test_bad_numbers(arguments, error, message):
    with pytest.raises(error, match=message):
        HashedNgrams(**arguments)
