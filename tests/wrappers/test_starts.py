"""How the episodes of an environment begin, one by one."""

import datasets
import numpy as np
import pytest

from marlogue.envs import TextEnv, coordination_v0
from marlogue.wrappers import History
from marlogue.wrappers.starts import Starts, first_prompts, number_of_rows, starts
from tests.support.envs import length_reward
from tests.support.strangers import EchoGame


def test_one_start_per_row():
    env = History(coordination_v0.parallel_env(), 100)
    assert number_of_rows(env) == 4
    assert starts(env, None) == Starts("row", range(4))
    begun = list(first_prompts(env, starts(env, None)))
    assert [start for start, _ in begun] == [{"row": row} for row in range(4)]
    assert begun[2][1] == {"agent_0": "dusk", "agent_1": "dusk"}


def test_one_start_per_seed():
    assert number_of_rows(EchoGame()) == 0
    given = starts(EchoGame(), np.array([7, 2]))
    assert given == Starts("seed", [7, 2])
    assert list(first_prompts(EchoGame(), given)) == [
        ({"seed": 7}, {"ann": "dog", "bob": "ant"}),
        ({"seed": 2}, {"ann": "cat", "bob": "dog"}),
    ]


@pytest.mark.parametrize(
    ("seeds", "error", "match"),
    [
        (5, TypeError, r"seeds \(5\) must be integers, such as range\(100\)"),
        ("12", TypeError, r"seeds \('12'\) must be integers"),
        ([0, "a"], TypeError, r"seeds\[1\] \('a'\) must be an integer"),
        ([-1], ValueError, r"seeds\[0\] \(-1\) must be 0 or more"),
        ([], ValueError, "must hold a seed; set"),
        (None, ValueError, r"seeds \(None\) must be given for an environment without rows"),
    ],
)
def test_bad_seeds(seeds, error, match):
    with pytest.raises(error, match=match):
        starts(EchoGame(), seeds)


def test_a_stream_has_no_numbers():
    stream = datasets.Dataset.from_list([{"prompt": "x"}]).to_iterable_dataset()
    env = TextEnv(stream, length_reward)
    with pytest.raises(ValueError, match=r"IterableDataset\) must have a length, since rows are"):
        starts(env, None)
