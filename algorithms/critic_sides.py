"""Who judges whom, and when the critics learn. The one place where the learners differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from marlogue.algorithms.groups import Group, minibatches
from marlogue.algorithms.judges import CriticJudge, Values
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.sample import Sample


class CriticSide(Protocol):
    """The critics of a learner."""

    optimizers: list[Optimizer]

    def expect(self, samples: Iterable[Sample]) -> None:
        """Take note of newly collected samples, whose values are to be predicted."""

    def begin(self, groups: Sequence[Group], discount: float) -> dict[str, float]:
        """Before the first agent's update: what is to be learnt from all groups together."""

    def prepare(self, group: Group) -> None:
        """See to it that the group's targets can be set, and that values are predicted before
        any critic changes."""

    def step(self, group: Group, minibatch: Sequence[Sample]) -> dict[str, float]:
        """One optimiser step of the agent's critic with one of its minibatches."""


class AgentCritics:
    """A critic for each agent, stepped with that agent's minibatches. MAAC's shared critic is the
    same judge for every agent.

    Args:
        judges: one per agent.
    """

    def __init__(self, judges: Sequence[CriticJudge]) -> None:
        self.judges = list(judges)
        self.optimizers = [judge.optimizer for judge in dict.fromkeys(judges)]

    def expect(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self.judges[sample.agent_idx].values.expect([sample])

    def begin(self, groups: Sequence[Group], discount: float) -> dict[str, float]:
        return {}

    def prepare(self, group: Group) -> None:
        values = self.judges[group.agent_idx].values
        if values.waiting and not values.come_with(group.minibatches[0]):
            values.predict_waiting()

    def step(self, group: Group, minibatch: Sequence[Sample]) -> dict[str, float]:
        judge = self.judges[group.agent_idx]
        return judge.step(minibatch, [sample.target for sample in minibatch])


class JointCritic:
    """One critic for the team, stepped once per minibatch of joint samples.

    The samples of a team that share a joint history are one joint sample; its target is the mean
    of theirs (they differ where agents have rewards of their own).

    Args:
        judge: the critic.
        batch_size: joint samples per optimiser step.
        seed: first numbers of the streams that shuffle.
    """

    def __init__(self, judge: CriticJudge, batch_size: int, seed: tuple[int, ...]) -> None:
        self.judge = judge
        self.batch_size = batch_size
        self.seed = seed
        self.updates = 0
        self.optimizers = [judge.optimizer]

    def expect(self, samples: Iterable[Sample]) -> None:
        self.judge.values.expect(samples)

    def begin(self, groups: Sequence[Group], discount: float) -> dict[str, float]:
        self.judge.values.predict_waiting()
        joint: dict[int, dict[object, list[Sample]]] = {}
        for group in groups:
            group.set_targets(discount)
            for sample in group.samples:
                if not sample.joint.judged:
                    joint.setdefault(group.turn_idx, {}).setdefault(sample.joint, []).append(sample)
        metrics: dict[str, float] = {}
        for turn in sorted(joint):
            metrics |= self._learn(turn, list(joint[turn].values()))
        self.updates += 1
        return metrics

    def _learn(self, turn: int, teams: list[list[Sample]]) -> dict[str, float]:
        targets = {team[0]: sum(s.target for s in team) / len(team) for team in teams}
        losses = []
        for minibatch in minibatches(
            list(targets), self.batch_size, (*self.seed, self.updates, turn)
        ):
            losses.append(self.judge.step(minibatch, [targets[sample] for sample in minibatch]))
            for sample in minibatch:
                sample.joint.judged = True
        prefix = f"team/turn_{turn + 1}"
        return {
            f"{prefix}/{name}": sum(loss[name] for loss in losses) / len(losses)
            for name in losses[0]
        }

    def prepare(self, group: Group) -> None:
        """All is done in ``begin``."""

    def step(self, group: Group, minibatch: Sequence[Sample]) -> dict[str, float]:
        return {}


class TrunkCritics:
    """Value heads on the actors' trunks: they learn in the actor's own step.

    Args:
        values: one per agent.
    """

    def __init__(self, values: Sequence[Values]) -> None:
        self.values = list(values)
        self.optimizers: list[Optimizer] = []

    def expect(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self.values[sample.agent_idx].expect([sample])

    def begin(self, groups: Sequence[Group], discount: float) -> dict[str, float]:
        return {}

    def prepare(self, group: Group) -> None:
        values = self.values[group.agent_idx]
        if values.waiting:
            values.predict_waiting()

    def step(self, group: Group, minibatch: Sequence[Sample]) -> dict[str, float]:
        return {}
