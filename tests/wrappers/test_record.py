"""Record and replay: episodes to a file of lines, and back."""

import copy
import json
import multiprocessing
import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo.test import parallel_api_test

from marlogue.envs import BatchRunner, Start, check_text_env, coordination_v0
from marlogue.wrappers.numeric_state import NumericState
from marlogue.wrappers.record import Record, replay
from marlogue.wrappers.token_by_token import TokenByToken
from marlogue.wrappers.tokens import TokenActions, TokenObservations
from marlogue.wrappers.vocabulary import Words
from tests.support.envs import LeaverEnv, actions, text_env

WORDS = Words(coordination_v0.VOCABULARY, end="<end>")


def two_turns(**kwargs):
    return coordination_v0.parallel_env(num_turns=2, **kwargs)


def play(env, *turns, **how):
    env.reset(**how)
    return [env.step(actions(*texts)) for texts in turns]


def test_what_was_played_is_read_back(tmp_path):
    path = tmp_path / "new folder" / "run.jsonl"
    env = Record(two_turns(), path)
    bare = two_turns()
    started = bare.reset(seed=7, options={"row": 2})
    assert env.reset(seed=7, options={"row": 2}) == started
    turns = (("blue 🙂", ""), ("\N{REPLACEMENT CHARACTER}", "half a pair: \ud83d \u2028 end"))
    results = [env.step(actions(*texts)) for texts in turns]
    assert results == [bare.step(actions(*texts)) for texts in turns]
    play(env, ("a", "b"))  # and goes on to the next one before the end
    play(env)  # nothing was played
    play(env, ("c", "d"), ("e", "f"))

    first, second, third = replay(path)
    assert (first.number, first.seed, first.options, first.row) == (0, 7, {"row": 2}, 2)
    assert first.first_infos == started[1]
    assert [turn.turn for turn in first.turns] == [0, 1]
    assert [turn.actions for turn in first.turns] == [actions(*texts) for texts in turns]
    assert first.turns[0].observations == started[0]
    assert first.turns[1].observations == results[0].observations
    assert first.last_observations == results[1].observations
    for turn, result in zip(first.turns, results, strict=True):
        for part in ("rewards", "terminations", "truncations", "infos"):
            assert getattr(turn, part) == getattr(result, part)
    assert first.finished
    assert (second.number, second.seed, second.options, second.finished) == (1, None, None, False)
    assert len(second.turns) == 1
    assert (third.number, third.row, third.finished) == (2, 2, True)


def test_a_line_is_in_the_file_when_the_step_returns(tmp_path):
    path = tmp_path / "run.jsonl"
    env = Record(two_turns(), path)
    env.reset(seed=0)
    assert path.read_text() == ""
    env.step(actions("a", "b"))
    line = json.loads(path.read_text())
    assert path.read_text().endswith("}\n")
    assert list(line)[:6] == ["episode", "turn", "seed", "options", "row", "first_infos"]
    env.step(actions("a", "b"))
    assert len(path.read_text().splitlines()) == 2
    assert "seed" not in json.loads(path.read_text().splitlines()[1])


@pytest.mark.parametrize("wrap", [
    lambda env: TokenObservations(TokenActions(env, WORDS, 2), WORDS, 8),
    lambda env: NumericState(TokenObservations(TokenByToken(env, WORDS, 1), WORDS, 8)),
])  # fmt: skip
def test_numeric_views(tmp_path, wrap):
    env = Record(wrap(two_turns()), tmp_path / "run.jsonl")
    shown, infos = env.reset(seed=np.int64(3))
    given, seen = [], [shown]
    while env.agents:
        given.append({a: env.action_space(a).sample() for a in env.agents})
        result = env.step(given[-1])
        seen.append(result.observations)
    (episode,) = replay(tmp_path / "run.jsonl")
    assert episode.seed == 3
    assert episode.first_infos["agent_0"]["prompt_tokens"] == infos["agent_0"]["prompt_tokens"]
    assert len(episode.turns) == len(given)
    for turn, acted, observed in zip(episode.turns, given, seen[:-1], strict=True):
        assert turn.actions == {a: np.asarray(x).tolist() for a, x in acted.items()}
        assert turn.observations == {a: x.tolist() for a, x in observed.items()}
    assert episode.last_observations == {a: x.tolist() for a, x in seen[-1].items()}


def test_what_was_shown_may_be_changed_by_whom_it_was_shown(tmp_path):
    env = Record(TokenObservations(two_turns(), WORDS, 8), tmp_path / "run.jsonl")
    shown, _ = env.reset(seed=0)
    before = shown["agent_0"].tolist()
    shown["agent_0"][:] = 0
    env.step(actions("a", "b"))
    (episode,) = replay(tmp_path / "run.jsonl")
    assert episode.turns[0].observations["agent_0"] == before


def test_a_file_that_is_there_is_never_overwritten(tmp_path):
    path = tmp_path / "run.jsonl"
    play(Record(two_turns(), path), ("a", "b"), ("a", "b"))
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"path .*run.jsonl.* set append=True to add to it"):
        Record(two_turns(), path)
    added = Record(two_turns(), path, append=True)
    play(added, ("c", "d"), seed=5)
    assert path.read_bytes().startswith(before)
    first, second = replay(path)
    assert (first.number, second.number, second.seed) == (0, 1, 5)
    assert list(replay(path))[1].turns[0].actions == actions("c", "d")

    late, early = (Record(two_turns(), tmp_path / "both.jsonl") for _ in range(2))
    early.reset()
    with pytest.raises(FileExistsError, match=r"both.jsonl"):
        late.reset()


def test_adding_to_a_file_that_is_not_there_makes_it(tmp_path):
    play(Record(two_turns(), tmp_path / "run.jsonl", append=True), ("a", "b"))
    assert [episode.number for episode in replay(tmp_path / "run.jsonl")] == [0]


def test_half_a_line_at_the_end(tmp_path):
    path = tmp_path / "run.jsonl"
    play(Record(two_turns(), path), ("a", "b"), ("🙂", "b"))
    whole = path.read_bytes()
    for end in (-1, -5, -len(whole.splitlines()[1]) + 3):
        path.write_bytes(whole[:end])
        if end == -1:  # only the line's end is missing
            assert next(replay(path)).finished
            continue
        with pytest.warns(UserWarning, match=r"line 2 of .*run.jsonl, the last one, was cut"):
            (episode,) = replay(path)
        assert (len(episode.turns), episode.finished) == (1, False)
    path.write_bytes(whole[:15])
    with pytest.warns(UserWarning, match="line 1 of"):
        assert list(replay(path)) == []

    path.write_bytes(whole[:-5])
    with pytest.warns(UserWarning, match="the last line of .* it is removed"):
        play(Record(two_turns(), path, append=True), ("c", "d"))
    first, second = replay(path)
    assert (len(first.turns), first.finished, second.number) == (1, False, 1)
    path.write_bytes(whole[:-1])
    play(Record(two_turns(), path, append=True), ("c", "d"))
    assert [episode.finished for episode in replay(path)] == [True, False]


def test_files_that_are_no_recordings(tmp_path):
    path = tmp_path / "run.jsonl"
    with pytest.raises(FileNotFoundError, match=r"run.jsonl.* must be a file that Record wrote"):
        replay(path)
    for content in ('{"a": 1}\n', "text\n", "[1]\n"):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"line 1 of .* is no turn of a recording"):
            list(replay(path))
    for content in ('{"a": 1}\n', "text without an end", '{"epi', "text\n"):
        path.write_text(content)
        env = Record(two_turns(), path, append=True)
        if content == '{"epi':
            with pytest.warns(UserWarning, match="it is removed"):
                env.reset()
            continue
        with pytest.raises(ValueError, match="must be a recording to be added to"):
            env.reset()
        assert path.read_text() == content


def test_lines_of_two_writers_are_told_apart(tmp_path):
    path = tmp_path / "run.jsonl"
    envs = [Record(two_turns(), path, append=True) for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    for _ in range(2):
        for env in envs:
            env.step(actions("a", "b"))
    with pytest.raises(ValueError, match=r"line 2 of .*does not follow .*put \{copy\} into"):
        list(replay(path))


def test_lines_that_are_missing_or_out_of_order_are_told(tmp_path):
    path = tmp_path / "run.jsonl"
    play(Record(text_env(num_turns=3), path), *[("a", "b")] * 3)
    first, second, third = path.read_text().splitlines(keepends=True)
    for lines, number in (
        ((second, third), 1),
        ((first, third, second), 2),
        ((first, second, second), 3),
        ((first, first), 2),
    ):
        path.write_text("".join(lines))
        with pytest.raises(
            ValueError, match=rf"line {number} of .*does not follow the line before"
        ):
            list(replay(path))


def test_copies_need_files_of_their_own(tmp_path):
    env = Record(two_turns(), tmp_path / "run.jsonl")
    env.reset(seed=0)
    env.step(actions("a", "b"))
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        with pytest.raises(RuntimeError, match=r"copy of an environment .*put \{copy\} into path"):
            twin.step(actions("c", "d"))
        with pytest.raises(RuntimeError, match="copy of an environment"):
            twin.reset()
    env.step(actions("a", "b"))
    assert len(next(replay(tmp_path / "run.jsonl")).turns) == 2


def test_a_file_per_copy(tmp_path):
    env = Record(two_turns(), tmp_path / "run-{copy}.jsonl")
    env.reset(seed=0)
    env.step(actions("a", "b"))
    twin = copy.deepcopy(env)
    twin.step(actions("c", "d"))
    env.step(actions("e", "f"))
    pickle.loads(pickle.dumps(twin)).reset()
    another = Record(two_turns(), tmp_path / "run-{copy}.jsonl")
    play(another, ("g", "h"), seed=1)

    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"run-{number}.jsonl" for number in range(4)
    ]
    (original,) = replay(tmp_path / "run-0.jsonl")
    (copied,) = replay(tmp_path / "run-1.jsonl")
    assert [turn.actions["agent_0"] for turn in original.turns] == ["a", "e"]
    assert [(turn.turn, turn.actions["agent_0"]) for turn in copied.turns] == [(1, "c")]
    assert (copied.number, copied.seed, copied.finished) == (0, 0, True)
    assert list(replay(tmp_path / "run-2.jsonl")) == []
    with pytest.raises(ValueError, match=r"append \(True\) must not go with \{copy\}"):
        Record(two_turns(), "run-{copy}.jsonl", append=True)


def test_many_episodes_at_once(tmp_path):
    runner = BatchRunner(Record(two_turns(), tmp_path / "{copy}.jsonl"))
    episodes = runner.reset([Start(), Start()], num_generations=2)
    while running := [episode for episode in episodes if not episode.over]:
        runner.step(running, [actions("red", str(episode.index)) for episode in running])
    runner.close()
    read = [next(replay(file)) for file in sorted(tmp_path.iterdir())]
    assert [episode.row for episode in read] == [0, 0, 1, 1]
    assert [episode.turns[0].actions["agent_1"] for episode in read] == ["0", "1", "2", "3"]


def _play_on(env, failure):
    try:
        env.step(actions("c", "d"))
    except RuntimeError as error:
        failure.put(str(error))
    else:
        failure.put(None)


@pytest.mark.parametrize("name", ["run.jsonl", "run-{copy}.jsonl"])
def test_a_forked_process_is_a_copy(tmp_path, name):
    env = Record(two_turns(), tmp_path / name)
    env.reset(seed=0)
    env.step(actions("a", "b"))
    context = multiprocessing.get_context("fork")
    failure = context.SimpleQueue()
    child = context.Process(target=_play_on, args=(env, failure))
    child.start()
    said = failure.get()
    child.join()
    (episode,) = replay(tmp_path / name.replace("{copy}", "0"))
    assert len(episode.turns) == 1
    if "{copy}" in name:
        assert said is None
        assert next(replay(tmp_path / "run-1.jsonl")).turns[0].actions == actions("c", "d")
    else:
        assert "copy of an environment" in said


def test_closing(tmp_path):
    path = tmp_path / "run.jsonl"
    env = Record(two_turns(), path)
    play(env, ("a", "b"))
    env.close()
    env.close()
    play(env, ("c", "d"))  # closed, and played again
    assert [episode.number for episode in replay(path)] == [0, 1]


def test_an_action_or_a_step_that_fails_is_not_recorded(tmp_path):
    env = Record(two_turns(), tmp_path / "run.jsonl")
    with pytest.raises(RuntimeError, match="without a running episode"):
        env.step(actions("a", "b"))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="must be in its action space"):
        env.step(actions("a", None))
    env.step(actions("a", "b"))
    (episode,) = replay(tmp_path / "run.jsonl")
    assert [turn.turn for turn in episode.turns] == [0]


class Odd(LeaverEnv):
    def reset(self, seed=None, options=None):
        shown, infos = super().reset(seed, options)
        return shown, {agent: {**info, "odd": {1, 2}} for agent, info in infos.items()}


def test_what_is_no_json_is_named(tmp_path):
    env = Record(Odd(), tmp_path / "run.jsonl")
    with pytest.raises(TypeError, match=r"infos .* must be JSON to be recorded: \{1, 2\} is a set"):
        env.reset()
    with pytest.raises(TypeError, match="append"):
        Record(LeaverEnv(), tmp_path / "other.jsonl", append="yes")
    with pytest.raises(TypeError):
        Record(LeaverEnv(), 3)


class Vectors(LeaverEnv):
    """A stranger's environment of numbers."""

    def __init__(self):
        super().__init__()
        self.spaces = Box(-1, 1, (2,), np.float32), Discrete(2)

    def observation_space(self, agent):
        return self.spaces[0]

    def action_space(self, agent):
        return self.spaces[1]

    def _shown(self):
        return {agent: np.full(2, 0.5, np.float32) for agent in self.agents}


def test_the_conformance_suites(tmp_path):
    check_text_env(Record(text_env(num_turns=2), tmp_path / "a-{copy}.jsonl"))
    check_text_env(Record(LeaverEnv(), tmp_path / "b-{copy}.jsonl"), leaving=True)
    parallel_api_test(Record(Vectors(), tmp_path / "c.jsonl"), num_cycles=20)
    first, *_, last = replay(tmp_path / "c.jsonl")
    assert [list(turn.rewards) for turn in last.turns] == [
        ["agent_0", "agent_1"],
        *[["agent_0"]] * 2,
    ]
    assert first.turns[0].observations["agent_0"] == [0.5, 0.5]


def test_half_a_surrogate_pair_is_json_like_everything_else(tmp_path):
    """A completion may hold what UTF-8 cannot write."""
    path = tmp_path / "odd.jsonl"
    env = Record(text_env(), path)
    said = {"agent_0": "a\ud800b", "agent_1": "\N{SLIGHTLY SMILING FACE}"}
    env.reset()
    env.step(said)
    env.close()
    for line in path.read_text(encoding="utf-8").splitlines():
        json.loads(line)
    (episode,) = replay(path)
    assert episode.turns[0].actions == said


def test_numbers_that_json_has_not_are_told(tmp_path):
    class Infinite(LeaverEnv):
        def step(self, actions):
            *rest, infos = super().step(actions)
            return *rest, {agent: {"odds": float("inf")} for agent in infos}

    env = Record(Infinite(), tmp_path / "inf.jsonl")
    env.reset()
    with pytest.raises(TypeError, match=r"infos.*must be JSON"):
        env.step({"agent_0": "x", "agent_1": "y"})
