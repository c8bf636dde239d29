"""The unit of learning: what one agent saw, did and got in one turn of one episode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marlogue.agents import Completion

#: A number that is not known (yet, or at all): a NaN passes through a user's arithmetic.
UNKNOWN = math.nan


@dataclass(eq=False, slots=True)
class Joint:
    """What the whole team saw and did in one turn of one episode, shared by its samples.

    Attributes:
        prompts: N prompts, in the agents' order; empty text for an agent that has left.
        completions: N completions, likewise.
        actions: the same as token ids; None for an agent that waited or has left.
        judged: a critic of joint samples has learnt from it.
    """

    prompts: tuple[str, ...]
    completions: tuple[str, ...]
    actions: tuple[Completion | None, ...] = ()
    judged: bool = False


@dataclass(eq=False, slots=True)
class Sample:
    """One agent's part of one turn of one episode.

    Numbers that are not known are NaN: nothing is computed for the sake of this record alone.

    Attributes:
        agent: the agent's name in the environment.
        agent_idx: its place in the team.
        turn_idx: the turn, from 0.
        generation_idx: which of the item's G joint answers, from 0.
        item_idx: which training (or evaluation) item, from 0.
        item: fields of the dataset row, as the environment's info shows them.
        joint: what the whole team saw and did.
        is_final_observation: not a step that was played, but what a truncated episode showed
            last; it is judged, never trained on.
        action: prompt and completion as token ids.
        reward: processed reward, as the environment gave it.
        abstained: the reward function gave None, or what it gave was dropped; the sample is not
            trained on.
        reward_error: why it was dropped: an error in one line, and its traceback below; None where
            it was not.
        reference_kl: k3 estimate of KL(policy || reference), summed over generated tokens.
        penalty: what is subtracted from the reward for it, in the target.
        next: the agent's next sample in the episode, to bootstrap from; None where the episode
            ended for this agent.
        value: V(h) or Q(h, a) as predicted at collection.
        target: TD target of the value.
        advantage: what weighs log pi in the update, normalised where that is asked for.
        guidance: advantage that a ``guidance`` gave for it, as it was given.
        log_prob: log pi(a|h), as first computed (for the KL penalty, or else in the update).
        return_: undiscounted sum of the rewards from this turn on.
    """

    agent: str
    agent_idx: int
    turn_idx: int
    generation_idx: int
    item_idx: int
    item: Mapping[str, Any]
    joint: Joint
    action: Completion
    reward: float = UNKNOWN
    abstained: bool = False
    reward_error: str | None = None
    is_final_observation: bool = False
    reference_kl: float = UNKNOWN
    penalty: float = 0.0
    next: Sample | None = field(default=None, repr=False)
    value: float = UNKNOWN
    target: float = UNKNOWN
    advantage: float = UNKNOWN
    guidance: float = UNKNOWN
    log_prob: float = UNKNOWN
    return_: float = UNKNOWN

    @property
    def prompt(self) -> str:
        """What the agent observed."""
        return self.joint.prompts[self.agent_idx]

    @property
    def completion(self) -> str:
        """What it answered."""
        return self.action.text

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The P tokens that the model read."""
        return self.action.prompt_ids

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """The C tokens that it generated."""
        return self.action.ids
