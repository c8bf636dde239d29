"""Samples as rows of JSON, for checkpoints and for batches that are kept to be looked at.

Samples share objects: the joint step of a team, the completion that it holds, and the sample that
followed. What was one object before is one object afterwards, since learners count by identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

from marlogue.agents import Completion
from marlogue.algorithms.sample import Joint, Sample
from marlogue.envs.episodes import is_json

_PLAIN = [f.name for f in fields(Sample) if f.name not in ("item", "joint", "action", "next")]
T = TypeVar("T")


class SampleTable:
    """Samples by number; those that follow one of them come along.

    Of a dataset row's fields those are kept that JSON can express, as in the infos of
    :class:`marlogue.envs.TextEnv`.
    """

    def __init__(self) -> None:
        self._samples = _Numbers[Sample]()
        self._joints = _Numbers[Joint]()
        self._actions = _Numbers[Completion]()
        self._items = _Numbers[Mapping[str, Any]]()

    def add(self, samples: Iterable[Sample]) -> list[int]:
        """The samples' numbers, for :meth:`get`."""
        return [self._add(sample) for sample in samples]

    def get(self, numbers: Iterable[int]) -> list[Sample]:
        """The samples of these numbers."""
        return [self._samples.objects[number] for number in numbers]

    def state_dict(self) -> dict[str, Any]:
        """All that was added; fit for JSON (with NaN, as Python writes it)."""
        return {
            "samples": [self._row(sample) for sample in self._samples.objects],
            "joints": [
                [
                    list(joint.prompts),
                    list(joint.completions),
                    [None if a is None else self._actions(a) for a in joint.actions],
                    joint.judged,
                ]
                for joint in self._joints.objects
            ],
            "actions": [
                [list(a.prompt_ids), list(a.ids), a.text, a.truncated]
                for a in self._actions.objects
            ],
            "items": [_expressible(item) for item in self._items.objects],
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> SampleTable:
        """The table that :meth:`state_dict` wrote."""
        table = cls()
        actions = [
            Completion(tuple(prompt_ids), tuple(ids), text, truncated)
            for prompt_ids, ids, text, truncated in state["actions"]
        ]
        joints = [
            Joint(
                tuple(prompts),
                tuple(completions),
                tuple(None if number is None else actions[number] for number in played),
                judged,
            )
            for prompts, completions, played, judged in state["joints"]
        ]
        samples = [
            Sample(
                **{name: row[name] for name in _PLAIN},
                item=state["items"][row["item"]],
                joint=joints[row["joint"]],
                action=actions[row["action"]],
            )
            for row in state["samples"]
        ]
        for sample, row in zip(samples, state["samples"], strict=True):
            sample.next = None if row["next"] is None else samples[row["next"]]
        table._restore(samples, joints, actions, state["items"])
        return table

    def _restore(
        self,
        samples: Sequence[Sample],
        joints: Sequence[Joint],
        actions: Sequence[Completion],
        items: Sequence[Mapping[str, Any]],
    ) -> None:
        self._samples.extend(samples)
        self._joints.extend(joints)
        self._actions.extend(actions)
        self._items.extend(items)

    def _add(self, sample: Sample) -> int:
        chain = [sample]
        while chain[-1].next is not None and chain[-1] not in self._samples:
            chain.append(chain[-1].next)
        for link in reversed(chain):  # so that a long episode needs no deep recursion
            self._samples(link)
            self._joints(link.joint)
            self._actions(link.action)
            self._items(link.item)
            for action in link.joint.actions:
                if action is not None:
                    self._actions(action)
        return self._samples(sample)

    def _row(self, sample: Sample) -> dict[str, Any]:
        return {
            **{name: getattr(sample, name) for name in _PLAIN},
            "item": self._items(sample.item),
            "joint": self._joints(sample.joint),
            "action": self._actions(sample.action),
            "next": None if sample.next is None else self._samples(sample.next),
        }


class _Numbers(Generic[T]):
    """Objects and their numbers; told apart by identity."""

    def __init__(self) -> None:
        self.objects: list[T] = []
        self._number: dict[int, int] = {}

    def __call__(self, one: T) -> int:
        """The object's number, the next one if it has none."""
        if id(one) not in self._number:
            self._number[id(one)] = len(self.objects)
            self.objects.append(one)
        return self._number[id(one)]

    def __contains__(self, one: T) -> bool:
        return id(one) in self._number

    def extend(self, objects: Iterable[T]) -> None:
        """Number several."""
        for one in objects:
            self(one)


def _expressible(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if is_json(name, value)}
