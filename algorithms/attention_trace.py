"""Who attended to whom over an episode, as a file to look at later.

T steps, K steps whose weights are kept (of many agents not all are), H heads, N agents.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marlogue.algorithms.attention_entropies import choices, head_entropies

Array = NDArray[Any]

#: Marks a file as an attention trace; the number is raised when its fields change.
FORMAT = "marlogue attention trace"
VERSION = 1

#: Where in the folder of a run the traces lie.
FOLDER = "attention"

_NO_ARRAY = "none"


@dataclass(frozen=True, eq=False)
class AttentionTrace:
    """Attention weights over an episode, and what happened in it.

    Attributes:
        names: [N] agents.
        weights: [K, H, N, N] float32 or float16: how much each agent (row) attended to each other
            (column) before steps ``0, stride, 2 stride, ...``; [K, 1, N, N] where
            ``heads_averaged``.
        present: [T, N] bool, who took part in a step.
        rewards: [T, N] of the steps.
        actions: [T, N] indices or [T, N, A] numbers, or None.
        positions: [T, N, 2] of the agents before a step, or None; NaN where unknown.
        landmarks: [T, L, 2], where other things were (what is chased, for instance), or None.
        landmark_names: [L].
        stride: weights of every ``stride``-th step are kept.
        num_heads: H of the critic.
        heads_averaged: the mean over heads alone is kept.
        about: what was played, for titles.

    Raises:
        ValueError: when shapes do not go together.
    """

    names: tuple[str, ...]
    weights: Array
    present: Array
    rewards: Array
    actions: Array | None = None
    positions: Array | None = None
    landmarks: Array | None = None
    landmark_names: tuple[str, ...] = ()
    stride: int = 1
    num_heads: int = 1
    heads_averaged: bool = False
    about: str = ""

    def __post_init__(self) -> None:
        steps, count = len(self.present), len(self.names)
        kept = math.ceil(steps / self.stride) if self.stride >= 1 else 0
        heads = 1 if self.heads_averaged else self.num_heads
        if not steps or not count:
            raise ValueError("a trace must have at least one step and one agent.")
        wanted = {
            "weights": (kept, heads, count, count),
            "present": (steps, count),
            "rewards": (steps, count),
            "positions": (steps, count, 2),
            "landmarks": (steps, len(self.landmark_names), 2),
        }
        for name, shape in wanted.items():
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise ValueError(
                    f"{name} has the shape {array.shape}, which must be {shape}, for {steps} "
                    f"steps, a stride of {self.stride}, {heads} heads and {count} agents."
                )
        if self.actions is not None and self.actions.shape[:2] != (steps, count):
            raise ValueError(
                f"actions have the shape {self.actions.shape}, which must begin {(steps, count)}."
            )

    @property
    def steps(self) -> NDArray[np.int64]:
        """[K], the steps whose weights are kept."""
        return np.arange(len(self.weights), dtype=np.int64) * self.stride

    @property
    def kept(self) -> str:
        """What was left out to save memory, in words; empty when all is there."""
        parts = []
        if self.stride > 1:
            parts.append(f"weights of every {_ordinal(self.stride)} step only")
        if self.heads_averaged and self.num_heads > 1:
            parts.append(f"mean of {self.num_heads} heads only")
        if self.weights.dtype == np.float16:
            parts.append("half precision")
        return ", ".join(parts)

    def mean_weights(self, head: int | None = None) -> NDArray[np.float32]:
        """[N, N], mean over the kept steps in which both agents were there, NaN for those that
        never were (and on the diagonal): who leaves early is not taken to be ignored.

        Args:
            head: one head; None for the mean over all.
        """
        count = len(self.names)
        sums, times = np.zeros((count, count)), np.zeros((count, count))
        for weights, there in zip(self.weights, self.present[self.steps], strict=True):
            both = pairs(there)
            chosen = weights.mean(0, dtype=np.float32) if head is None else weights[head]
            sums += np.where(both, chosen, 0.0)
            times += both
        with np.errstate(invalid="ignore"):
            return (sums / times).astype(np.float32)

    def weights_at(self, index: int) -> NDArray[np.float32]:
        """[N, N], mean over heads of the ``index``-th kept step; NaN as in :meth:`mean_weights`."""
        mean = self.weights[index].mean(0, dtype=np.float32)
        return np.where(pairs(self.present[self.steps[index]]), mean, np.float32(np.nan))

    def entropies(self) -> tuple[list[float], list[float]]:
        """Mean entropy of each head's weights, in nats and divided by the log of the number of
        others (see :func:`marlogue.algorithms.attention_entropies.head_entropies`); empty where
        no agent ever had two others."""
        there = torch.from_numpy(self.present[self.steps])
        rows, others = choices(torch.from_numpy(self.weights.astype(np.float32)), there)
        if not len(rows):
            return [], []
        nats, shares = head_entropies(rows, others)
        return nats.tolist(), shares.tolist()

    def entropies_by_step(self) -> NDArray[np.float32]:
        """[K, H], of the kept steps' weights, divided by the log of the number of others; NaN
        where no agent had two."""
        rows = np.full(self.weights.shape[:2], np.nan, np.float32)
        for index, (weights, there) in enumerate(
            zip(self.weights, self.present[self.steps], strict=True)
        ):
            known, others = choices(
                torch.from_numpy(weights[None].astype(np.float32)), torch.from_numpy(there[None])
            )
            if len(known):
                rows[index] = head_entropies(known, others)[1].numpy()
        return rows

    def uniform(self) -> float:
        """What each other agent would get if all got the same, mean over kept steps and agents;
        NaN where nobody ever had company."""
        there = self.present[self.steps].sum(-1)
        there = there[there > 1].astype(np.float64)
        return float(there @ (1 / (there - 1)) / there.sum()) if len(there) else math.nan

    def save(self, path: str | Path) -> None:
        """Write an .npz file, whole or not at all.

        Raises:
            OSError: when it cannot be written.
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        fields["names"] = np.array(self.names, dtype=np.str_)
        fields["landmark_names"] = np.array(self.landmark_names, dtype=np.str_)
        fields = {k: np.array(_NO_ARRAY) if v is None else v for k, v in fields.items()}
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".part")
        with open(unfinished, "wb") as file:
            np.savez_compressed(file, format=FORMAT, version=VERSION, kept=self.kept, **fields)
        os.replace(unfinished, path)

    @classmethod
    def load(cls, path: str | Path) -> AttentionTrace:
        """Read what :meth:`save` wrote. Nothing in the file is executed.

        Raises:
            OSError: when there is no such file, or it cannot be read.
            ValueError: when it is no attention trace, or not a whole one.
        """
        content = _content(path)
        if str(content.get("format")) != FORMAT:
            raise ValueError(f"{path} is no attention trace (it lacks the mark of one).")
        version = int(content["version"])
        if version > VERSION:
            raise ValueError(
                f"{path} was written by a later version of Marlogue (format {version}, this one "
                f"reads up to {VERSION}); update it."
            )
        missing = [name for name in _FIELDS if name not in content]
        if missing:
            raise ValueError(f"{path} is not a whole attention trace; it lacks {missing[0]}.")
        return cls(**{name: _plain(name, content[name]) for name in _FIELDS})


_FIELDS = tuple(AttentionTrace.__dataclass_fields__)


def pairs(present: Array) -> NDArray[np.bool_]:
    """[N, N] bool, who was there together with whom else; of ``present`` [N] bool."""
    both: NDArray[np.bool_] = present[:, None] & present[None, :]
    np.fill_diagonal(both, False)
    return both


def trace_path(run: str | Path, step: int) -> Path:
    """Where the trace of an evaluation after ``step`` steps of training lies."""
    return Path(run) / FOLDER / f"step_{step:08d}.npz"


def list_traces(run: str | Path) -> dict[int, Path]:
    """The traces in the folder of a run (or in the folder that they lie in) by step, oldest
    first."""
    found = {}
    for folder in (Path(run), Path(run) / FOLDER):
        for path in folder.glob("step_*.npz"):
            number = re.fullmatch(r"step_(\d+)", path.stem)
            if number is not None:
                found[int(number[1])] = path
    return dict(sorted(found.items()))


def partners(weights: Array, most: int) -> list[list[int]]:
    """For each agent up to ``most`` others that it attends to, from the strongest on; of mean
    weights [N, N] with NaN where two never met."""
    ranked = np.argsort(-np.nan_to_num(weights, nan=-1.0), axis=-1, kind="stable")[:, :most]
    return [
        [int(other) for other in row if not np.isnan(weights[agent, other])]
        for agent, row in enumerate(ranked)
    ]


def _content(path: str | Path) -> dict[str, Array]:
    """All arrays of an .npz file."""
    with open(path, "rb") as file:
        if file.read(2) != b"PK":
            raise ValueError(f"{path} is no attention trace (no .npz file).")
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise ValueError(
            f"{path} is not a whole attention trace ({error}); it was cut off while it was "
            "copied, or changed: copy it again, or choose another step's."
        ) from error


def _plain(name: str, value: Array) -> Any:
    """A field as the dataclass has it."""
    if name in ("names", "landmark_names"):
        return tuple(str(one) for one in value)
    if value.dtype.kind == "U":
        return None if str(value) == _NO_ARRAY and name != "about" else str(value)
    return value if value.ndim else value.item()


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
