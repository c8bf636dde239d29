"""What goes into replay and what comes out.

E environments that step together, B samples, N agents, D observation size, A actions (discrete) or
size of an action (continuous), S size of the team's state, H size of a hidden state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from marlogue.agents.rules import check_fields, one_of, truth, whole
from marlogue.agents.teams import TeamSpec

Array = NDArray[Any]
GuidanceKind = Literal["none", "advantage", "values"]


@dataclass(frozen=True, kw_only=True)
class ReplayLayout:
    """Sizes of what a replay buffer holds.

    Args:
        num_agents: N.
        observation_size: D, that of the largest observation; shorter ones are padded with zeros.
        num_actions: A, discrete actions of the agent that has most; or, with ``continuous``, the
            size of the largest action.
        continuous: whether actions are vectors in [-1, 1].
        availability: whether the actions that may be taken change from step to step.
        guidance: "none"; "advantage" holds one number for each agent's taken action; "values"
            one for each action (continuous: a gradient).
        state_size: S of a state of the whole team; 0 for none.
        hidden_size: H of the actors' hidden state before each step; 0 for none.
        observation_dtype: how observations are held: "float32", "float16" or "uint8".

    Raises:
        ValueError: when a field has a wrong type or range.
    """

    num_agents: int = whole(1, at_least=1)
    observation_size: int = whole(1, at_least=1)
    num_actions: int = whole(1, at_least=1)
    continuous: bool = truth(False)
    availability: bool = truth(False)
    guidance: Literal["none", "advantage", "values"] = one_of(
        "none", ("none", "advantage", "values")
    )
    state_size: int = whole(0, at_least=0)
    hidden_size: int = whole(0, at_least=0)
    observation_dtype: Literal["float32", "float16", "uint8"] = one_of(
        "float32", ("float32", "float16", "uint8")
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.continuous and self.availability:
            raise ValueError(
                "availability (True) must be False when continuous is True; it says which discrete "
                "actions may be taken."
            )

    @classmethod
    def of(cls, team: TeamSpec, **fields: Any) -> ReplayLayout:
        """The layout for a team's sizes; the other fields by name."""
        return cls(
            num_agents=team.num_agents,
            observation_size=team.observation_size,
            num_actions=team.action_size,
            continuous=not team.discrete,
            **fields,
        )

    def seen(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of what belongs to an observation, which has a ``next_`` one."""
        N = self.num_agents
        fields: dict[str, tuple[tuple[int, ...], str]] = {
            "observations": ((N, self.observation_size), self.observation_dtype)
        }
        if self.availability:
            fields["available"] = ((N, self.num_actions), "bool")
        if self.state_size:
            fields["state"] = ((self.state_size,), "float32")
        return fields

    def done(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of what belongs to a step."""
        N, A = self.num_agents, self.num_actions
        fields: dict[str, tuple[tuple[int, ...], str]] = {
            "actions": ((N, A), "float32") if self.continuous else ((N,), "int64"),
            "rewards": ((N,), "float32"),
            "terminated": ((N,), "bool"),
        }
        if self.guidance != "none":
            fields["guidance"] = ((N, A) if self.guidance == "values" else (N,), "float32")
        if self.hidden_size:
            fields["hidden"] = ((N, self.hidden_size), "float32")
        return fields

    def bytes_per_slot(self) -> int:
        """Memory that one observation and the step after it take."""
        fields = (*self.seen().values(), *self.done().values())
        held = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in fields)
        return held + self.num_agents + 18  # who is present; links and flags


class TeamStep(NamedTuple):
    """One step of E environments, as arrays.

    Attributes:
        observations: [E, N, D], what the actions were chosen from; zeros for absent agents.
        actions: [E, N] indices or [E, N, A] numbers in [-1, 1]; anything valid for absent agents.
        rewards: [E, N].
        next_observations: [E, N, D], what followed, also where the episode ended (not the first
            observation of the next episode).
        terminated: [E, N] bool: the agent's task ended, nothing of worth follows.
        truncated: [E, N] bool: the agent was cut off, for example by a time limit.
        present: [E, N] bool, agents that acted.
        available: [E, N, A] bool, or None where the layout has none; so for all below.
        next_available: [E, N, A] bool.
        state: [E, S].
        next_state: [E, S].
        guidance: [E, N] or [E, N, A].
        hidden: [E, N, H], the actors' state before the step.
    """

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminated: Array
    truncated: Array
    present: Array
    available: Array | None = None
    next_available: Array | None = None
    state: Array | None = None
    next_state: Array | None = None
    guidance: Array | None = None
    hidden: Array | None = None


class Transitions(NamedTuple):
    """A batch of transitions of up to n steps.

    Attributes:
        observations: [B, N, D] float32.
        actions: [B, N] long or [B, N, A] float.
        rewards: [B, N], discounted sum over the steps, an agent's own until it ends.
        next_observations: [B, N, D] after the last of the steps.
        discounts: [B, N], ``gamma^steps``, 0 where the agent terminated or is absent.
        present: [B, N] bool, agents that act at ``observations``.
        next_present: [B, N] bool, agents whose future counts at ``next_observations``: those that
            act there and those that were cut off there.
        weights: [B], importance weights; 1 for uniform replay.
        serials: [B] int64 (numpy), which transitions these are, for new priorities.
        available: [B, N, A] bool, or None where the layout has none; so for all below.
        next_available: [B, N, A] bool.
        state: [B, S].
        next_state: [B, S].
        guidance: [B, N] or [B, N, A].
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    discounts: Tensor
    present: Tensor
    next_present: Tensor
    weights: Tensor
    serials: NDArray[np.int64]
    available: Tensor | None = None
    next_available: Tensor | None = None
    state: Tensor | None = None
    next_state: Tensor | None = None
    guidance: Tensor | None = None


def checked_step(step: TeamStep, layout: ReplayLayout) -> tuple[dict[str, Array], int]:
    """The arrays of a step by name, in the dtypes of the layout, and the number E of environments.

    Raises:
        ValueError: when an array is missing, has another shape or holds what it must not, naming
            the environment and the agent.
    """
    seen, done = layout.seen(), layout.done()
    wanted = {**seen, **{f"next_{name}": seen[name] for name in seen}, **done}
    agents = ((layout.num_agents,), "bool")
    wanted |= {"truncated": agents, "present": agents}
    arrays: dict[str, Array] = {}
    count = len(step.rewards)
    for name, (shape, dtype) in wanted.items():
        given = getattr(step, name)
        if given is None:
            raise ValueError(f"{name} (None) must be given, since the layout has it.")
        given = np.asarray(given)
        if given.shape != (count, *shape):
            raise ValueError(
                f"{name} has the shape {given.shape}, which must be {(count, *shape)} for "
                f"{count} environments and the layout {layout}."
            )
        if given.dtype.kind == "f":
            _check_finite(name, given)
        if dtype in ("uint8", "int64") and given.dtype.kind not in "iu":
            raise ValueError(
                f"{name} has the dtype {given.dtype}, which must be one of integers, since they "
                f"are held as {dtype}."
            )
        arrays[name] = given.astype(dtype, copy=False)
        if dtype == "float16":
            _check_finite(f"{name}, held as float16,", arrays[name])
    for name in set(step._fields) - set(wanted):
        if getattr(step, name) is not None:
            raise ValueError(f"{name} must be None, since the layout has none: {layout}.")
    _check_actions(arrays["actions"], arrays["present"], layout)
    return arrays, count


def _check_finite(name: str, given: Array) -> None:
    # The sum is cheaper than a look at each number. It may overflow, hence the second look.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(given.sum()) or np.isfinite(given).all():
            return
    where = np.argwhere(~np.isfinite(given))[0].tolist()
    who = f"agent {where[1]}" if given.ndim > 1 and "state" not in name else "the team"
    part = f", component {where[-1]}" if given.ndim > 2 or "state" in name else ""
    raise ValueError(
        f"{name} of {who} in environment {where[0]}{part} ({given[tuple(where)]}) must be a finite "
        "number; mend the environment, or replace the value there (zeros for absent agents)."
    )


def _check_actions(actions: Array, present: Array, layout: ReplayLayout) -> None:
    if layout.continuous:
        bad = present & (np.abs(actions) > 1 + 1e-5).any(-1)
        wanted = "in [-1, 1]"
    else:
        bad = present & ((actions < 0) | (actions >= layout.num_actions))
        wanted = f"an index from 0 to {layout.num_actions - 1}"
    if bad.any():
        env, agent = np.argwhere(bad)[0].tolist()
        raise ValueError(
            f"actions of agent {agent} in environment {env} ({actions[env, agent]}) must be "
            f"{wanted}."
        )
