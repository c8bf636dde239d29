"""TextArena's games as parallel environments, and our learners on them."""

from __future__ import annotations

import copy
import pickle
import random

import pytest
import torch
from pettingzoo.test import parallel_api_test

from marlogue import IACConfig, IACTrainer, MAACConfig, MAACTrainer, tiny_model
from marlogue.envs import WAITS, check_text_env
from marlogue.wrappers import (
    CandidateActions,
    EmbedObservations,
    HashedNgrams,
    History,
    NumericState,
)
from tests.support.command_line import ROOT
from tests.support.example_runs import returns_of
from tests.support.libraries import needs
from tests.support.team import Recorder, weights

ta = needs("textarena")
tictactoe = needs("textarena.envs.TicTacToe.env")
textarena_env = needs("marlogue.wrappers.textarena").textarena_env
pytestmark = pytest.mark.optional

CELLS = [f"[{cell}]" for cell in range(9)]


def play(env, moves, seed=0):
    """What reset returned, and the steps of movers that say the moves one after the other."""
    returned = [env.reset(seed=seed)]
    for move in moves:
        returned.append(env.step(dict.fromkeys(env.agents, move)))
    return returned


@pytest.mark.parametrize(
    ("game", "players"),
    [
        ("TicTacToe-v0", 2),
        ("TicTacToe-v0-train", 2),
        ("TicTacToe-v0-raw", 2),
        ("GuessTheNumber-v0", 1),
        ("KuhnPoker-v0", 2),  # keeps its shuffled deck from game to game
        ("SimpleNegotiation-v0", 2),
        ("PigDice-v0-short-train", 2),  # draws while it is played
        ("Taboo-v0", 4),
        ("LiarsDice-v0", 3),
        ("Snake-v0", 3),
    ],
)
def test_games_conform(game, players):
    env = textarena_env(game, players, truncate_after=40)
    check_text_env(env)
    assert env.possible_agents == [f"player_{index}" for index in range(players)]
    assert env.metadata["name"] == game


def test_pettingzoos_own_suite():
    parallel_api_test(textarena_env("TicTacToe-v0"), num_cycles=40)


@pytest.mark.parametrize(
    ("game", "players", "moves"),
    [
        ("TicTacToe-v0", 2, ["[0]", "4", "[1]", "[4]", "nonsense", "[8]", "[2]"]),
        ("TicTacToe-v0-train", 2, ["[0]", "[0]", "[0]"]),
        ("GuessTheNumber-v0", 1, ["[3]", "[20]", "[7]", "none", "[9]", "none", "none"]),
        ("KuhnPoker-v0-short", 2, ["[bet]", "[call]", "[check]", "[bet]", "[fold]", "[check]"]),
    ],
)
@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_game_as_textarena_plays(game, players, moves, seed):
    env = textarena_env(game, players)
    own = ta.make(game)
    own.reset(num_players=players, seed=seed)
    shown, infos = env.reset(seed=seed)
    for move in moves:
        player, text = own.get_observation()
        mover = f"player_{player}"
        assert shown[mover] == text
        assert [agent for agent in env.agents if not infos[agent][WAITS]] == [mover]
        done, _ = own.step(move)
        shown, rewards, terminations, truncations, infos = env.step(dict.fromkeys(env.agents, move))
        assert set(terminations.values()) == {done}
        assert not any(truncations.values())
        if done:
            break
        assert not any(rewards.values())
    if done:
        final, facts = own.close()
        assert rewards == {f"player_{player}": float(final[player]) for player in final}
        for player, said in facts.items():
            told = infos[f"player_{player}"]
            assert {key: told[key] for key in said} == said


def test_an_invalid_move_is_forgiven_once():
    env = textarena_env("TicTacToe-v0")
    _, first, second = play(env, ["[9]", "[9]"])
    assert not first.infos["player_0"][WAITS]
    assert first.infos["player_1"][WAITS]
    assert "Please resubmit a valid move" in first.observations["player_0"]
    assert first.observations["player_1"] == ""
    assert second.rewards == {"player_0": -1.0, "player_1": 1.0}
    assert second.infos["player_0"]["invalid_move"] is True
    assert second.infos["player_1"]["reason"] == "9. Must be between 0 and 8."
    assert "Current Board" in second.observations["player_1"]
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step({"player_0": "[1]", "player_1": ""})


def test_nothing_is_left_of_the_game_before():
    env = textarena_env("TicTacToe-v0")
    first = play(env, ["[0]", "[1]", "[2]"])
    assert play(env, ["[0]", "[1]", "[2]"]) == first


def test_games_without_a_seed_differ_and_follow_from_the_last_seed():
    env = textarena_env("GuessTheNumber-v0", 1)

    def numbers():
        env.reset(seed=5)
        drawn = []
        for _ in range(8):
            env.reset()
            drawn.append(env.game._base.game_number)
        return drawn

    before = random.getstate()
    assert len(set(numbers())) > 3
    assert numbers() == numbers()
    assert random.getstate() == before


def test_fresh_games_without_a_seed_differ():
    drawn = set()
    for _ in range(8):
        env = textarena_env("GuessTheNumber-v0", 1)
        env.reset()
        drawn.add(env.game._base.game_number)
    assert len(drawn) > 2


def test_copies_in_the_middle_of_a_game():
    env = textarena_env("PigDice-v0-short")
    play(env, ["[roll]", "[roll]"])
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    assert twins[0].game._fresh is env.game._fresh  # word lists are not copied for every episode
    for move in ("[roll]", "[hold]", "[roll]", "[roll]"):
        actions = dict.fromkeys(env.agents, move)
        step = env.step(actions)
        for twin in twins:
            assert twin.step(actions) == step


class Board(ta.ObservationWrapper):
    """The cells, and no word besides."""

    def __init__(self, env, empty):
        super().__init__(env)
        self.empty = empty

    def observation(self, player_id, observation):
        board = [text for _, text, kind in observation if kind == ta.ObservationType.GAME_BOARD][-1]
        cells = board.split("Available")[0].replace("|", " ").replace("---+---+---", " ")
        return " ".join(self.empty if cell.isdigit() else cell for cell in cells.split()[2:])


def test_a_game_that_was_made_and_wrapped_already():
    """TextArena itself can neither pickle nor copy this wrapper, which has another argument."""
    made = Board(tictactoe.TicTacToeEnv(), empty=".")
    env = textarena_env(made)
    _, step = play(env, ["[4]"])
    assert step.observations == {"player_0": ". . . . . . . . .", "player_1": ". . . . O . . . ."}
    assert not hasattr(made.env, "state")  # it was copied, not played
    assert "O" in env.render()
    check_text_env(env)


def test_truncation():
    env = textarena_env("PigDice-v0", truncate_after=3)
    steps = play(env, ["[roll]"] * 3)
    assert steps[-1].truncations == {"player_0": True, "player_1": True}
    assert steps[-1].terminations == {"player_0": False, "player_1": False}


def test_arguments_of_the_game():
    env = textarena_env("GuessTheNumber-v0", 1, max_turns=2)
    steps = play(env, ["[20]", "[19]", "[18]"])
    assert steps[-1].terminations == {"player_0": True}
    assert 0 <= steps[-1].rewards["player_0"] < 1


def test_bad_arguments():
    with pytest.raises(ValueError, match="NoSuchGame-v0 not found") as caught:
        textarena_env("NoSuchGame-v0")
    assert caught.value.__notes__ == ["while making NoSuchGame-v0 of TextArena"]
    with pytest.raises(ValueError, match=r"num_players \(3\) must suit TicTacToe-v0, which says: "):
        textarena_env("TicTacToe-v0", 3)
    with pytest.raises(ValueError, match=r"num_players \(0\) must be 1 or more"):
        textarena_env("TicTacToe-v0", 0)
    with pytest.raises(TypeError, match=r"max_turns.* are for textarena.make; leave them out"):
        textarena_env(tictactoe.TicTacToeEnv(), max_turns=3)
    with pytest.raises(TypeError, match=r"must be an id of TextArena, or a textarena\.Env"):
        textarena_env(tictactoe.TicTacToeEnv)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        textarena_env("TicTacToe-v0", colour="red")


def test_a_game_with_a_faulty_reward():
    """This game hands its reason over as the reward."""
    env = textarena_env("ThreeCardMonte-v0", 1, truncate_after=9)
    play(env, ["nonsense"])
    with pytest.raises(ValueError, match=r"the reward is '.*it must be a number"):
        env.step({"player_0": "nonsense"})


def test_other_views_around_a_game():
    """The widest net: vectors and numbered moves, where who waits has one move that is ignored."""
    texts = CandidateActions(History(textarena_env("TicTacToe-v0-train"), 4000), CELLS)
    env = NumericState(EmbedObservations(texts, HashedNgrams(64)))
    shown, infos = env.reset(seed=0)
    assert shown["player_0"].shape == (64,)
    assert infos["player_0"]["action_mask"].tolist() == [1] * 9
    assert infos["player_1"]["action_mask"].tolist() == [1] + [0] * 8
    shown, rewards, *_ = env.step({"player_0": 4, "player_1": 0})
    for _ in range(2):  # an occupied cell twice
        _, rewards, *_ = env.step({"player_0": 0, "player_1": 4})
    assert rewards == {"player_0": 1.0, "player_1": -1.0}


@pytest.mark.parametrize("learner", ["maac", "iac"])
def test_learners_play_tic_tac_toe(learner):
    """Two agents, the rules and all: who moves is trained, and each outcome arrives."""
    words = [*CELLS, *"012345678XO|", "Current", "Available", "invalid"]
    models = [tiny_model(words, seed=seed, n_layer=1, n_positions=1024)[0] for seed in range(4)]
    settings = {
        "num_turns": 20,
        "max_steps": 32,
        "rollout_buffer_size": 16,
        "agent_learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
        "max_new_tokens": 1,
        "eval_interval": 0,
        "verbose": False,
    }
    team = {
        "agents": models[:2],
        "tokenizer": tiny_model(words, n_layer=1, n_positions=1024)[1],
        "env": textarena_env("TicTacToe-v0-train"),
        "callbacks": [recorder := Recorder()],
    }
    if learner == "maac":
        trainer = MAACTrainer(critic_model=models[2], args=MAACConfig(**settings), **team)
    else:
        trainer = IACTrainer(critics=models[2:], args=IACConfig(**settings), **team)
    before = weights(trainer)
    trainer.train()
    moved = {
        name for name, tensor in weights(trainer).items() if not torch.equal(tensor, before[name])
    }
    for part in ("agent 0", "agent 1", "critic 0"):
        assert any(name.startswith(part) for name in moved)

    assert len(recorder.items) == 32
    outcomes = set()
    for samples in recorder.items:
        turns = [sample.turn_idx for sample in samples]
        assert turns == list(range(len(samples)))  # one sample a move, that of the mover
        assert samples[0].agent == "player_0"
        earned = {a: [s.reward for s in samples if s.agent == a] for a in ("player_0", "player_1")}
        ends = {agent: sum(rewards) for agent, rewards in earned.items()}
        if any(sample.agent == "player_1" for sample in samples):
            assert ends["player_0"] == -ends["player_1"]  # who wins and who loses, or a draw
            outcomes.add(ends["player_0"])
        else:
            assert ends["player_0"] == -1  # lost by invalid moves before the other had a turn
        assert not any(any(rewards[:-1]) for rewards in earned.values())
    assert outcomes >= {-1.0, 1.0}


@pytest.mark.slow
def test_two_agents_learn_a_game_with_maac():
    before, after = returns_of(ROOT / "examples" / "plugging_in" / "textarena_maac.py")
    assert before < 0.4
    assert after > 0.7
