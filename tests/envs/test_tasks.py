"""The built-in tasks: rewards, conformance with our checks and with PettingZoo's."""

import importlib
import math
import pickle
import subprocess
import sys
import warnings

import pytest
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test, state_test

import marlogue.envs
from marlogue.envs import (
    NUMERIC_TASKS,
    TASKS,
    check_text_env,
    code_pair_v0,
    coordination_v0,
    make,
    make_numeric,
    story_length_v0,
)
from tests.support.envs import actions
from tests.support.libraries import needs_coding

CODE_PAIR = {"num_turns": 2, "transition": "diagnosis", "shuffle": True}
VARIANTS = [
    pytest.param("code_pair_v0", {}, marks=needs_coding),
    pytest.param("code_pair_v0", CODE_PAIR, marks=needs_coding),
    ("story_length_v0", {}),
    ("story_length_v0", {"shuffle": True}),
    ("coordination_v0", {}),
    ("coordination_v0", {"num_turns": 2}),
    ("coordination_v0", {"num_turns": 2, "num_agents": 3, "shuffle": True}),
    ("coordination_v0", {"num_turns": 4, "early_termination_threshold": 0.5}),
]
MODULES = {
    "code_pair_v0": code_pair_v0,
    "coordination_v0": coordination_v0,
    "story_length_v0": story_length_v0,
}


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
class TestConformance:
    def test_our_checks(self, name, settings):
        check_text_env(make(name, **settings))

    @pytest.mark.filterwarnings("ignore:Agent was given info")  # __common__, which the API allows
    def test_parallel_api(self, name, settings):
        parallel_api_test(make(name, **settings), num_cycles=20)

    def test_parallel_seed(self, name, settings):
        parallel_seed_test(lambda: make(name, **settings), num_cycles=20)

    @pytest.mark.filterwarnings("ignore")  # recommends arrays in place of texts
    def test_aec_api(self, name, settings, monkeypatch):
        # PettingZoo reads `observation.dtype`, which no str has: that comparison is left out, the
        # rest of its test runs as it is.
        monkeypatch.setattr(
            importlib.import_module("pettingzoo.test.api_test"),
            "_test_observation_space_compatibility",
            lambda expected, seen, recursed_keys: None,
        )
        api_test(MODULES[name].env(**settings), num_cycles=20)

    def test_aec_seed(self, name, settings):
        seed_test(lambda: MODULES[name].env(**settings), num_cycles=20)

    @pytest.mark.filterwarnings("ignore")  # recommends arrays in place of texts
    def test_state(self, name, settings):
        state_test(MODULES[name].env(**settings), make(name, **settings))

    def test_aec_resets_without_a_warning(self, name, settings):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            MODULES[name].env(**settings).reset(seed=0)

    def test_can_be_pickled(self, name, settings):
        env = pickle.loads(pickle.dumps(make(name, **settings)))
        assert str(env) == name


class TestStoryLength:
    @pytest.mark.parametrize(
        ("lengths", "expected"),
        [
            ((10, 20), 1.0),
            ((10, 25), 1.0),
            ((10, 30), 1.0),
            ((10, 15), math.exp(-0.5)),
            ((10, 10), math.exp(-1.0)),
            ((10, 45), math.exp(-1.5)),
            ((10, 0), 0.0),
            ((0, 10), 0.0),
            ((0, 0), 0.0),
        ],
    )
    def test_reward(self, lengths, expected):
        short, long = ("x" * length for length in lengths)
        assert story_length_v0.reward([short], [long]) == [pytest.approx(expected, rel=1e-12)]

    def test_white_space_around_a_text_does_not_count(self):
        assert story_length_v0.reward(["ab "], ["a cd" + " " * 50]) == [1.0]
        assert story_length_v0.reward(["   "], ["text"]) == [0.0]

    def test_length_is_in_characters(self):
        assert story_length_v0.reward(["é�"], ["\N{SLIGHTLY SMILING FACE}abc"]) == [1.0]

    def test_prompts(self):
        env = story_length_v0.parallel_env()
        shown, infos = env.reset(options={"row": 0})
        assert shown == {
            "short": "Write one short sentence about a lighthouse keeper.",
            "long": "Write two sentences about a lighthouse keeper.",
        }
        assert infos["short"]["item"]["topic"] == "a lighthouse keeper"

    def test_the_built_in_rows(self):
        rows = story_length_v0.dataset()
        assert len(rows) == len({row["topic"] for row in rows}) >= 36

    def test_arguments_can_be_replaced(self):
        env = story_length_v0.parallel_env(dataset=[{"prompt": "tea"}], num_agents=2)
        assert env.reset()[0]["agent_1"] == "Write two sentences about tea."


class TestCoordination:
    def rewards(self, *answers, **settings):
        env = coordination_v0.parallel_env(num_agents=len(answers), **settings)
        env.reset(options={"row": 0})
        return env.step(actions(*answers)).rewards

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            (("red", "red"), 1.0),
            (("red", "gold"), 0.25),
            (("gold", "gold"), 0.0),
            (("", ""), 0.0),
            ((" red and more", "red"), 1.0),
            (("redder", "Red"), 0.0),
            (("red", "red", "blue", "red"), 0.375),
        ],
    )
    def test_reward(self, answers, expected):
        assert set(self.rewards(*answers).values()) == {expected}

    def test_the_stated_random_level(self):
        words = list(coordination_v0.ANSWERS.values())
        rows = coordination_v0.dataset()
        rewards = [
            coordination_v0.reward([a], [b], batch_items=[row])[0]
            for row in rows
            for a in words
            for b in words
        ]
        assert sum(rewards) / len(rewards) == pytest.approx(0.15625)

    def test_all_prompts_and_answers_are_in_the_vocabulary(self):
        env = coordination_v0.parallel_env(num_turns=2)
        for row in coordination_v0.dataset():
            for said in ("red", "something else", "", row["answer"]):
                shown, _ = env.reset(options={"item": row})
                words = [*shown["agent_0"].split(), row["answer"]]
                result = env.step(actions(said, "blue"))
                words += " ".join(result.observations.values()).split()
                assert set(words) <= set(coordination_v0.VOCABULARY)
        assert len(set(coordination_v0.VOCABULARY)) == len(coordination_v0.VOCABULARY)

    def test_agents_hear_the_next_one(self):
        env = coordination_v0.parallel_env(num_turns=2, num_agents=3)
        env.reset(options={"row": 1})
        shown = env.step(actions("red", "blue it is", "purple")).observations
        assert shown == actions("noon heard blue", "noon heard nothing", "noon heard red")

    def test_one_agent_has_nobody_to_agree_with(self):
        for settings in ({"num_agents": 1}, {"agents": ["alone"]}):
            with pytest.raises(ValueError, match="2 or more"):
                coordination_v0.parallel_env(**settings)


class TestRegistry:
    @pytest.mark.parametrize(
        "name",
        [pytest.param(n, marks=needs_coding if n == "code_pair_v0" else []) for n in TASKS],
    )
    def test_makes_tasks_by_name(self, name):
        env = make(name, render_mode="ansi")
        assert str(env) == name
        assert env.render_mode == "ansi"

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("story_lenght_v0", "did you mean 'story_length_v0'"),
            ("coordination", "did you mean 'coordination_v0'"),
            ("zzz", "choose one of them"),
        ],
    )
    def test_names_the_nearest(self, name, hint):
        with pytest.raises(ValueError, match=hint):
            make(name)

    @pytest.mark.parametrize("name", NUMERIC_TASKS)
    def test_makes_tasks_of_vectors_by_name(self, name):
        env = make_numeric(name, num_agents=5)
        assert env.metadata["name"] == name
        assert len(env.possible_agents) == 5

    def test_names_the_nearest_task_of_vectors(self):
        with pytest.raises(ValueError, match="did you mean 'spread_v0'"):
            make_numeric("spread")


def test_the_public_names_exist():
    assert sorted(set(marlogue.envs.__all__)) == sorted(marlogue.envs.__all__)
    assert all(hasattr(marlogue.envs, name) for name in marlogue.envs.__all__)


def test_importing_is_light():
    heavy = "{'torch', 'transformers', 'datasets', 'stable_baselines3'}"
    code = f"import sys, marlogue.envs; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
