"""Environments of gem as parallel ones, for an agent and for a team, and learners on them."""

from __future__ import annotations

import copy
import pickle
import random

import pytest
import torch
from pettingzoo.test import parallel_api_test

from marlogue import MAACConfig, MAACTrainer, tiny_model
from marlogue.envs import check_text_env
from tests.support.command_line import ROOT
from tests.support.example_runs import returns_of
from tests.support.libraries import needs
from tests.support.team import Recorder, weights

gem = needs("gem")
multiagent = needs("gem.multiagent")
guess_the_number = needs("gem.envs.game_env.guess_the_number")
observation_wrapper = needs("gem.wrappers.observation_wrapper")
gem_env = needs("marlogue.wrappers.gem").gem_env
pytestmark = pytest.mark.optional

GUESS = "game:GuessTheNumber-v0-easy"


def boxed(texts):
    """The team's digits as one answer."""
    return rf"\boxed{{{' '.join(texts)}}}"


def whole_team(agent, text):
    """Tells each agent which place is its own."""
    return f"{text} You are {agent}."


@pytest.mark.parametrize(
    "name",
    [GUESS, "game:GuessTheNumber-v0-random", "game:Minesweeper-v0-easy", "game:Sudoku-v0-easy"],
)
@pytest.mark.parametrize("history", [True, False])
def test_environments_conform(name, history):
    env = gem_env(name, history=history)
    check_text_env(env)
    assert env.possible_agents == ["agent_0"]
    assert str(env) == f"GemEnv<{name}>"


def test_a_team_conforms():
    env = gem_env("game:Mastermind-v0-easy", 2, join=boxed, show=whole_team)
    check_text_env(env)
    parallel_api_test(env, num_cycles=20)
    shown, _ = env.reset(seed=0)
    assert shown["agent_1"].endswith("You are agent_1.")
    step = env.step({"agent_0": "3", "agent_1": "5"})
    assert step.infos["agent_0"]["action"] == r"\boxed{3 5}"
    assert "you guessed [3, 5]" in step.observations["agent_0"]
    assert step.rewards["agent_0"] == step.rewards["agent_1"]


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_game_as_gem_plays(seed):
    env = gem_env(GUESS, history=False)
    own = gem.make(GUESS)
    text, facts = own.reset(seed=seed)
    shown, infos = env.reset(seed=seed)
    for guess in range(4, 9):
        assert shown["agent_0"] == f"{text}\n{facts['suffix']}"
        assert infos["agent_0"]["suffix"] == facts["suffix"]
        said = rf"I think \boxed{{{guess}}}"
        text, reward, terminated, truncated, facts = own.step(said)
        shown, rewards, terminations, truncations, infos = env.step({"agent_0": said})
        assert (rewards, terminations, truncations) == (
            {"agent_0": reward},
            {"agent_0": terminated},
            {"agent_0": truncated},
        )
        if terminated:
            break
    assert terminated
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step({"agent_0": "1"})


def test_history():
    env = gem_env(GUESS)
    rules = env.reset(seed=1)[0]["agent_0"]
    step = env.step({"agent_0": r"\boxed{9}"})
    seen = step.observations["agent_0"]
    assert seen.startswith(rules.removesuffix("Enter your next guess.") + r"\boxed{9}")
    assert seen.count("Enter your next guess.") == 1


def test_an_environment_that_was_made_already():
    made = guess_the_number.GuessTheNumberEnv(min_number=1, max_number=2, max_turns=1)
    number = made.game_number
    env = gem_env(made)
    assert env.reset(seed=0)[0]["agent_0"].endswith("Enter your next guess.")
    assert made.game_number == number
    wrapped = observation_wrapper.ObservationWrapper(
        made, include_action=False, include_chat_template=False
    )
    env = gem_env(wrapped)
    check_text_env(env)
    assert env.reset(seed=0)[0]["agent_0"].count("Enter your next guess.") == 1


def test_copies_and_generators():
    before = random.getstate()
    env = gem_env("game:Game2048-v0-easy")  # draws at every step
    env.reset(seed=3)
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    for move in ("up", "left", "down", "right", "up"):
        step = env.step({"agent_0": rf"\boxed{{{move}}}"})
        for twin in twins:
            assert twin.step({"agent_0": rf"\boxed{{{move}}}"}) == step
        if not env.agents:
            break
    assert random.getstate() == before

    class Joiner:
        def __call__(self, texts):
            return texts[0]

    team = gem_env(GUESS, 2, join=Joiner())
    assert copy.deepcopy(team).join is team.join  # it may hold a model


def test_truncation():
    env = gem_env("game:Game2048-v0-easy", truncate_after=2)
    env.reset(seed=0)
    steps = [env.step({"agent_0": rf"\boxed{{{move}}}"}) for move in ("left", "up")]
    assert [step.truncations["agent_0"] for step in steps] == [False, True]
    assert not steps[-1].terminations["agent_0"]


class Many(multiagent.MultiAgentEnv):
    def observe(self, agent):
        return ""

    def _process_actions(self, actions):
        return {}, {}, {}, {}, {}


def test_bad_arguments():
    with pytest.raises(ValueError, match="game:None not found") as caught:
        gem_env("game:None")
    assert caught.value.__notes__ == ["while making game:None of gem"]
    with pytest.raises(ValueError, match=r"join \(None\) must make one action of 2 texts"):
        gem_env(GUESS, 2)
    with pytest.raises(TypeError, match=r"join \('x'\) must be callable"):
        gem_env(GUESS, 2, join="x")
    with pytest.raises(TypeError, match=r"must be an id of gem, or a gem\.Env"):
        gem_env(guess_the_number.GuessTheNumberEnv)
    with pytest.raises(TypeError, match=r"or a gem\.Env for one agent"):
        gem_env(Many())
    with pytest.raises(TypeError, match=r"max_turns.* are for gem\.make"):
        gem_env(guess_the_number.GuessTheNumberEnv(), max_turns=1)
    env = gem_env(GUESS, max_completion_chars=3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"the action of agent_0 .* must be in its action space"):
        env.step({"agent_0": "long"})
    with pytest.raises(ValueError, match="raise max_prompt_chars"):
        gem_env(GUESS, max_prompt_chars=9).reset()


def test_bad_callbacks():
    env = gem_env(GUESS, 2, join=lambda texts: 3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"join .* must return a text \(str\), not an int"):
        env.step({"agent_0": "a", "agent_1": "b"})
    env = gem_env(GUESS, 2, join=lambda texts: texts[2])
    env.reset(seed=0)
    with pytest.raises(IndexError) as caught:
        env.step({"agent_0": "a", "agent_1": "b"})
    assert caught.value.__notes__ == ["while join joined ['a', 'b']"]
    with pytest.raises(ValueError, match=r"show .* must return a text \(str\), not None"):
        gem_env(GUESS, show=lambda agent, text: None).reset(seed=0)


@pytest.mark.slow
def test_a_team_learns_mastermind_with_maac():
    """Each of two agents gives a digit of the guess; a text that is none ends the game at -0.1."""
    words = [*"123456", "agent_0.", "agent_1.", "black", "white", "guessed"]
    models = [tiny_model(words, seed=seed, n_layer=1, n_positions=1024) for seed in range(3)]

    def mastermind():
        return gem_env("game:Mastermind-v0-easy", 2, join=boxed, history=False, max_turns=4)

    trainer = MAACTrainer(
        agents=[models[0][0], models[1][0]],
        critic_model=models[2][0],
        tokenizer=models[0][1],
        env=mastermind(),
        eval_env=mastermind(),
        args=MAACConfig(
            num_turns=4,
            max_steps=800,
            rollout_buffer_size=32,
            agent_learning_rate=1.5e-3,
            critic_learning_rate=1.5e-3,
            max_new_tokens=1,
            eval_interval=0,
            eval_num_samples=60,
            eval_batch_size=60,
            verbose=False,
        ),
        metrics_callback=lambda samples: {"return": sum(sample.reward for sample in samples) / 2},
        callbacks=[recorder := Recorder()],
    )
    untrained = weights(trainer)
    before = trainer.evaluate()["eval/return"]
    trainer.train()
    after = trainer.evaluate()["eval/return"]
    assert any(
        not torch.equal(tensor, untrained[name]) for name, tensor in weights(trainer).items()
    )
    assert {sample.agent for samples in recorder.items for sample in samples} == {
        "agent_0",
        "agent_1",
    }
    assert before < 0.1
    assert after > 0.2


@pytest.mark.slow
def test_an_agent_learns_a_game_with_iac():
    before, after = returns_of(
        ROOT / "examples" / "plugging_in" / "gem_iac.py", "--max_steps", "400"
    )
    assert before < 0.1
    assert after > 0.4
