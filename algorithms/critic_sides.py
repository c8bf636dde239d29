"""Who judges whom, and when the critics learn: the one place where the learners differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from typing_extensions import override

from marlogue.algorithms.bad_numbers import BadNumbers
from marlogue.algorithms.groups import Group, minibatches
from marlogue.algorithms.judges import CriticJudge, Values
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.sample import Joint, Sample


class CriticSide:
    """The critics of a learner, as the loop sees them.

    Args:
        values: one per agent; what predicts the values of its samples. A critic that several
            agents share is the same object for each.
        optimizers: of the critics that have one of their own.
    """

    def __init__(self, values: Sequence[Values], optimizers: Iterable[Optimizer] = ()) -> None:
        self.values = list(values)
        self.optimizers = list(dict.fromkeys(optimizers))

    def expect(self, samples: Iterable[Sample]) -> None:
        """Take note of newly collected samples, whose values are to be predicted."""
        for sample in samples:
            self.values[sample.agent_idx].expect([sample])

    def begin(self, groups: Sequence[Group], discount: float, update: int) -> dict[str, float]:
        """Before the first agent's part of an update (its number names random numbers): learn what
        is learnt from all groups together."""
        return {}

    def prepare(self, group: Group) -> None:
        """Predict the group's values, unless its first step on the critic will."""
        self.values[group.agent_idx].predict_waiting()

    def step(self, group: Group, minibatch: Sequence[Sample]) -> dict[str, float]:
        """Step the agent's critic with one of the agent's minibatches."""
        return {}


class TrunkCritics(CriticSide):
    """Value heads on the actors' trunks: they learn in the actor's own step."""


class AgentCritics(CriticSide):
    """A critic is stepped with each minibatch of each agent that it judges.

    Args:
        judges: one per agent; MAAC's shared critic is the same judge for every agent.
        bad_numbers: decides about steps that are not to be made.
    """

    def __init__(self, judges: Sequence[CriticJudge], bad_numbers: BadNumbers) -> None:
        super().__init__([j.values for j in judges], (j.optimizer for j in judges))
        self.judges = list(judges)
        self.bad_numbers = bad_numbers

    @override
    def prepare(self, group: Group) -> None:
        values = self.values[group.agent_idx]
        # Where no value follows, a target is what was earned; without one a sample is left out.
        first = [s for s in group.minibatches[0] if math.isfinite(s.reward - s.penalty)]
        if not values.come_with(first):
            values.predict_waiting()

    @override
    def step(self, group: Group, minibatch: Sequence[Sample]) -> dict[str, float]:
        judge = self.judges[group.agent_idx]
        number = list(dict.fromkeys(self.judges)).index(judge)
        return self.bad_numbers.attempt(
            f"critic_{number}",
            minibatch,
            "target",
            lambda usable: judge.step(usable, [sample.target for sample in usable]),
        )


class JointCritic(CriticSide):
    """One critic for the team, stepped once per minibatch of joint samples.

    The samples of a team that share a joint step are one joint sample. Where they have one value,
    its target is the mean of theirs (they differ where agents have rewards of their own).

    Args:
        judge: the critic.
        num_agents: of the team.
        batch_size: joint samples per optimiser step.
        stream: first numbers of the streams that shuffle.
        bad_numbers: decides about steps that are not to be made.
        one_value: the samples of a joint step have the same value, rather than one each.
    """

    def __init__(
        self,
        judge: CriticJudge,
        num_agents: int,
        batch_size: int,
        stream: tuple[int, ...],
        bad_numbers: BadNumbers,
        *,
        one_value: bool = True,
    ) -> None:
        super().__init__([judge.values] * num_agents, [judge.optimizer])
        self.judge = judge
        self.batch_size = batch_size
        self.stream = stream
        self.bad_numbers = bad_numbers
        self.one_value = one_value

    @override
    def begin(self, groups: Sequence[Group], discount: float, update: int) -> dict[str, float]:
        self.values[0].predict_waiting()
        teams: dict[int, dict[Joint, list[Sample]]] = {}
        for group in groups:
            group.set_targets(discount)
            for sample in group.samples:
                if not (self.one_value and sample.joint.judged):
                    turn = teams.setdefault(group.turn_idx, {})
                    turn.setdefault(sample.joint, []).append(sample)
        metrics: dict[str, float] = {}
        for turn_idx in sorted(teams):
            metrics |= self._learn(turn_idx, list(teams[turn_idx].values()), update)
        return metrics

    def _learn(self, turn_idx: int, teams: list[list[Sample]], update: int) -> dict[str, float]:
        stream = (*self.stream, update, turn_idx)
        steps = []
        for minibatch in minibatches(teams, self.batch_size, stream):
            samples = [sample for team in minibatch for sample in team]
            steps.append(self.bad_numbers.attempt("critic_0", samples, "target", self._step))
            for team in minibatch:
                team[0].joint.judged = True
        made = [step for step in steps if step]
        return {
            f"team/turn_{turn_idx + 1}/{name}": sum(step[name] for step in made) / len(made)
            for name in (made[0] if made else ())
        }

    def _step(self, samples: Sequence[Sample]) -> dict[str, float]:
        if not self.one_value:
            return self.judge.step(samples, [sample.target for sample in samples])
        teams: dict[Joint, list[float]] = {}
        firsts: dict[Joint, Sample] = {}
        for sample in samples:
            firsts.setdefault(sample.joint, sample)
            teams.setdefault(sample.joint, []).append(sample.target)
        targets = [sum(of_team) / len(of_team) for of_team in teams.values()]
        return self.judge.step(list(firsts.values()), targets)

    @override
    def prepare(self, group: Group) -> None:
        pass  # all is predicted in `begin`
