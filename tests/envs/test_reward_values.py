"""What reward functions may return (C38, C39, C42), and what processors make of it."""

import collections
import decimal
import fractions
import math
import pickle

import numpy as np
import pytest
import torch

from marlogue.envs import RewardProcessors
from marlogue.envs.reward_values import read_rewards
from marlogue.envs.rewards import JointAction, Reward

NAMES = ("agent_0", "agent_1", "agent_2")


def read(returned, num_joint, num_agents):
    places = [f"row {7 + index}, turn 1" for index in range(num_joint)]
    return read_rewards(returned, "my_reward", NAMES[:num_agents], places)


ACCEPTED = [
    # one team reward per joint action
    ([1.0, 2.0], 2, 2, [(1, 1), (2, 2)]),
    ((1, 2), 2, 2, [(1, 1), (2, 2)]),
    (collections.deque([1, 2]), 2, 1, [(1,), (2,)]),
    (range(3), 3, 2, [(0, 0), (1, 1), (2, 2)]),
    ([True, False], 2, 2, [(1, 1), (0, 0)]),
    (np.array([1.0, 2.0]), 2, 2, [(1, 1), (2, 2)]),
    (np.array([True, False]), 2, 2, [(1, 1), (0, 0)]),
    (torch.tensor([1.0, 2.0], requires_grad=True), 2, 2, [(1, 1), (2, 2)]),
    (torch.tensor([1, 2], dtype=torch.bfloat16), 2, 2, [(1, 1), (2, 2)]),
    ([torch.tensor(1.0), np.float32(2.0)], 2, 2, [(1, 1), (2, 2)]),
    ([fractions.Fraction(1, 2)], 1, 2, [(0.5, 0.5)]),
    ([1.0], 1, 2, [(1, 1)]),
    ([1.0], 1, 1, [(1,)]),
    # a bare number, for one joint action
    (1.5, 1, 2, [(1.5, 1.5)]),
    (np.float64(1.5), 1, 2, [(1.5, 1.5)]),
    (np.array(1.5), 1, 1, [(1.5,)]),
    (torch.tensor(1.5), 1, 3, [(1.5, 1.5, 1.5)]),
    (True, 1, 2, [(1, 1)]),
    # per agent, nested
    ([[1, 2], [3, 4], [5, 6]], 3, 2, [(1, 2), (3, 4), (5, 6)]),
    (np.array([[1, 2], [3, 4]]), 2, 2, [(1, 2), (3, 4)]),
    (torch.tensor([[1, 2]]), 1, 2, [(1, 2)]),
    ([np.array([1, 2]), (3, 4)], 2, 2, [(1, 2), (3, 4)]),
    ([[1], [2]], 2, 1, [(1,), (2,)]),
    # per agent, flat, for one joint action
    ([1, 2], 1, 2, [(1, 2)]),
    (np.array([1, 2, 3]), 1, 3, [(1, 2, 3)]),
    # abstentions
    ([1, None, 3], 3, 2, [(1, 1), (None, None), (3, 3)]),
    ([None], 1, 2, [(None, None)]),
    ([None, 2.0], 1, 2, [(None, 2)]),
    ([[1, None], None], 2, 2, [(1, None), (None, None)]),
    ([None, None], 2, 2, [(None, None), (None, None)]),
]


@pytest.mark.parametrize(("returned", "num_joint", "num_agents", "expected"), ACCEPTED)
def test_accepted(returned, num_joint, num_agents, expected):
    rewards = read(returned, num_joint, num_agents)
    assert rewards == expected
    assert all(type(value) in (float, type(None)) for row in rewards for value in row)


REFUSED = [
    ([1.0], 4, 2, r"1 value\(s\)"),
    ([1, 2, 3], 4, 2, r"3 value\(s\)"),
    ([1, 2], 4, 2, r"2 value\(s\)"),  # one per agent, but for four joint actions
    ([1, 2, 3], 1, 2, r"3 value\(s\)"),
    ([1, 2], 1, 1, r"2 value\(s\)"),
    ([], 1, 2, r"0 value\(s\)"),
    (1.0, 2, 2, "a float"),
    (np.float32(1.0), 2, 2, "a float32"),
    (None, 1, 2, "None"),
    (None, 2, 2, "None"),
    ("1.0", 1, 2, "a str"),
    ("ab", 2, 2, "a str"),
    (b"ab", 2, 2, "a bytes"),
    ({"agent_0": 1.0}, 1, 1, "a dict"),
    ({1.0}, 1, 1, "a set"),
    ((value for value in [1.0]), 1, 1, "a generator"),
    (1j, 1, 1, "a complex"),
    ([[1, 2, 3], [4, 5, 6]], 3, 2, "a list of 3 value"),  # by agent instead of by joint action
    ([[1], [2]], 2, 2, "a list of 1 value"),
    ([[1, 2]], 2, 2, r"1 value\(s\)"),
    ([[1, 2], 3], 2, 2, "a mix of lists and an int"),
    (np.zeros((2, 1)), 2, 2, "a list of 1 value"),
]


@pytest.mark.parametrize(("returned", "num_joint", "num_agents", "got"), REFUSED)
def test_refused_with_what_was_expected_and_what_came(returned, num_joint, num_agents, got):
    with pytest.raises(ValueError, match=rf"reward_func \(my_reward\) returned {got}.*expected a"):
        read(returned, num_joint, num_agents)


@pytest.mark.parametrize(
    "bad",
    ["1.0", 1j, {}, [1.0], decimal.Decimal(1), float("nan"), math.inf, -math.inf, 10**400],
    ids=str,
)
def test_a_bad_value_is_named_with_row_agent_and_turn(bad):
    with pytest.raises(ValueError, match=r"my_reward.*\(agent_1, row 8, turn 1\)"):
        read([[1, 2], [3, bad]], 2, 2)


@pytest.mark.parametrize(
    "bad", [float("nan"), np.array([1.0, np.inf]), torch.tensor([1.0, math.nan])]
)
def test_values_that_are_not_finite_in_flat_lists_and_arrays(bad):
    returned = [1.0, bad] if isinstance(bad, float) else bad
    with pytest.raises(ValueError, match=r"\(agent_0, row 8, turn 1\); rewards must be finite"):
        read(returned, 2, 2)


def score(returned, processor, num_agents=2):
    action = JointAction(3, 0, {}, ("p",) * num_agents, ("c",) * num_agents)
    ((scores,),) = Reward(lambda *c: returned, NAMES[:num_agents], processor).score([[action]])
    return scores


class TestProcessors:
    @pytest.mark.parametrize(
        ("processor", "expected"),
        [
            (RewardProcessors.scale(2.0), 3.0),
            (RewardProcessors.scale(), 1.5),
            (RewardProcessors.shift(-1), 0.5),
            (RewardProcessors.clip(-1, 1), 1.0),
            (RewardProcessors.clip(low=2), 2.0),
            (RewardProcessors.clip(high=5), 1.5),
            (RewardProcessors.compose(RewardProcessors.scale(2), RewardProcessors.shift(1)), 4.0),
            (RewardProcessors.shift(1) | RewardProcessors.scale(2), 5.0),
            (RewardProcessors.scale(2) | abs | RewardProcessors.clip(high=2.5), 2.5),
            (RewardProcessors.compose(), 1.5),
            (math.sqrt, math.sqrt(1.5)),
        ],
    )
    def test_arithmetic(self, processor, expected):
        assert processor(1.5) == expected
        scores = score(1.5, processor)
        assert scores.processed == (expected, expected)
        assert scores.raw == (1.5, 1.5)

    def test_works_on_each_agent_s_reward_and_skips_abstentions(self):
        assert score([2, None], RewardProcessors.scale(3)).processed == (6.0, None)

    def test_ready_made_ones_can_be_pickled_and_compared(self):
        processor = RewardProcessors.scale(2) | RewardProcessors.clip(-1, 1)
        assert pickle.loads(pickle.dumps(processor)) == processor

    @pytest.mark.parametrize("bad", [math.nan, math.inf, None, "1", [1.0]])
    def test_must_make_finite_numbers(self, bad):
        with pytest.raises(ValueError, match=r"reward_processor made .*\(agent_0, row 3, turn 0\)"):
            score(1.5, lambda reward: bad)

    def test_own_errors_are_noted(self):
        with pytest.raises(ZeroDivisionError) as caught:
            score([1.0, 0.0], lambda reward: 1 / reward)
        assert "agent_1, row 3, turn 0" in caught.value.__notes__[0]

    def test_must_be_plain_callables(self):
        async def processor(reward):
            return reward

        with pytest.raises(TypeError, match="reward_processor"):
            score(1.0, processor)
        with pytest.raises(TypeError, match="reward_processor"):
            score(1.0, 2.0)

    @pytest.mark.parametrize(
        ("make", "error"),
        [
            (lambda: RewardProcessors.clip(), ValueError),
            (lambda: RewardProcessors.clip(1, 0), ValueError),
            (lambda: RewardProcessors.scale(math.nan), ValueError),
            (lambda: RewardProcessors.scale("2"), TypeError),
            (lambda: RewardProcessors.shift(True), TypeError),
            (lambda: RewardProcessors.compose(2.0), TypeError),
            (lambda: RewardProcessors.scale(2) | 3, TypeError),
        ],
    )
    def test_bad_settings_are_refused(self, make, error):
        with pytest.raises(error):
            make()
