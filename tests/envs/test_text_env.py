"""TextEnv: episodes, flags, infos, errors (C25, C53, C57, C62, C68, C83)."""

import copy
import json
import pickle
import random
import re

import datasets
import numpy as np
import pytest
import torch

from marlogue.envs import TextEnv, UnicodeText
from tests.support.envs import ROWS, actions, echo, length_reward, text_env


def play(env, texts=("a", "b"), **reset):
    """Play an episode; what reset and every step returned."""
    record = [env.reset(**reset)]
    while env.agents:
        record.append(env.step(dict(zip(env.agents, texts, strict=False))))
    return record


def test_a_turn():
    env = text_env()
    shown, infos = env.reset()
    assert shown == {"agent_0": "x", "agent_1": "x"}
    assert infos["agent_0"] == {"turn": 0, "row": 0, "item": ROWS[0]}
    result = env.step(actions("ab", "c"))
    assert result.rewards == {"agent_0": 3.0, "agent_1": 3.0}
    assert result.infos["agent_1"] == {
        "turn": 1,
        "row": 0,
        "item": ROWS[0],
        "raw_reward": 3.0,
        "reward": 3.0,
        "abstained": False,
    }
    assert result.infos["__common__"]["mean_reward"] == 3.0
    assert isinstance(result, tuple)


def test_the_last_turn_is_a_termination_of_all_agents():
    env = text_env(num_turns=2)
    _, first, last = play(env)
    assert set(first.terminations.values()) == set(first.truncations.values()) == {False}
    assert last.terminations == {"agent_0": True, "agent_1": True}
    assert last.truncations == {"agent_0": False, "agent_1": False}
    assert last.infos["__common__"]["ended_by"] == "num_turns"


def test_agents_are_emptied_at_the_end_and_brought_back_by_reset():
    env = text_env(num_turns=2)
    assert env.agents == []
    for _ in range(2):
        env.reset()
        assert env.agents == ["agent_0", "agent_1"]
        env.step(actions("a", "b"))
        assert env.agents == ["agent_0", "agent_1"]
        env.step(actions("a", "b"))
        assert env.agents == []
        with pytest.raises(RuntimeError, match="finished episode"):
            env.step(actions("a", "b"))


@pytest.mark.parametrize("method", ["step", "state", "render"])
def test_nothing_works_before_reset(method):
    env = text_env(render_mode="ansi")
    arguments = [actions("a", "b")] if method == "step" else []
    with pytest.raises(RuntimeError, match="before reset"):
        getattr(env, method)(*arguments)


def test_names():
    env = text_env(agents=["writer", "critic"])
    assert env.possible_agents == ["writer", "critic"]
    assert set(env.reset()[0]) == {"writer", "critic"}
    assert text_env(num_agents=3).possible_agents == ["agent_0", "agent_1", "agent_2"]
    assert text_env(num_agents=1).possible_agents == ["agent_0"]
    assert str(text_env(name="mine_v3")) == "mine_v3"


class TestRows:
    def test_in_order_and_around(self):
        env = text_env()
        assert [env.reset()[1]["agent_0"]["row"] for _ in range(4)] == [0, 1, 2, 0]

    def test_chosen_rows_do_not_move_the_order(self):
        env = text_env()
        assert env.reset(options={"row": np.int64(2)})[0]["agent_0"] == "z"
        assert env.reset(options={"item": {"prompt": "own"}})[0]["agent_0"] == "own"
        assert env.reset()[1]["agent_0"]["row"] == 0

    def test_an_item_may_bring_its_number(self):
        infos = text_env().reset(options={"item": {"prompt": "own"}, "row": 41})[1]
        assert infos["agent_0"]["row"] == 41
        assert text_env().reset(options={"item": {"prompt": "own"}})[1]["agent_0"]["row"] is None

    def test_an_item_is_copied(self):
        item = {"prompt": "own", "tags": ["a"]}
        env = text_env(formatters=lambda row: row["tags"].pop())
        assert env.reset(options={"item": item})[0] == actions("a", "a")
        assert item == {"prompt": "own", "tags": ["a"]}

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"row": 3}, ValueError),
            ({"row": -1}, ValueError),
            ({"row": "0"}, TypeError),
            ({"row": True}, TypeError),
            ({"item": "text"}, TypeError),
            ({"item": {"prompt": "x"}, "row": "first"}, TypeError),
        ],
    )
    def test_bad_options_are_refused(self, options, error):
        with pytest.raises(error, match=r"row|item"):
            text_env().reset(options=options)

    def test_unknown_options_are_tolerated(self):
        assert text_env().reset(options={"difficulty": 3})[0]["agent_0"] == "x"

    def test_shuffled_by_a_private_generator(self):
        env = text_env(dataset=[{"prompt": str(i)} for i in range(6)], shuffle=True)
        states = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        torch_state = torch.get_rng_state()
        first = env.reset(seed=0)[1]["agent_0"]["row"]
        assert [first] + [env.reset()[1]["agent_0"]["row"] for _ in range(7)] == (
            [2, 5, 3, 0, 1, 4, 3, 0]
        )
        assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), torch_state)

    def test_the_same_seed_starts_the_order_anew(self):
        env = text_env(shuffle=True)
        assert play(env, seed=5) == play(env, seed=5)
        env = text_env()
        env.reset()
        assert env.reset(seed=1)[1]["agent_0"]["row"] == 0

    def test_streams(self):
        stream = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
        env = text_env(dataset=stream)
        assert [env.reset()[0]["agent_0"] for _ in range(4)] == ["x", "y", "z", "x"]
        with pytest.raises(ValueError, match="cannot be chosen in a streaming dataset"):
            env.reset(options={"row": 1})
        with pytest.raises(ValueError, match="shuffle"):
            text_env(dataset=stream, shuffle=True)

    def test_datasets(self):
        env = text_env(dataset=datasets.Dataset.from_list(ROWS))
        assert env.reset(options={"row": 1})[1]["agent_0"]["item"] == ROWS[1]
        assert env.dataset.num_rows == 3

    def test_callbacks_cannot_write_into_the_dataset(self):
        rows = [{"prompt": "x", "seen": []}]

        def formatter(item, external_prompts=None):
            item["prompt"] += "!"
            item["seen"].append(1)
            return item["prompt"]

        def reward(a, b, batch_items):
            batch_items[0]["prompt"] = "spoilt"
            return [0.0]

        def transition(item, prompt, num_agents, infos, prompt_history_per_agent, **_):
            assert (item, prompt) == ({"prompt": "x", "seen": []}, "x")
            item.clear()
            infos["agent_0"]["item"]["seen"].append(2)
            prompt_history_per_agent[0].append("spoilt")
            return ["t"] * num_agents

        env = TextEnv(
            rows, reward, formatters=formatter, external_transition=transition, num_turns=3
        )
        for _ in range(3):
            reset, first, second, _ = play(env)
            assert set(reset[0].values()) == {"x!"}
            assert set(first.observations.values()) == {"t!"}
            assert set(second.observations.values()) == {"t!"}
            assert second.infos["agent_0"]["item"] == {"prompt": "x", "seen": []}
        assert rows == [{"prompt": "x", "seen": []}]


class TestEarlyTermination:
    def rewarded(self, *rewards, **kwargs):
        script = iter(rewards)
        return text_env(reward_func=lambda a, b: next(script), num_turns=3, **kwargs)

    def test_nothing_ends_early_by_default(self):
        assert len(play(self.rewarded([0.0], [0.0], [1.0]))) == 1 + 3

    def test_strictly_above_the_threshold(self):
        env = self.rewarded([0.5], [0.6], early_termination_threshold=0.5)
        _, first, second = play(env)
        assert not any(first.terminations.values())
        assert all(second.terminations.values())
        assert not any(second.truncations.values())
        assert second.infos["__common__"]["ended_by"] == "early_termination_threshold"

    def test_the_mean_is_over_the_agents_that_got_a_reward(self):
        assert len(play(self.rewarded([1.0, 0.0], [0], [0], early_termination_threshold=0.5))) == 4
        assert len(play(self.rewarded([1.0, None], early_termination_threshold=0.5))) == 2
        assert len(play(self.rewarded([None], [0], [0], early_termination_threshold=-1))) == 3

    def test_the_processed_reward_counts(self):
        env = self.rewarded([1.0], early_termination_threshold=5, reward_processor=lambda r: 10 * r)
        assert len(play(env)) == 2

    @pytest.mark.parametrize(
        ("threshold", "error"), [(float("nan"), ValueError), ("0.5", TypeError), (True, TypeError)]
    )
    def test_bad_thresholds_are_refused(self, threshold, error):
        with pytest.raises(error, match="early_termination_threshold"):
            text_env(early_termination_threshold=threshold)


def test_abstention_is_zero_for_pettingzoo_and_told_in_the_info():
    env = text_env(reward_func=lambda a, b: [None, 2.0], reward_processor=lambda r: r + 1)
    env.reset()
    result = env.step(actions("a", "b"))
    assert result.rewards == {"agent_0": 0.0, "agent_1": 3.0}
    left_out, kept = result.infos["agent_0"], result.infos["agent_1"]
    assert (left_out["abstained"], left_out["reward"], left_out["raw_reward"]) == (True, None, None)
    assert (kept["abstained"], kept["reward"], kept["raw_reward"]) == (False, 3.0, 2.0)


class TestSpaces:
    def test_one_object_per_agent_and_kind(self):
        env = text_env(max_prompt_chars=10, max_completion_chars=5)
        spaces = [
            space(agent)
            for space in (env.observation_space, env.action_space)
            for agent in env.possible_agents
        ]
        assert len({id(space) for space in spaces}) == 4
        assert spaces[0] is env.observation_space("agent_0")
        assert spaces[0] == UnicodeText(10)
        assert spaces[2] == UnicodeText(5)

    def test_texts_of_any_kind_go_through(self):
        texts = ["two words", "", "a\nline", "naïve", "\N{SLIGHTLY SMILING FACE}", "�"]
        env = text_env(dataset=[{"prompt": text} for text in texts])
        for text in texts:
            shown, _ = env.reset()
            assert shown["agent_0"] == text
            assert env.observation_space("agent_0").contains(text)
            result = env.step(actions(text, text))
            assert result.rewards["agent_0"] == 2 * len(text)
            json.dumps(result.infos)

    def test_too_long_texts_are_errors(self):
        env = text_env(max_completion_chars=3)
        env.reset()
        with pytest.raises(
            ValueError, match=r"agent_1 has 4 characters.*max_completion_chars \(3\)"
        ):
            env.step(actions("abc", "abcd"))
        assert env.step(actions("abc", "abc")).rewards["agent_0"] == 6
        with pytest.raises(
            ValueError, match=r"prompt of agent_0 has 2 characters \(row 1, turn 0\)"
        ):
            text_env(dataset=[{"prompt": "a"}, {"prompt": "ab"}], max_prompt_chars=1).reset(
                options={"row": 1}
            )
        env = text_env(max_prompt_chars=1, num_turns=2)
        env.reset()
        with pytest.raises(ValueError, match=r"row 0, turn 1"):
            env.step(actions("a", "b"))

    def test_the_state_is_in_its_space(self):
        env = text_env(max_prompt_chars=4)
        env.reset()
        assert env.state() == "[Agent 0] x\n\n[Agent 1] x"
        env.reset(options={"item": {"prompt": "long"}})
        assert env.state_space.contains(env.state())
        assert len(env.state()) == env.state_space.max_length


class TestInfos:
    def test_fields_that_json_cannot_express_are_left_out(self):
        item = {"prompt": "x", "object": object(), "nan": float("nan"), "list": [1, {"a": None}]}
        _, infos = text_env().reset(options={"item": {**item, 3: "a"}})
        assert infos["agent_0"]["item"] == {"prompt": "x", "list": [1, {"a": None}]}

    def test_dicts_are_fresh(self):
        env = text_env(num_turns=2)
        _, infos = env.reset()
        infos["agent_0"]["item"]["prompt"] = "spoilt"
        first = env.step(actions("a", "b"))
        kept = copy.deepcopy(first)
        assert first.infos["agent_0"]["item"] == ROWS[0]
        for part in first:
            part.clear()
        second = env.step(actions("a", "b"))
        assert set(second.observations) == set(kept.observations)


class TestActions:
    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            ({"agent_0": "a"}, ValueError, "lack agent_1"),
            ({}, ValueError, "lack agent_0, agent_1"),
            (actions("a", "b", "c"), ValueError, "unknown or finished agent_2"),
            ({"agent_0": "a", "agent_1": None}, TypeError, r"agent_1 \(None\).*row 0, turn 0"),
            ({"agent_0": "a", "agent_1": 3}, TypeError, "agent_1"),
            ({"agent_0": "a", "agent_1": ["b"]}, TypeError, "agent_1"),
            (["a", "b"], TypeError, "must be a dict"),
            (None, TypeError, "must be a dict"),
        ],
    )
    def test_bad_actions_leave_the_episode_where_it_was(self, given, error, message):
        env = text_env()
        env.reset()
        with pytest.raises(error, match=message):
            env.step(given)
        assert env.agents == ["agent_0", "agent_1"]
        assert env.step(actions("a", "b")).rewards["agent_0"] == 2

    def test_a_failing_callback_leaves_the_episode_where_it_was(self):
        fail = [True]

        def reward(a, b):
            if fail.pop():
                raise ConnectionError("judge is away")
            return [1.0]

        env = text_env(reward_func=reward)
        env.reset()
        with pytest.raises(ConnectionError, match="judge is away"):
            env.step(actions("a", "b"))
        fail.append(False)
        assert env.step(actions("a", "b")).rewards["agent_0"] == 1.0


AGAIN = [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))]


@pytest.mark.parametrize("again", AGAIN)
def test_copies_in_mid_episode_go_on_apart(again):
    env = text_env(num_turns=3, shuffle=True)
    env.reset(seed=3)
    env.step(actions("a", "b"))
    twin = again(env)
    first = env.step(actions("c", "d"))
    assert twin.state() != env.state()
    assert twin.step(actions("c", "d")) == first
    twin.step(actions("c", "d"))
    assert (twin.agents, env.agents) == ([], ["agent_0", "agent_1"])
    assert twin.reset() == env.reset()


def test_a_deep_copy_shares_the_dataset():
    env = text_env()
    assert copy.deepcopy(env).dataset is env.dataset
    twin = copy.deepcopy(env)
    twin.action_space("agent_0").seed(0)
    assert twin.action_space("agent_0") is not env.action_space("agent_0")


class TestRender:
    def test_ansi_returns_the_transcript(self, capsys):
        env = text_env(num_turns=2, render_mode="ansi")
        env.reset()
        env.step(actions("hello", "you"))
        text = env.render()
        assert text.splitlines() == [
            "=== row 0 ===",
            "--- turn 0 ---",
            "agent_0 is asked: x",
            "agent_0 answers: hello",
            "agent_1 is asked: x",
            "agent_1 answers: you",
            "rewards: agent_0 8, agent_1 8",
            "--- turn 1 ---",
            "agent_0 is asked: 0|x|hello",
            "agent_1 is asked: 0|x|you",
        ]
        assert capsys.readouterr().out == ""

    def test_human_prints_as_it_goes(self, capsys):
        env = text_env(render_mode="human")
        env.reset(options={"item": {"prompt": "own"}})
        env.step(actions("hello", "you"))
        printed = capsys.readouterr().out
        assert printed.startswith("=== a given item ===\n--- turn 0 ---\n")
        assert env.render() is None
        assert capsys.readouterr().out == printed

    def test_without_a_mode_nothing_but_a_warning(self):
        env = text_env()
        env.reset()
        with pytest.warns(UserWarning, match="render_mode"):
            assert env.render() is None

    def test_other_modes_are_refused(self):
        with pytest.raises(ValueError, match=r"render_mode \('rgb_array'\)"):
            text_env(render_mode="rgb_array")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_turns": 2, "external_transition": None}, ValueError, "needs external_transition"),
        ({"num_turns": 0}, ValueError, r"num_turns \(0\)"),
        ({"num_turns": True}, TypeError, r"num_turns \(True\)"),
        ({"num_turns": 2.0}, TypeError, r"num_turns \(2.0\)"),
        ({"num_agents": 0}, ValueError, r"num_agents \(0\)"),
        ({"num_agents": True}, TypeError, "num_agents"),
        ({"num_agents": "2"}, TypeError, "num_agents"),
        ({"agents": ["a", "a"]}, ValueError, "unique; rename a"),
        ({"agents": []}, ValueError, "at least one"),
        ({"agents": ["a", ""]}, ValueError, "must not contain"),
        ({"agents": ["a", "__common__"]}, ValueError, "must not contain"),
        ({"agents": ["a", 1]}, TypeError, "names"),
        ({"agents": "ab"}, TypeError, "list of names"),
        ({"agents": ["a", "b"], "num_agents": 3}, ValueError, r"num_agents \(3\).*\(2\)"),
        ({"max_prompt_chars": 0}, ValueError, "max_prompt_chars"),
        ({"max_completion_chars": 1.5}, TypeError, "max_completion_chars"),
        ({"shuffle": "false"}, TypeError, "shuffle"),
        ({"external_prompt_passthrough": 1}, TypeError, "external_prompt_passthrough"),
        ({"dataset": []}, ValueError, "dataset is empty"),
        ({"dataset": None}, TypeError, "dataset"),
        ({"reward_func": None}, TypeError, "reward_func"),
        ({"reward_func": lambda a: 0}, TypeError, "there are 2 agents"),
        ({"formatters": [str]}, ValueError, r"formatters \(1\)"),
        ({"external_transition": "next"}, TypeError, "external_transition"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments, error, message):
    with pytest.raises(error, match=re.compile(message)):
        text_env(**arguments)


def test_notes_name_where_a_callback_failed():
    def reward(a, b):
        raise LookupError("no such word")

    env = text_env(reward_func=reward, num_turns=2)
    env.reset(options={"row": 2})
    with pytest.raises(LookupError, match="no such word") as caught:
        env.step(actions("a", "b"))
    assert caught.value.__notes__ == [
        "while calling reward_func "
        "(test_notes_name_where_a_callback_failed.<locals>.reward) "
        "for row 2, turn 0 (1 joint action(s))"
    ]


def test_the_documented_factories():
    from marlogue.envs import env, parallel_env, raw_env

    settings = {"dataset": ROWS, "reward_func": length_reward, "external_transition": echo}
    assert isinstance(parallel_env(**settings), TextEnv)
    for make in (env, raw_env):
        aec = make(**settings)
        aec.reset()
        assert aec.agent_selection == "agent_0"
        assert aec.observe("agent_0") == "x"
