"""Batches whose step was skipped, on disk: what was learnt from, and what a replay needs.

A batch is a folder ``logdir/bad_batches/000003_agent_1``, written whole or not at all:
``batch.json`` holds the samples with all their numbers and, where it is a critic's, what the critic
read; ``team`` is the team as it was (safetensors and JSON), in the batch that stopped the run only.
The model of the earlier batches in that row is the same all the same: its steps were skipped.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from marlogue import __version__
from marlogue.agents import Answered, TeamHistory
from marlogue.algorithms.bad_numbers import BadStep
from marlogue.algorithms.checkpoints import check_folder, write_folder
from marlogue.algorithms.sample import Sample
from marlogue.algorithms.sample_table import SampleTable

if TYPE_CHECKING:
    from marlogue.algorithms.on_policy import OnPolicyTrainer

#: So many batches of a run are kept, and the one that stops it: they are there to be looked at.
MOST_KEPT = 20
FOLDER = "bad_batches"
BATCH, TEAM = "batch.json", "team"
_KIND = "bad batch"


class KeptBatches(ABC):
    """Saves batches of a run; what a :class:`marlogue.algorithms.bad_numbers.SkippedSteps` calls.

    Args:
        logdir: of the run.
        save_team: saves the whole team into a folder.
    """

    def __init__(self, logdir: Path, save_team: Callable[[Path], None]) -> None:
        self.folder = logdir / FOLDER
        self.save_team = save_team

    def __call__(self, step: BadStep, whole_team: bool) -> Path | None:
        """Save the batch of a step, and the team with it where that is asked for.

        Returns:
            Its folder; None where enough are kept already.

        Raises:
            OSError: when it cannot be written.
        """
        if step.count > MOST_KEPT and not whole_team:
            return None

        def write(place: Path) -> None:
            content = {
                "marlogue": __version__,
                "model": step.model,
                "number": step.number,
                "value": step.value,
                "in_a_row": step.in_a_row,
                **self.content(step, place),
            }
            (place / BATCH).write_text(json.dumps(content), encoding="utf-8")
            if whole_team:
                self.save_team(place / TEAM)

        place = self.folder / f"{step.count:06d}_{step.model}"
        write_folder(place, write, {"what": _KIND})
        return place

    @abstractmethod
    def content(self, step: BadStep, place: Path) -> dict[str, Any]:
        """What goes into ``batch.json`` beside the step; tensors go into files in ``place``."""


class BadBatches(KeptBatches):
    """Of samples, with what a replay needs.

    Args:
        logdir: of the run.
        trainer: whose steps they are.
    """

    def __init__(self, logdir: Path, trainer: OnPolicyTrainer) -> None:
        super().__init__(logdir, trainer.save_model)
        self.trainer = trainer

    @override
    def content(self, step: BadStep, place: Path) -> dict[str, Any]:
        """The samples, what a critic read of them, and how the step is computed."""
        args, table = self.trainer.args, SampleTable()
        kind, _, index = step.model.rpartition("_")
        term = self.trainer.actors[int(index)].trunk_term if kind == "agent" else None
        return {
            "updates": self.trainer.updates,
            "env_step": self.trainer.env_step,
            "temperature": args.scoring_temperature,
            "dtype": args.dtype,
            "value_loss_coef": args.value_loss_coef,
            "trunk": None if term is None else [term.reads_actions, term.value_clip_range],
            "histories": self._histories(step.batch) if kind == "critic" else None,
            "rows": table.add(step.batch),
            "table": table.state_dict(),
        }

    def _histories(self, samples: Sequence[Sample]) -> list[Any]:
        values = self.trainer.critic_side.values
        return [values[sample.agent_idx].history(sample) for sample in samples]


@dataclass(frozen=True)
class BadBatch:
    """A batch that was saved.

    Attributes:
        model: whose step was skipped: "agent_I" or "critic_I".
        number, value: what was not finite first.
        in_a_row: how many steps of the model had been skipped in a row.
        updates, env_step: finished updates and joint actions of the run.
        temperature: of the log-probabilities.
        dtype: precision of the computation.
        value_loss_coef: weight of the critic's loss.
        trunk: for a value head on the actor's trunk, whether it reads actions, and the clip of its
            loss; else None.
        samples: the minibatch.
        histories: what a critic read of each sample; None where it is an actor's step.
        team: folder of the team as it was; None where it was not saved.
    """

    model: str
    number: str
    value: float
    in_a_row: int
    updates: int
    env_step: int
    temperature: float
    dtype: str
    value_loss_coef: float
    trunk: tuple[bool, float | None] | None
    samples: list[Sample]
    histories: list[Any] | None
    team: Path | None

    @property
    def index(self) -> int:
        """Of the agent or critic."""
        return int(self.model.rpartition("_")[2])

    @classmethod
    def load(cls, path: Path) -> BadBatch:
        """Read a batch, by its folder or its ``batch.json``.

        Raises:
            ValueError: when there is none, or it is damaged.
        """
        folder, content = read_batch(path)
        own = {name: content[name] for name in cls.__annotations__ if name in content}
        own["trunk"] = None if content["trunk"] is None else tuple(content["trunk"])
        if content["histories"] is not None:
            own["histories"] = [_history(history) for history in content["histories"]]
        own["samples"] = SampleTable.load(content["table"]).get(content["rows"])
        team = folder / TEAM
        return cls(**own, team=team if team.exists() else None)


def read_batch(path: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a batch, and what its ``batch.json`` says.

    Raises:
        ValueError: when there is none, or it is damaged.
    """
    folder = path.parent if path.name == BATCH else path
    if check_folder(folder).get("what") != _KIND:
        raise ValueError(f"{folder} holds no batch; name a folder in a run's {FOLDER}.")
    content: dict[str, Any] = json.loads((folder / BATCH).read_text(encoding="utf-8"))
    return folder, content


def _history(saved: Sequence[Any]) -> Any:
    """Token ids, or one text per agent and whose value is asked for."""
    if not isinstance(saved[0], list):
        return tuple(saved)
    texts, agent = saved
    return TeamHistory(
        tuple(None if text is None else Answered(tuple(text[0]), tuple(text[1])) for text in texts),
        agent,
    )
