"""An update as far as it has come: it can stop after any minibatch, and go on from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marlogue.algorithms.groups import Group
from marlogue.algorithms.sample import Sample
from marlogue.algorithms.sample_table import SampleTable


@dataclass
class OpenUpdate:
    """An update that is under way.

    Attributes:
        groups: what is learnt from, in order.
        begun: what is learnt from all groups together has been.
        group: number of the group whose turn it is.
        minibatch: number of the minibatch in it.
    """

    groups: list[Group]
    begun: bool = False
    group: int = 0
    minibatch: int = 0

    @property
    def agents(self) -> list[int]:
        """The agents that are updated."""
        return list(dict.fromkeys(group.agent_idx for group in self.groups))

    @property
    def samples(self) -> list[Sample]:
        """All that is learnt from."""
        return [sample for group in self.groups for sample in group.samples]

    def remaining(self) -> Iterator[tuple[Group, int]]:
        """Groups and numbers of their minibatches, from where it stands. One counts as done when
        the next is asked for."""
        while self.group < len(self.groups):
            yield self.groups[self.group], self.minibatch
            self.minibatch += 1
            if self.minibatch == len(self.groups[self.group].minibatches):
                self.group, self.minibatch = self.group + 1, 0

    def state_dict(self, table: SampleTable) -> dict[str, Any]:
        """Fit for JSON; the samples go into the table."""
        return {
            "groups": [_group_state(group, table) for group in self.groups],
            "begun": self.begun,
            "group": self.group,
            "minibatch": self.minibatch,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any], table: SampleTable) -> OpenUpdate:
        """The update that :meth:`state_dict` wrote."""
        groups = [_load_group(group, table) for group in state["groups"]]
        return cls(groups, state["begun"], state["group"], state["minibatch"])


def _group_state(group: Group, table: SampleTable) -> dict[str, Any]:
    return {
        "agent_idx": group.agent_idx,
        "turn_idx": group.turn_idx,
        "samples": table.add(group.samples),
        "minibatches": [table.add(minibatch) for minibatch in group.minibatches],
    }


def _load_group(state: Mapping[str, Any], table: SampleTable) -> Group:
    minibatches: Sequence[Sequence[int]] = state["minibatches"]
    return Group(
        state["agent_idx"],
        state["turn_idx"],
        table.get(state["samples"]),
        [table.get(minibatch) for minibatch in minibatches],
    )
