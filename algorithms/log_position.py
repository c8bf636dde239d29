"""Going back to where a run's log was: what was written after that has no part in it any more."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from marlogue.algorithms.attention_trace import FOLDER as TRACES
from marlogue.algorithms.attention_trace import list_traces
from marlogue.algorithms.checkpoints import CheckpointStore, step_of
from marlogue.algorithms.log_files import EVENTS, ROWS, TABLE

TRANSCRIPTS = "transcripts.jsonl"


def log_files(folder: Path) -> list[Path]:
    """The files in a run's folder that grow while it runs."""
    named = [folder / ROWS, folder / TRANSCRIPTS]
    return [path for path in named if path.exists()] + sorted(folder.glob(f"{EVENTS}*"))


def go_back(folder: Path, sizes: Mapping[str, int], step: int) -> None:
    """Cut a log's files back to what they were at a checkpoint.

    When a run goes on from its latest checkpoint, what it had written after that is made again, and
    is cut off. When it goes on from an earlier one, or begins anew, it may become another run: then
    what is cut off is kept in ``superseded_1`` (or the next number that is free), with the later
    checkpoints and attention traces.

    Args:
        folder: of the run.
        sizes: of the log's files by name, in bytes; those that are not named are removed.
        step: the checkpoint's, on the x-axis of the log; -1 for the beginning.

    Raises:
        OSError: when a file can be neither read nor cut.
    """
    store = CheckpointStore(folder / "checkpoints", None)
    later = [place for place in store.places() if step_of(place) > step]
    longer = {file: sizes.get(file.name, 0) for file in log_files(folder)}
    longer = {file: size for file, size in longer.items() if file.stat().st_size > size}
    if later or (longer and not sizes):
        _keep(folder, longer, later, step)
    for file, size in longer.items():
        if size:
            os.truncate(file, size)
        else:
            file.unlink()
    (folder / TABLE).unlink(missing_ok=True)  # made anew, out of the rows
    _say_what_is_missing(folder, sizes)


def _keep(folder: Path, longer: Mapping[Path, int], later: list[Path], step: int) -> None:
    """Ends of files first, then the checkpoints from the latest on: whoever is killed on the way
    leaves a latest checkpoint with the log that it knows."""
    kept = next(p for n in count(1) if not (p := folder / f"superseded_{n}").exists())
    kept.mkdir()
    for file, size in longer.items():
        with open(file, "rb") as whole, open(kept / file.name, "wb") as end:
            whole.seek(size)
            shutil.copyfileobj(whole, end)
    traces = [path for number, path in list_traces(folder).items() if number > step]
    for source, target in ((later, "checkpoints"), (traces, TRACES)):
        for place in source:
            (kept / target).mkdir(exist_ok=True)
            os.rename(place, kept / target / place.name)
    warnings.warn(
        f"what {folder} held from after step {max(step, 0)} (log, checkpoints) is now in {kept}.",
        stacklevel=4,
    )


def _say_what_is_missing(folder: Path, sizes: Mapping[str, int]) -> None:
    """A checkpoint may come from another folder, whose log is not ours; then nothing is said."""
    if not any((folder / name).exists() for name in sizes):
        return
    for name, size in sizes.items():
        there = (folder / name).stat().st_size if (folder / name).exists() else 0
        if there < size:
            warnings.warn(
                f"{folder / name} was longer at the checkpoint ({size} bytes, now {there}): what "
                "is missing is not made again. The training is not affected.",
                stacklevel=4,
            )
