"""AgileRL's harness for language models: rows, seeds, turns, and GRPO that learns."""

import datasets
import pytest

from marlogue.agents import tiny_model
from marlogue.envs import TextEnv, coordination_v0
from marlogue.wrappers import CandidateActions
from tests.support.command_line import ROOT
from tests.support.envs import length_reward
from tests.support.example_runs import returns_of
from tests.support.libraries import needs
from tests.support.strangers import EchoGame

torch = needs("torch")
needs("peft")
needs("agilerl")
from marlogue.wrappers.agilerl_llm import RowTask, harness_maker  # noqa: E402

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

CUES = list(coordination_v0.ANSWERS)
knows = coordination_v0.ANSWERS.__getitem__


def knows_first(prompt):
    return knows(prompt.split()[0])


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_model(coordination_v0.VOCABULARY)[1]


def test_rows_and_seeds():
    task = RowTask(coordination_v0.parallel_env(), others=knows, system_prompt="Agree.")
    assert (task.dataset_size, task.system_prompt) == (4, "Agree.")
    assert [task.reset(seed=7, row_index=row)[0] for row in range(4)] == CUES
    assert [task.reset(seed=seed)[0] for seed in range(5)] == [*CUES, CUES[0]]
    assert task.reset(seed=1, options={"row": 3})[0] == CUES[3]
    assert [task.reset()[0] for _ in range(2)] == CUES[:2]


def test_a_stranger_has_no_rows():
    task = RowTask(EchoGame(), "bob", others=lambda prompt: prompt)
    assert task.dataset_size == 0
    assert task.reset(seed=1)[0] == "cat"
    assert task.step("cat")[1] == 1.0


def test_the_harness_plays_a_dialogue(tokenizer):
    env = coordination_v0.parallel_env(num_turns=2)
    make = harness_maker(env, tokenizer, others=knows_first, max_turns=2, apply_chat_template=False)
    harnesses = [make(), make()]
    first, _ = harnesses[0].reset(seed=0, row_index=1)
    harnesses[1].reset(seed=0, row_index=2)  # another copy; the first one plays on
    prompt = first["input_ids"]
    assert tokenizer.decode(prompt[0]) == "noon"
    for word in ("red", "gold"):
        said = torch.tensor([tokenizer(word)["input_ids"]])
        shown, reward, terminated, truncated, _ = harnesses[0].step(
            torch.cat([prompt, said], dim=1)
        )
        prompt = shown.get("input_ids", prompt)
    assert (float(reward), terminated, truncated) == (1.0, True, False)
    assert harnesses[0].turn_rewards == [0.25, 1.0]


def test_grpo_learns():
    before, after = returns_of(ROOT / "examples" / "plugging_in" / "agilerl_llm.py")
    assert before < 0.45  # random: 0.3, since the partner is right
    assert after > 0.75


def test_what_has_no_texts_or_no_row_numbers_is_refused(tokenizer):
    with pytest.raises(TypeError, match=r"RowTask needs .* actions are texts.* agent_0"):
        RowTask(CandidateActions(coordination_v0.parallel_env(), ["red"]), others=lambda seen: 0)
    stream = datasets.Dataset.from_list([{"prompt": "x"}]).to_iterable_dataset()
    with pytest.raises(ValueError, match=r"IterableDataset\) must have a length"):
        harness_maker(TextEnv(stream, length_reward), tokenizer, others=knows)
    with pytest.raises(ValueError, match="max_turns"):
        harness_maker(coordination_v0.parallel_env(), tokenizer, others=knows, max_turns=0)
