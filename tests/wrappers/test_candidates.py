"""CandidateActions: where candidates come from, masks, and what is refused."""

import copy
import pickle
import re

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from pettingzoo.test import parallel_api_test

from marlogue.envs import TextEnv, UnicodeText, coordination_v0
from marlogue.wrappers.action_mask import ActionMask
from marlogue.wrappers.candidate_sources import CandidateSource
from marlogue.wrappers.candidates import CandidateActions
from marlogue.wrappers.embeddings import EmbedObservations, HashedNgrams
from tests.support.envs import LeaverEnv, text_env
from tests.support.strangers import EchoGame, TakingTurns

WORDS = list(coordination_v0.ANSWERS.values())


def mask_of(infos, agent):
    mask = infos[agent]["action_mask"]
    assert mask.dtype == np.int8
    return mask.tolist()


def words_in(prompt, agent):
    """The words of the prompt, and the agent's name; at module level, to be pickled."""
    return [*prompt.split(), agent]


def test_a_number_stands_for_a_text():
    env = CandidateActions(coordination_v0.parallel_env(num_turns=2), WORDS)
    assert env.action_space("agent_0") == Discrete(4)
    shown, infos = env.reset(options={"row": 1})
    assert shown == {"agent_0": "noon", "agent_1": "noon"}
    assert infos["agent_1"]["candidates"] == ["red", "gold", "blue", "black"]
    assert mask_of(infos, "agent_1") == [1, 1, 1, 1]
    first = env.step({"agent_0": 1, "agent_1": np.int64(3)})
    assert first.observations == {"agent_0": "noon heard black", "agent_1": "noon heard gold"}
    assert first.rewards == {"agent_0": 0.25, "agent_1": 0.25}
    last = env.step({"agent_0": 1, "agent_1": 1})
    assert last.rewards == {"agent_0": 1.0, "agent_1": 1.0}
    assert env.agents == []
    assert mask_of(last.infos, "agent_0") == [1, 1, 1, 1]
    assert last.infos["agent_0"]["candidates"] == []


def test_fewer_candidates_are_masked():
    env = CandidateActions(text_env(), ["a", "b"], num_candidates=3)
    _, infos = env.reset()
    assert mask_of(infos, "agent_0") == [1, 1, 0]
    with pytest.raises(ValueError, match=r"action of agent_1 \(2\) is masked.*2 candidate"):
        env.step({"agent_0": 0, "agent_1": 2})
    # The environment is as it was, and goes on.
    assert env.step({"agent_0": 0, "agent_1": 1}).rewards == {"agent_0": 2.0, "agent_1": 2.0}


def test_fewer_candidates_are_filled():
    env = CandidateActions(text_env(), ["a", "b"], num_candidates=4, fill="ccc")
    _, infos = env.reset()
    assert mask_of(infos, "agent_0") == [1, 1, 1, 1]
    assert infos["agent_0"]["candidates"] == ["a", "b", "ccc", "ccc"]
    assert env.step({"agent_0": 3, "agent_1": 0}).rewards["agent_0"] == 4.0


def test_candidates_of_the_row():
    rows = [
        {"prompt": "x", "choices": ["left", "right"]},
        {"prompt": "y", "choices": {"agent_0": ["a", "b", "c"], "agent_1": ["d"]}},
    ]
    env = CandidateActions(text_env(dataset=rows), "choices", num_candidates=3)
    _, infos = env.reset(seed=0)
    assert infos["agent_1"]["candidates"] == ["left", "right"]
    assert mask_of(infos, "agent_1") == [1, 1, 0]
    _, infos = env.reset()
    assert infos["agent_0"]["candidates"] == ["a", "b", "c"]
    assert mask_of(infos, "agent_1") == [1, 0, 0]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (["a", "b", "c", "d"], r"for agent_0 \(turn 0, row 0\) must be 1 to 3 texts, not 4"),
        ([], "must be 1 to 3 texts, not 0; offer one"),
        (["a", 7], "must be texts; number 1 is an int"),
        ("abc", "must be a list of texts, not a str"),
        (None, "must be a list of texts, not None"),
        ({"agent_1": ["a"]}, "must hold candidates of agent_0; it holds those of agent_1"),
        (["a", "x" * 21], r"candidate 1 for agent_0 .*action space.*20"),
    ],
)
def test_a_row_that_does_not_fit(choices, message):
    rows = [{"prompt": "x", "choices": choices}]
    inner = text_env(dataset=rows, max_completion_chars=20)
    env = CandidateActions(inner, "choices", num_candidates=3)
    with pytest.raises(ValueError, match=message):
        env.reset()
    with pytest.raises(RuntimeError, match="agent_0 has no candidates"):
        env.step({"agent_0": 0, "agent_1": 0})


def test_a_field_that_is_not_there():
    env = CandidateActions(text_env(), "choices", num_candidates=3)
    with pytest.raises(ValueError, match=r"'choices'.*which has 'prompt', 'id'"):
        env.reset()
    env = CandidateActions(EchoGame(), "choices", num_candidates=3)
    with pytest.raises(ValueError, match=r"infos\['ann'\]\['item'\], which is missing"):
        env.reset()


def test_a_function_makes_candidates():
    calls = []

    def candidates(prompt, info, agent):
        calls.append((prompt, agent, info["turn"]))
        info["item"]["prompt"] = "spoilt"
        return [prompt, agent]

    env = CandidateActions(text_env(num_turns=2), candidates, num_candidates=2)
    _, infos = env.reset()
    assert calls == [("x", "agent_0", 0), ("x", "agent_1", 0)]
    assert infos["agent_1"]["candidates"] == ["x", "agent_1"]
    assert infos["agent_1"]["item"] == {"prompt": "x", "id": 0}
    env.step({"agent_0": 0, "agent_1": 1})
    assert calls[2:] == [("0|x|x", "agent_0", 1), ("0|x|agent_1", "agent_1", 1)]
    env.step({"agent_0": 0, "agent_1": 0})
    assert len(calls) == 4  # not for the end


def test_a_function_is_called_with_what_it_names():
    env = CandidateActions(text_env(), lambda agent: [agent], num_candidates=1)
    assert env.reset()[1]["agent_1"]["candidates"] == ["agent_1"]
    env = CandidateActions(text_env(), lambda **kwargs: sorted(kwargs), num_candidates=3)
    assert env.reset()[1]["agent_1"]["candidates"] == ["agent", "info", "prompt"]


def test_an_exception_of_the_function_says_where():
    def candidates(agent):
        return {"agent_0": ["a"]}[agent]

    env = CandidateActions(text_env(), candidates, num_candidates=1)
    with pytest.raises(KeyError) as caught:
        env.reset()
    notes = " ".join(caught.value.__notes__)
    assert re.search(r"calling candidates \(.*candidates\) for agent_1", notes)
    assert "turn 0" in notes


def test_after_an_exception_nothing_of_the_turn_before_can_be_chosen():
    def candidates(agent, info):
        if info["turn"] == 1 and agent == "agent_1":
            raise LookupError("none")
        return ["a"]

    env = CandidateActions(text_env(num_turns=2), candidates, num_candidates=1)
    env.reset()
    with pytest.raises(LookupError):
        env.step({"agent_0": 0, "agent_1": 0})
    with pytest.raises(RuntimeError, match="call reset"):
        env.step({"agent_0": 0, "agent_1": 0})


def test_a_source_sees_all_agents_of_a_turn_at_once():
    class Counting(CandidateSource):
        num_candidates = 2
        batches = []  # noqa: RUF012

        def propose(self, requests):
            self.batches.append([request.agent for request in requests])
            return [["a", "b"] for _ in requests]

    env = CandidateActions(LeaverEnv(), Counting())
    env.reset()
    while env.agents:
        env.step(dict.fromkeys(env.agents, 1))
    assert Counting.batches == [["agent_0", "agent_1"], ["agent_0"], ["agent_0"]]

    class Lazy(Counting):
        def propose(self, requests):
            return [["a"]]

    with pytest.raises(ValueError, match=r"Lazy.* for each of 2 requests, not 1"):
        CandidateActions(LeaverEnv(), Lazy()).reset()


def test_candidates_under_the_prompt():
    env = CandidateActions(
        text_env(max_prompt_chars=30, max_completion_chars=8),
        words_in,
        num_candidates=3,
        show=True,
    )
    space = env.observation_space("agent_0")
    assert space == UnicodeText(30 + 3 * (8 + len("\n0: ")))
    shown, infos = env.reset()
    assert shown["agent_1"] == "x\n0: x\n1: agent_1"
    assert infos["agent_1"]["candidates"] == ["x", "agent_1"]
    longest = "p" * 30 + "".join(f"\n{k}: {'w' * 8}" for k in range(3))
    assert space.contains(longest)
    assert not space.contains(longest + "!")
    last = env.step({"agent_0": 0, "agent_1": 1})
    assert last.observations["agent_1"] == "x"


def test_agents_that_wait_have_one_empty_answer():
    made_for = []

    def candidates(agent):
        made_for.append(agent)
        return ["ant", "quit"]

    class Silent(TakingTurns):
        said = []  # noqa: RUF012

        def __init__(self):
            super().__init__(turns=2)
            self._actions = {agent: UnicodeText(6) for agent in self.possible_agents}

        def step(self, actions):
            self.said.append(actions)
            return super().step(actions)

    env = CandidateActions(Silent(), candidates, num_candidates=2, show=True)
    shown, infos = env.reset(seed=0)
    assert shown == {"ann": "ant\n0: ant\n1: quit", "bob": "bee"}
    assert mask_of(infos, "ann") == [1, 1]
    assert mask_of(infos, "bob") == [1, 0]
    assert infos["bob"]["candidates"] == [""]
    with pytest.raises(ValueError, match=r"bob \(1\) is masked"):
        env.step({"ann": 0, "bob": 1})
    env.step({"ann": 0, "bob": 0})
    assert Silent.said == [{"ann": "ant", "bob": ""}]
    assert made_for == ["ann", "bob"]

    # Stock spaces contain no empty text.
    stock = CandidateActions(TakingTurns(), ["ant", "quit"])
    _, infos = stock.reset(seed=0)
    (idle,) = infos["bob"]["candidates"]
    assert len(idle) == 1
    stock.step({"ann": 0, "bob": 0})
    assert stock.agents == ["ann", "bob"]

    filled = CandidateActions(Silent(), candidates, num_candidates=2, fill="")
    _, infos = filled.reset(seed=0)
    assert mask_of(infos, "bob") == [1, 1]
    filled.step({"ann": 0, "bob": 1})
    assert Silent.said[-1] == {"ann": "ant", "bob": ""}


def test_an_environment_of_a_stranger():
    env = CandidateActions(EchoGame(), [*EchoGame.WORDS, "quit"])
    shown, _ = env.reset(seed=1)
    assert shown == {"ann": "bee", "bob": "cat"}
    result = env.step({"ann": 1, "bob": 4})
    assert result.rewards == {"ann": 1.0, "bob": 0.0}
    assert env.agents == ["ann"]
    assert env.observation_space("bob").contains(result.observations["bob"])
    assert env.step({"ann": 2}).rewards == {"ann": 1.0}
    with pytest.raises(ValueError, match="unknown or finished bob"):
        env.step({"ann": 0, "bob": 0})


def test_the_last_turn_of_an_agent_that_leaves():
    env = CandidateActions(LeaverEnv(), ["a", "b"], num_candidates=3)
    env.reset()
    result = env.step({"agent_0": 0, "agent_1": 1})
    assert mask_of(result.infos, "agent_0") == [1, 1, 0]
    assert mask_of(result.infos, "agent_1") == [1, 1, 1]
    assert result.infos["agent_1"]["candidates"] == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"candidates": 3}, TypeError, r"candidates \(3\) must be a list of texts"),
        ({"candidates": {"agent_0": ["a"]}}, TypeError, "must be a list of texts"),
        ({"candidates": []}, ValueError, r"num_candidates \(0\)"),
        ({"candidates": ["a", 1]}, ValueError, "for agent_0 must be texts; number 1 is an int"),
        ({"candidates": ["a" * 21]}, ValueError, "candidate 0 for agent_0"),
        ({"candidates": ["a", "b"], "num_candidates": 1}, ValueError, "must be 1 to 1 texts"),
        ({"candidates": "choices"}, ValueError, r"num_candidates \(None\) must be given"),
        ({"candidates": words_in, "num_candidates": 0}, ValueError, r"num_candidates \(0\)"),
        ({"candidates": words_in, "num_candidates": 1.5}, TypeError, r"num_candidates \(1.5\)"),
        ({"candidates": lambda row: [row], "num_candidates": 1}, TypeError, "prompt, agent, info"),
        ({"candidates": ["a"], "fill": 1}, TypeError, r"fill \(1\) must be a text"),
        ({"candidates": ["a"], "fill": "a" * 21}, ValueError, "must be in the action space"),
        ({"candidates": ["a"], "show": "yes"}, TypeError, r"show \('yes'\)"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        CandidateActions(text_env(max_completion_chars=20), **arguments)


def test_an_async_function_is_refused():
    async def candidates(prompt):
        return [prompt]

    with pytest.raises(TypeError, match="async"):
        CandidateActions(text_env(), candidates, num_candidates=1)


def test_what_is_inside_must_be_texts():
    env = CandidateActions(text_env(), ["a"])
    with pytest.raises(TypeError, match=r"CandidateActions needs .* actions are texts"):
        CandidateActions(env, ["a"])
    embedded = EmbedObservations(text_env(), HashedNgrams(8))
    CandidateActions(embedded, ["a"])  # it reads no prompts
    for needy in ({"candidates": words_in, "num_candidates": 2}, {"candidates": "a", "show": True}):
        with pytest.raises(TypeError, match="observations are texts"):
            CandidateActions(embedded, **{"num_candidates": 1, **needy})


@pytest.mark.parametrize("action", [-1, 2, 0.0, "a", None])
def test_an_action_outside_the_space(action):
    env = CandidateActions(text_env(), ["a", "b"])
    env.reset()
    with pytest.raises(ValueError, match=r"agent_1.*must be in its action space, Discrete\(2\)"):
        env.step({"agent_0": 0, "agent_1": action})


def test_a_step_outside_an_episode():
    env = CandidateActions(text_env(), ["a"])
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step({"agent_0": 0, "agent_1": 0})


def record(env, seed):
    """An episode of sampled allowed actions, as plain values."""
    rng = np.random.default_rng(seed)
    shown, infos = env.reset(seed=seed)
    episode = [(shown, {a: infos[a]["candidates"] for a in env.agents})]
    while env.agents:
        actions = {a: int(rng.choice(np.flatnonzero(infos[a]["action_mask"]))) for a in env.agents}
        shown, rewards, _, _, infos = env.step(actions)
        episode.append((shown, rewards, {a: infos[a]["candidates"] for a in env.agents}))
    return episode


def make_envs():
    return {
        "list": CandidateActions(coordination_v0.parallel_env(num_turns=2), WORDS),
        "function": CandidateActions(
            coordination_v0.parallel_env(num_turns=2, shuffle=True), words_in, num_candidates=9
        ),
        "stranger": CandidateActions(EchoGame(), [*EchoGame.WORDS, "quit"]),
        "leaver": CandidateActions(LeaverEnv(), ["a", "b"]),
    }


@pytest.mark.parametrize("name", list(make_envs()))
def test_the_same_seed_gives_the_same_episode_also_in_copies(name):
    env = make_envs()[name]
    expected = record(env, 5)
    assert record(env, 5) == expected
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert record(twin, 5) == expected


def test_copies_share_the_function_and_play_apart():
    class Stateful:
        def __call__(self, prompt):
            return [prompt]

    source = Stateful()
    env = CandidateActions(text_env(num_turns=2), source, num_candidates=1)
    env.reset()
    twin = copy.deepcopy(env)
    assert twin.source.func is source
    twin.step({"agent_0": 0, "agent_1": 0})
    assert env.act("agent_0", 0) == "x"
    assert twin.act("agent_0", 0) == "0|x|x"


def chains():
    coordination = coordination_v0.parallel_env
    return [
        CandidateActions(coordination(num_turns=2), WORDS),
        CandidateActions(coordination(), words_in, num_candidates=4, fill="red"),
        ActionMask(CandidateActions(coordination(num_turns=2), words_in, num_candidates=9)),
        EmbedObservations(CandidateActions(coordination(), WORDS), HashedNgrams(16)),
        CandidateActions(EmbedObservations(coordination(), HashedNgrams(16)), WORDS),
        ActionMask(
            EmbedObservations(
                CandidateActions(coordination(), WORDS, num_candidates=6, show=True),
                HashedNgrams(16),
            ),
            key="observations",
        ),
    ]


@pytest.mark.parametrize("index", range(len(chains())))
def test_pettingzoos_own_suite(index):
    parallel_api_test(chains()[index], num_cycles=20)


def test_turns_are_counted_in_each_episode():
    env = CandidateActions(EchoGame(turns=2), ["ant"], num_candidates=2)
    for _ in range(2):
        env.reset()
        env.step({"ann": 0, "bob": 0})
        with pytest.raises(ValueError, match=r"masked, there are 1 .* in turn 1;"):
            env.step({"ann": 1, "bob": 0})


def test_no_row_is_named_where_there_is_none():
    env = CandidateActions(EchoGame(), lambda: [], num_candidates=2)
    with pytest.raises(ValueError, match=r"for ann \(turn 0\) must be 1 to 2 texts, not 0"):
        env.reset()


def test_a_linear_policy_learns_on_the_numbers():
    """REINFORCE with a mean baseline, in numpy: what any library could do with this view."""
    env = EmbedObservations(
        CandidateActions(coordination_v0.parallel_env(), WORDS), HashedNgrams(32)
    )
    rng = np.random.default_rng(0)
    weights = {agent: np.zeros((32, 4)) for agent in env.possible_agents}
    returns = []
    for _ in range(1500):
        shown, _ = env.reset()
        chances, actions = {}, {}
        for agent, vector in shown.items():
            logits = vector @ weights[agent]
            chances[agent] = np.exp(logits) / np.exp(logits).sum()
            actions[agent] = int(rng.choice(4, p=chances[agent]))
        rewards = env.step(actions).rewards
        baseline = np.mean(returns[-100:]) if returns else 0.0
        for agent, vector in shown.items():
            gradient = np.eye(4)[actions[agent]] - chances[agent]
            weights[agent] += (rewards[agent] - baseline) * np.outer(vector, gradient)
        returns.append(rewards["agent_0"])
    assert np.mean(returns[:40]) < 0.35
    assert np.mean(returns[-100:]) > 0.8
    assert isinstance(env.unwrapped, TextEnv)
