"""``marlogue train``: train a team as a YAML file says."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from marlogue.algorithms import Callback, OnPolicyTrainer, Sample
from marlogue.cli.building import evaluates_apart, make_trainer
from marlogue.cli.errors import as_usage_errors
from marlogue.cli.lookup import search_here
from marlogue.cli.options import Settings, read
from marlogue.envs.text_env import text_env_inside

_LINES = 20  # of progress, where there is no table


def train(words: Sequence[str]) -> None:
    """Train; print the reward before and after, and where to look.

    Raises:
        UsageError: when the configuration cannot be used.
    """
    settings = read("train", words, {})
    search_here(*settings.folders)
    logdir = None if settings["logdir"] is None else fresh_folder(Path(settings["logdir"]))
    report = Report(settings)
    with as_usage_errors():
        trainer = make_trainer(settings, [report], logdir)
    if logdir is not None:
        _keep(settings, logdir)
    report.open(trainer)
    if not settings.args.eval_interval:
        trainer.evaluate()
    trainer.train()
    if not settings.args.eval_interval:
        trainer.evaluate()
    report.close()
    if settings["output_dir"] is not None:
        output_dir = Path(settings["output_dir"])
        trainer.save_model(output_dir)
        _keep(settings, output_dir)
        quoted = shlex.quote(str(output_dir))
        print(f"the team is in {output_dir}; next: {command('marlogue')} rollout --team {quoted}")
    if logdir is not None:
        quoted = shlex.quote(str(logdir))
        print(f"curves and transcripts: {command('tensorboard')} --logdir {quoted}")


class Report(Callback):
    """Prints how the run goes: the reward before and after, and a few lines between."""

    def __init__(self, settings: Settings) -> None:
        self._rows = "evaluation rows" if evaluates_apart(settings) else "training rows"
        self._algorithm = settings.algorithm.upper()
        self._quiet = not settings.args.verbose
        self._first: Mapping[str, float] | None = None
        self._latest: Mapping[str, float] = {}
        self._rewards: list[float] = []
        self._shown = 0
        self._items = 0
        self._started = time.monotonic()

    def open(self, trainer: OnPolicyTrainer) -> None:
        """Say what is going to be trained."""
        names = ", ".join(trainer.environments.agents)
        items = "" if trainer.items.total is None else f" on {trainer.items.total} items"
        print(f"{self._algorithm}: training {names}{items}", flush=True)

    def on_item(self, trainer: OnPolicyTrainer, samples: Sequence[Sample]) -> None:
        """Note the rewards."""
        self._items += 1
        self._rewards += [s.reward for s in samples if not s.abstained]

    def on_update(self, trainer: OnPolicyTrainer) -> None:
        """Print a line now and then, where no table is printed."""
        total = trainer.items.total
        share = self._items if total is None else self._items * _LINES // total
        if not self._quiet or share <= self._shown or not self._rewards:
            return
        self._shown = share
        mean = sum(self._rewards) / len(self._rewards)
        of = "" if total is None else f"/{total}"
        print(
            f"  update {trainer.updates:3d}  items {self._items}{of}  "
            f"mean reward {mean:.3f}  {time.monotonic() - self._started:.0f} s",
            flush=True,
        )
        self._rewards = []

    def on_evaluation(self, trainer: OnPolicyTrainer, metrics: dict[str, float]) -> None:
        """Print the first evaluation, and keep the latest."""
        self._latest = metrics
        if self._first is None:
            self._first = metrics
            rows = f"{evaluated_rows(trainer)} {self._rows}"
            print(f"mean reward before training: {rewards_by_turn(metrics)} ({rows})", flush=True)

    def close(self) -> None:
        """Print the last evaluation."""
        if self._latest:
            print(f"mean reward after training:  {rewards_by_turn(self._latest)}", flush=True)


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


def fresh_folder(folder: Path) -> Path:
    """The folder, or with a number behind it where it holds a run already."""
    candidate, number = folder, 1
    while (candidate / "progress.csv").exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def command(program: str) -> str:
    """How an installed program is called from here."""
    beside = Path(sys.executable).with_name(program)
    if shutil.which(program) is not None or not beside.exists():
        return program
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def _keep(settings: Settings, folder: Path) -> None:
    """Leave the whole configuration with what it led to."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(settings.text, encoding="utf-8")
