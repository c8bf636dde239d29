"""What ``marlogue train`` prints while it trains."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from typing_extensions import override

from marlogue.algorithms import AACTrainer, Callback, OnPolicyTrainer, Sample
from marlogue.algorithms.aac_diagnostics import MOST_NAMED
from marlogue.algorithms.kept_trainer import KeptTrainer
from marlogue.algorithms.team_views import EpisodeEnd
from marlogue.cli.building import evaluates_apart
from marlogue.cli.options import Settings
from marlogue.envs.text_env import text_env_inside

_LINES = 20  # of progress, where there is no table

TrainerT = TypeVar("TrainerT", bound=KeptTrainer)


class Report(Callback[TrainerT], ABC):
    """Prints how the run goes: what it reaches before and after, and a few lines between.

    Subclasses say what is trained and measured.
    """

    measure: ClassVar[str]
    """What an evaluation is summed up by."""
    follow_up: ClassVar[str]
    """The command to look at a saved team with."""
    unit: ClassVar[str]
    """What the trainer's position counts."""
    left: ClassVar[str]
    """What there is in the run's folder."""

    def __init__(self, settings: Settings) -> None:
        self.algorithm = settings.algorithm.upper()
        self._quiet = not settings.args.verbose
        # A run that goes on has its "before" behind it.
        self._first: Mapping[str, float] | None = None if settings.args.resume is None else {}
        self._latest: Mapping[str, float] = {}
        self._values: list[float] = []
        self._shown = 0
        self._started = time.monotonic()

    @abstractmethod
    def trained(self, trainer: TrainerT) -> str:
        """What is going to be trained."""

    @abstractmethod
    def reached(self, metrics: Mapping[str, float]) -> str:
        """What an evaluation gave."""

    @abstractmethod
    def evaluated(self, trainer: TrainerT) -> str:
        """What an evaluation plays."""

    def open(self, trainer: TrainerT) -> None:
        """Say what is going to be trained."""
        print(f"{self.algorithm}: training {self.trained(trainer)}", flush=True)

    def note(self, values: Sequence[float]) -> None:
        """Take notice of what episodes gave, for the next line."""
        self._values += values

    @override
    def on_train_start(self, trainer: TrainerT) -> None:
        """Say where a run goes on from."""
        place = trainer.keeper.resumed_from
        if place is not None:
            print(f"going on from {place}: {trainer.position} {self.unit} are done", flush=True)

    def progress(self, trainer: TrainerT, updates: int, total: int | None) -> None:
        """Print a line now and then, where no table is printed."""
        done = trainer.position
        share = done if total is None else done * _LINES // total
        if not self._quiet or share <= self._shown or not self._values:
            return
        self._shown = share
        mean = sum(self._values) / len(self._values)
        of = "" if total is None else f"/{total}"
        print(
            f"  update {updates:3d}  {self.unit} {done}{of}  "
            f"{self.measure} {mean:.3f}  {time.monotonic() - self._started:.0f} s",
            flush=True,
        )
        self._values = []

    @override
    def on_evaluation(self, trainer: TrainerT, metrics: dict[str, float]) -> None:
        """Print the first evaluation, and keep the latest."""
        self._latest = metrics
        if self._first is None:
            self._first = metrics
            reached, about = self.reached(metrics), self.evaluated(trainer)
            print(f"{self.measure} before training: {reached} ({about})", flush=True)

    def close(self) -> None:
        """Print the last evaluation."""
        if self._latest:
            print(f"{self.measure} after training:  {self.reached(self._latest)}", flush=True)


class TextReport(Report[OnPolicyTrainer]):
    """Of MAAC and IAC."""

    measure = "mean reward"
    follow_up = "rollout"
    unit = "items"
    left = "curves and transcripts"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._rows = "evaluation rows" if evaluates_apart(settings) else "training rows"

    @override
    def trained(self, trainer: OnPolicyTrainer) -> str:
        total = trainer.items.total
        items = "" if total is None else f" on {total} items"
        return ", ".join(trainer.environments.agents) + items

    @override
    def reached(self, metrics: Mapping[str, float]) -> str:
        return rewards_by_turn(metrics)

    @override
    def evaluated(self, trainer: OnPolicyTrainer) -> str:
        return f"{evaluated_rows(trainer)} {self._rows}"

    @override
    def on_item(self, trainer: OnPolicyTrainer, samples: Sequence[Sample]) -> None:
        self.note([s.reward for s in samples if not s.abstained])

    @override
    def on_update(self, trainer: OnPolicyTrainer) -> None:
        self.progress(trainer, trainer.updates, trainer.items.total)


class TeamReport(Report[AACTrainer]):
    """Of AAC. The return of an episode is the sum over its steps and all agents."""

    measure = "mean return"
    follow_up = "evaluate"
    unit = "steps"
    left = "curves"

    @override
    def trained(self, trainer: AACTrainer) -> str:
        names = trainer.team.agents
        few = len(names) <= MOST_NAMED
        who = ", ".join(names) if few else f"{len(names)} agents ({names[0]} to {names[-1]})"
        stages = len(trainer.stages)
        parts = f" in {stages} stages" if stages > 1 else ""
        return f"{who} for {trainer.args.total_steps} steps{parts}"

    @override
    def reached(self, metrics: Mapping[str, float]) -> str:
        return f"{metrics['eval/team/return_mean']:.3f}"

    @override
    def evaluated(self, trainer: AACTrainer) -> str:
        return f"{trainer.args.eval_episodes} episodes"

    @override
    def on_episode(self, trainer: AACTrainer, episode: EpisodeEnd) -> None:
        self.note([float(episode.returns.sum())])

    @override
    def on_update(self, trainer: AACTrainer) -> None:
        self.progress(trainer, trainer.updates, trainer.args.total_steps)


def make_report(settings: Settings) -> Report[Any]:
    """The report of a run with these settings."""
    return TeamReport(settings) if settings.algorithm == "aac" else TextReport(settings)


def rewards_by_turn(metrics: Mapping[str, float]) -> str:
    """The team's mean reward, turn by turn where there are several."""
    prefix, suffix = "eval/team/turn_", "/reward_mean"
    means = {
        int(name[len(prefix) : -len(suffix)]): value
        for name, value in metrics.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }
    if len(means) == 1:
        return f"{next(iter(means.values())):.3f}"
    return ", ".join(f"turn {turn} {means[turn]:.3f}" for turn in sorted(means)) or "none"


def evaluated_rows(trainer: OnPolicyTrainer) -> int:
    """How many rows an evaluation plays."""
    inner = None
    if trainer.environments.eval is not None:
        inner = text_env_inside(trainer.environments.eval)
    length = None if inner is None else inner.task.rows.length
    most = trainer.args.eval_num_samples
    return most if length is None else min(most, length)
