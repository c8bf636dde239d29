"""What a reward function returned, read strictly."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from marlogue.envs.callbacks import kind_of, shortened

AgentRewards = tuple[float | None, ...]
"""One reward per agent; None where the reward function abstained."""


def read_rewards(
    returned: Any, name: str, agents: Sequence[str], places: Sequence[str]
) -> list[AgentRewards]:
    """Bring what a reward function returned into one tuple of per-agent rewards per joint action.

    Accepted (lists, tuples, other sequences, numpy arrays and torch tensors; numbers of any kind,
    bool included; None to abstain):

    - a flat list with one team reward per joint action, which every agent gets;
    - a nested list: for each joint action one list with one reward per agent, or None for all;
    - for a single joint action also a bare number, or a flat list with one reward per agent.

    Args:
        returned: what the reward function returned.
        name: the reward function's name, for messages.
        agents: the agents' names.
        places: for each joint action its row and turn, for messages.

    Raises:
        ValueError: when it is anything else, or a reward is NaN or infinite.
    """
    rewards: list[AgentRewards] = []
    for found in read_each(returned, name, agents, places):
        if isinstance(found, ValueError):
            raise found
        rewards.append(found)
    return rewards


def read_each(
    returned: Any, name: str, agents: Sequence[str], places: Sequence[str]
) -> list[AgentRewards | ValueError]:
    """As `read_rewards`; in the place of a joint action's rewards the error, where one of them is
    no finite number.

    Raises:
        ValueError: when the whole has a wrong form.
    """
    values = _plain(returned)
    num_joint, num_agents = len(places), len(agents)
    complaint = _Complaint(name, num_joint, num_agents, places)
    if _is_number(values) and num_joint == 1:
        values = [values]
    if not isinstance(values, list):
        raise complaint.about(f"{kind_of(returned)}")
    if any(isinstance(value, list) for value in values):
        nested = [_nested(value, complaint, num_agents) for value in values]
    elif num_joint == 1 and len(values) == num_agents:
        nested = [values]
    else:
        nested = [[value] * num_agents for value in values]
    if len(nested) != num_joint:
        raise complaint.about(f"{len(values)} value(s)")
    return [
        _read_one(per_agent, name, agents, where)
        for per_agent, where in zip(nested, places, strict=True)
    ]


def as_finite(value: Any, what: str, where: str, kind: str = "rewards") -> float:
    """Read a number.

    Raises:
        ValueError: when it is not a number, NaN or infinite; says `what` and `where`, and that
            its `kind` must be finite.
    """
    plain = _plain(value)
    if not _is_number(plain):
        raise ValueError(f"{what} ({where}), which is {kind_of(value)}; it must be a number")
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} ({where}); {kind} must be finite")
    return number


class _Complaint:
    """Words the error about a return value of the wrong form."""

    def __init__(self, name: str, num_joint: int, num_agents: int, places: Sequence[str]) -> None:
        self.name = name
        self.places = "; ".join(dict.fromkeys(places))
        self.expected = (
            f"a flat list of {num_joint} team reward(s), one per joint action, or a nested list "
            f"of {num_joint} list(s) of {num_agents} agents' rewards"
        )
        if num_joint == 1:
            self.expected += f", or a flat list of {num_agents} agents' rewards"

    def about(self, got: str) -> ValueError:
        return ValueError(
            f"reward_func ({self.name}) returned {got} at {self.places}; expected {self.expected}"
        )


def _nested(value: Any, complaint: _Complaint, num_agents: int) -> list[Any]:
    if value is None:
        return [None] * num_agents
    if not isinstance(value, list):
        raise complaint.about(f"a mix of lists and {kind_of(value)}")
    if len(value) != num_agents:
        raise complaint.about(f"a list of {len(value)} value(s) for {num_agents} agent(s)")
    return value


def _read_one(
    per_agent: list[Any], name: str, agents: Sequence[str], where: str
) -> AgentRewards | ValueError:
    try:
        return tuple(
            _reward(value, name, agent, where)
            for value, agent in zip(per_agent, agents, strict=True)
        )
    except ValueError as error:
        return error


def _reward(value: Any, name: str, agent: str, where: str) -> float | None:
    if value is None:
        return None
    return as_finite(
        value, f"reward_func ({name}) returned {shortened(value)} as a reward", f"{agent}, {where}"
    )


def _plain(value: Any) -> Any:
    """Arrays, tensors and sequences as nested lists, their elements as Python numbers."""
    torch = sys.modules.get("torch")  # whoever returns a tensor has imported it
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().tolist()
    elif isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_plain(element) for element in value]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real)
