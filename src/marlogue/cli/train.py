"""``marlogue train``: train a team as a YAML file says."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from marlogue.algorithms import Callback
from marlogue.algorithms.attention_trace import list_traces
from marlogue.algorithms.checkpoints import CheckpointError
from marlogue.algorithms.run_description import ResumeError
from marlogue.algorithms.run_folder import RunFolderError, fresh_folder, refuse_links
from marlogue.cli.building import make_trainer
from marlogue.cli.errors import UsageError, as_usage_errors, describe
from marlogue.cli.known import remember
from marlogue.cli.lookup import search_here
from marlogue.cli.options import Settings, read
from marlogue.cli.report import make_report


def train(words: Sequence[str]) -> None:
    """Train; print what the team reaches before and after, and where to look.

    Raises:
        UsageError: when the configuration cannot be used, or not to go on with this run.
    """
    settings = read("train", words, {})
    search_here(*settings.folders)
    begins = settings.args.resume is None
    logdir = None if settings["logdir"] is None else Path(settings["logdir"])
    if logdir is not None and begins:
        logdir = fresh_folder(logdir)
    report = make_report(settings)
    with as_usage_errors():
        if settings["output_dir"] is not None:  # not at the end of a long training
            refuse_links("output_dir", Path(settings["output_dir"]))
        trainer = make_trainer(settings, [report, _ConfigKept(settings, logdir)], logdir)
    report.open(trainer)
    if not settings.args.eval_interval and begins:
        trainer.evaluate()
    try:
        trainer.train()
    except (RunFolderError, ResumeError, CheckpointError) as error:
        raise UsageError(describe(error)) from error
    if not settings.args.eval_interval:
        trainer.evaluate()
    report.close()
    if settings["output_dir"] is not None:
        output_dir = Path(settings["output_dir"])
        trainer.save_model(output_dir)
        _keep(settings, output_dir)
        quoted = shlex.quote(str(output_dir))
        following = f"{command('marlogue')} {report.follow_up} --team {quoted}"
        print(f"the team is in {output_dir}; next: {following}")
    if logdir is not None:
        quoted = shlex.quote(str(logdir))
        if list_traces(logdir):
            print(f"who attends to whom: {command('marlogue')} attention {quoted}")
        print(f"{report.left}: {command('tensorboard')} --logdir {quoted}")


def command(program: str) -> str:
    """How an installed program is called from here."""
    beside = Path(sys.executable).with_name(program)
    if shutil.which(program) is not None or not beside.exists():
        return program
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


class _ConfigKept(Callback[Any]):
    """Leaves the configuration in a run's folder, once that is known to be the run's own."""

    def __init__(self, settings: Settings, logdir: Path | None) -> None:
        self.settings, self.logdir = settings, logdir

    @override
    def on_train_start(self, trainer: Any) -> None:
        if self.logdir is not None:
            _keep(self.settings, self.logdir)


def _keep(settings: Settings, folder: Path) -> None:
    """Leave the whole configuration with what it led to."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(settings.text, encoding="utf-8")
    remember(settings.text)
