"""SampledCandidates: candidates that a language model proposes, reproducibly."""

import copy
import hashlib
import pickle
import subprocess
import sys
from collections import Counter

import pytest
from pettingzoo.test import parallel_api_test

from marlogue.agents import LLMPolicy, SamplingParams, tiny_model
from marlogue.envs import coordination_v0
from marlogue.wrappers.action_mask import ActionMask
from marlogue.wrappers.candidate_sources import Request
from marlogue.wrappers.candidates import CandidateActions
from marlogue.wrappers.embeddings import EmbedObservations, HashedNgrams
from marlogue.wrappers.recent import Recent
from marlogue.wrappers.sampled_candidates import SampledCandidates
from tests.support.strangers import EchoGame

ONE_WORD = SamplingParams(max_new_tokens=1)


def policy(seed=0, words=coordination_v0.VOCABULARY):
    model, tokenizer = tiny_model(words, seed=seed, n_embd=16, n_layer=1)
    return LLMPolicy(model, tokenizer)


def ask(source, *pairs):
    return source.propose([Request(agent, prompt, {}) for agent, prompt in pairs])


class Watched(LLMPolicy):
    """Remembers the batches that it was asked for."""

    def act(self, prompts, params, streams):
        self.__dict__.setdefault("batches", []).append(list(prompts))
        return super().act(prompts, params, streams)


def watched(seed=0):
    made = policy(seed)
    return Watched(made.model, made.tokenizer)


def test_texts_are_different_and_the_models_own():
    source = SampledCandidates(policy(), 6, SamplingParams(max_new_tokens=3))
    (texts,) = ask(source, ("a", "dawn"))
    assert len(texts) == len(set(texts)) == 6
    assert {word for text in texts for word in text.split()} <= set(coordination_v0.VOCABULARY)


def test_the_texts_are_those_that_the_policy_says_with_their_streams():
    """Recomputed with the policy alone: draws 0, 1, 2, ... until there are K different texts."""
    params = SamplingParams(max_new_tokens=4)
    ours = policy()
    (texts,) = ask(SampledCandidates(ours, 5, params, seed=7), ("a", "noon"))
    name = int.from_bytes(hashlib.blake2b(b"noon", digest_size=8).digest(), "big")
    said = ours.act(["noon"] * 20, params, [(7, name, k) for k in range(20)])
    assert texts == list(dict.fromkeys(completion.text for completion in said))[:5]


def test_seed_and_prompt_name_the_texts_and_nothing_else_does():
    prompts = ["dawn", "noon", "dusk", "night", "dawn heard red"]
    params = SamplingParams(max_new_tokens=3)
    alone = {}
    for prompt in prompts:
        (alone[prompt],) = ask(SampledCandidates(policy(), 4, params), ("a", prompt))
    assert len({tuple(texts) for texts in alone.values()}) == len(prompts)
    together = SampledCandidates(policy(), 4, params)
    got = ask(together, *(("b", prompt) for prompt in reversed(prompts)))
    assert got == [alone[prompt] for prompt in reversed(prompts)]
    (other,) = ask(SampledCandidates(policy(), 4, params, seed=1), ("a", "dawn"))
    assert other != alone["dawn"]


def test_one_batch_for_all_agents_and_nothing_is_sampled_twice():
    one = watched()
    source = SampledCandidates(one, 3, SamplingParams(max_new_tokens=8))
    first = ask(source, ("a", "dawn"), ("b", "noon"), ("c", "dawn"))
    assert first[0] == first[2] != first[1]
    assert one.batches == [["dawn"] * 3 + ["noon"] * 3]
    assert ask(source, ("b", "dawn"), ("a", "noon")) == [first[0], first[1]]
    assert len(one.batches) == 1
    source.forget()
    assert ask(source, ("a", "dawn")) == [first[0]]
    assert one.batches[1:] == [["dawn"] * 3]


def test_texts_occur_again_when_there_are_no_others():
    # With one word there are two answers: the word, and nothing.
    said = Counter()
    for prompt in ("yes", "yes yes", "yes yes yes"):
        source = SampledCandidates(policy(words=["yes"]), 5, ONE_WORD, tries=30)
        (texts,) = ask(source, ("a", prompt))
        assert len(texts) == 5
        assert texts == [texts[k % 2] for k in range(5)]
        said.update(texts[:2])
    assert set(said) == {"yes", ""}


def test_tries_bound_the_draws():
    one = watched()
    ask(SampledCandidates(one, 12, ONE_WORD, tries=2), ("a", "dawn"))
    assert len(one.batches) == 2
    assert len(one.batches[0]) == 12
    assert 0 < len(one.batches[1]) < 12


def test_a_policy_for_each_agent():
    ours = {"agent_0": watched(1), "agent_1": watched(2)}
    source = SampledCandidates(ours, 3, SamplingParams(max_new_tokens=4))
    env = CandidateActions(coordination_v0.parallel_env(), source)
    _, infos = env.reset(seed=0)
    assert [len(one.batches) for one in ours.values()] == [1, 1]
    for agent, seed in (("agent_0", 1), ("agent_1", 2)):
        (alone,) = ask(SampledCandidates(policy(seed), 3, source.params), ("a", "dawn"))
        assert infos[agent]["candidates"] == alone
    with pytest.raises(ValueError, match="one for agent_2; it holds those of agent_0, agent_1"):
        ask(source, ("agent_2", "dawn"))


def test_one_policy_under_two_names_is_asked_once():
    one = watched()
    source = SampledCandidates({"a": one, "b": one}, 2, SamplingParams(max_new_tokens=4))
    first, second = ask(source, ("a", "dawn"), ("b", "dawn"))
    assert first == second
    assert one.batches[0] == ["dawn", "dawn"]


def test_in_an_environment():
    source = SampledCandidates(policy(), 5, ONE_WORD)
    env = CandidateActions(coordination_v0.parallel_env(num_turns=2), source)
    assert env.num_candidates == 5
    _, infos = env.reset(seed=0)
    texts = infos["agent_0"]["candidates"]
    if "red" not in texts:
        texts = infos["agent_1"]["candidates"]
    result = env.step({"agent_0": 1, "agent_1": 2})
    assert result.observations["agent_0"].split()[:2] == ["dawn", "heard"]
    parallel_api_test(ActionMask(EmbedObservations(env, HashedNgrams(16))), num_cycles=10)
    twin = copy.deepcopy(env)
    assert twin.source is source
    assert pickle.loads(pickle.dumps(env)).reset(seed=0)[1]["agent_0"]["candidates"] == texts


def test_a_text_that_the_environment_does_not_take():
    # The stranger's space has no empty text, and no space between words.
    source = SampledCandidates(policy(words=EchoGame.WORDS), 5, SamplingParams(max_new_tokens=3))
    env = CandidateActions(EchoGame(), source)
    with pytest.raises(ValueError, match=r"candidate \d for ann \(turn 0\).*action space"):
        env.reset()


def test_an_exception_of_the_policy_says_where():
    long = "dawn " * 600
    env = coordination_v0.parallel_env(dataset=[{"prompt": long, "answer": "red"}])
    env = CandidateActions(env, SampledCandidates(policy(), 2, ONE_WORD))
    with pytest.raises(ValueError, match="must hold the prompt") as caught:
        env.reset()
    assert "making candidates for turn 0" in " ".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"policy": "gpt2"}, TypeError, r"policy \('gpt2', of all\) must be a .*LLMPolicy"),
        ({"policy": {"agent_0": None}}, TypeError, r"policy \(None, of agent_0\)"),
        ({"num_candidates": 0}, ValueError, r"num_candidates \(0\)"),
        ({"params": SamplingParams(temperature=0)}, ValueError, r"temperature \(0\)"),
        ({"params": {}}, TypeError, r"params \({}\) must be .*SamplingParams"),
        ({"seed": -1}, ValueError, r"seed \(-1\)"),
        ({"tries": 0}, ValueError, r"tries \(0\)"),
        ({"remember": -1}, ValueError, r"remember \(-1\)"),
    ],
)
def test_bad_arguments(changes, error, message):
    settings = {"policy": policy(), "num_candidates": 2, "params": ONE_WORD, **changes}
    with pytest.raises(error, match=message):
        SampledCandidates(**settings)


def test_one_greedy_candidate():
    source = SampledCandidates(policy(), 1, SamplingParams(max_new_tokens=2, temperature=0))
    assert len(ask(source, ("a", "dawn"))[0]) == 1


def test_the_memory_is_bounded():
    memory = Recent(2)
    for key in "abc":
        memory.put(key, key.upper())
        memory.get("a")
    assert [memory.get(key) for key in "abc"] == ["A", None, "C"]
    assert len(memory) == 2
    nothing = Recent(0)
    nothing.put("a", 1)
    assert nothing.get("a") is None


def test_the_import_is_light():
    code = (
        "import sys, marlogue.wrappers.sampled_candidates, marlogue.wrappers.candidates\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
