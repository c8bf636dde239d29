"""Batches of replay whose step was skipped, on disk, and what can be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typing_extensions import override

from marlogue.algorithms.bad_batches import TEAM, KeptBatches, read_batch
from marlogue.algorithms.bad_numbers import BadStep

if TYPE_CHECKING:
    from marlogue.algorithms.aac import AACTrainer

_TENSORS = "batch.safetensors"


class AACBadBatches(KeptBatches):
    """Of replay: every tensor of a batch, as it was drawn.

    Args:
        logdir: of the run.
        trainer: whose steps they are.
    """

    def __init__(self, logdir: Path, trainer: AACTrainer) -> None:
        super().__init__(logdir, trainer.save_model)
        self.trainer = trainer

    @override
    def content(self, step: BadStep, place: Path) -> dict[str, Any]:
        """Where the training was; the tensors go into a file of their own."""
        tensors = {
            name: value.detach().cpu().contiguous()
            for name, value in step.batch._asdict().items()
            if isinstance(value, Tensor)
        }
        save_file(tensors, place / _TENSORS)
        return {"updates": self.trainer.updates, "env_step": self.trainer.steps}


@dataclass(frozen=True)
class BadReplay:
    """A batch of replay that was saved.

    Attributes:
        about: what ``batch.json`` says: model, number, value, in_a_row, updates, env_step.
        tensors: of the batch, by name.
        weights: of all networks, by file and name; None where the team was not saved.
    """

    about: Mapping[str, Any]
    tensors: dict[str, Tensor]
    weights: dict[str, Tensor] | None

    @classmethod
    def load(cls, path: Path) -> BadReplay | None:
        """Read a batch; None where it is one of samples.

        Raises:
            ValueError: when there is none, or it is damaged.
        """
        folder, about = read_batch(path)
        if not (folder / _TENSORS).exists():
            return None
        weights = None
        if (folder / TEAM).exists():
            weights = {
                f"{file.stem}: {name}": tensor
                for file in sorted((folder / TEAM).glob("*.safetensors"))
                for name, tensor in load_file(file).items()
            }
        return cls(about, load_file(folder / _TENSORS), weights)

    def report(self) -> list[str]:
        """Lines about every tensor of the batch, and about weights that are not finite."""
        lines = [f"{'tensor':20s} {'shape':>16s} {'not finite':>10s} {'least':>10s} {'most':>10s}"]
        for name, tensor in self.tensors.items():
            finite = tensor[torch.isfinite(tensor)].float()
            least, most = (finite.min(), finite.max()) if finite.numel() else (torch.nan,) * 2
            shape, bad = str(list(tensor.shape)), tensor.numel() - finite.numel()
            lines.append(f"{name:20s} {shape:>16s} {bad:10d} {least:10.4g} {most:10.4g}")
        if self.weights is None:
            return [*lines, "", "the networks are saved only with the batch that stops a run"]
        bad_weights = {
            name: int((~torch.isfinite(tensor)).sum()) for name, tensor in self.weights.items()
        }
        found = [
            f"{name}: {count} of {self.weights[name].numel()} are not finite"
            for name, count in bad_weights.items()
            if count
        ]
        return [*lines, "", *(found or ["all weights of the networks are finite"])]
