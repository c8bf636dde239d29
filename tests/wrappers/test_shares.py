"""Share: several processes that together play what one would have played."""

import pytest
from pettingzoo import ParallelEnv

from marlogue.wrappers.shares import Share
from tests.support.envs import LeaverEnv, text_env


def rows(share, count, seed=None):
    env = share.make()
    played = []
    for index in range(count):
        seed_of_it, options = share.plan(seed if index == 0 else None)
        _, infos = env.reset(seed=seed_of_it, options=options)
        played.append(infos["agent_0"]["row"])
    return played


def test_shares_take_every_nth_row():
    env = text_env()  # three rows
    assert rows(Share(env), 4) == [0, 1, 2, 0]
    assert rows(Share(env, 0, 2), 4) == [0, 2, 1, 0]
    assert rows(Share(env, 1, 2), 4) == [1, 0, 2, 1]


def test_a_seed_begins_the_order_anew():
    env = text_env(shuffle=True)
    whole = rows(Share(env), 6, seed=3)
    assert sorted(whole[:3]) == sorted(whole[3:]) == [0, 1, 2]
    for index in range(2):
        share = Share(env, index, 2)
        rows(share, 2)
        assert rows(share, 3, seed=3) == whole[index::2]


def test_copies_of_one_share_play_different_rows():
    share = Share(text_env())
    envs = [share.make(), share.make()]
    assert envs[0] is not envs[1]
    played = []
    for env in envs:
        seed, options = share.plan()
        played.append(env.reset(seed=seed, options=options)[1]["agent_0"]["row"])
    assert played == [0, 1]


def test_a_row_that_is_asked_for_takes_no_turn():
    share = Share(text_env(), 1, 2)
    assert share.plan(options={"row": 2})[1]["row"] == 2
    assert share.plan()[1]["row"] == 1


def test_strangers_are_seeded_differently_unless_the_caller_does():
    seeds = [[Share(LeaverEnv, index, 3).plan()[0]] for index in range(3)]
    assert seeds == [[0], [1], [2]]
    share = Share(LeaverEnv(), 1, 3)
    assert [share.plan()[0], share.plan()[0], share.plan(seed=77)[0]] == [1, 4, 77]
    # RLlib and AgileRL seed the first episode of process i with seed + i, and no other.
    shares = [Share(LeaverEnv, index, 2) for index in range(2)]
    seeds = [
        [share.plan(given)[0] for given in (70 + i, None, None)] for i, share in enumerate(shares)
    ]
    assert seeds == [[70, 72, 74], [71, 73, 75]]


@pytest.mark.parametrize(
    ("index", "shares", "message"),
    [(2, 2, r"index \(2\) must be less than shares \(2\)"), (-1, 2, "index"), (0, 0, "shares")],
)
def test_bad_numbers_are_refused(index, shares, message):
    with pytest.raises(ValueError, match=message):
        Share(text_env(), index, shares)


def test_something_else_is_refused():
    with pytest.raises(TypeError, match="ParallelEnv"):
        Share("env")
    with pytest.raises(TypeError, match="ParallelEnv"):
        Share(lambda: ParallelEnv)
