"""What was said, as lines of JSON: in ``transcripts.jsonl``, and of what an error cut off."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marlogue.algorithms.sample import Sample

UNFINISHED = "unfinished.jsonl"


def transcript_line(sample: Sample) -> dict[str, Any]:
    """A sample as a line shows it. ``reward`` is None where there is none; where it was dropped,
    ``reward_error`` says why."""
    known = not sample.abstained and not math.isnan(sample.reward)
    line = {
        "item": sample.item_idx,
        "generation": sample.generation_idx,
        "turn": sample.turn_idx,
        "agent": sample.agent,
        "prompt": sample.prompt,
        "completion": sample.completion,
        "reward": sample.reward if known else None,
        "truncated": sample.action.truncated,
    }
    if sample.reward_error is not None:
        line["reward_error"] = sample.reward_error
    return line


def encoded_lines(samples: Iterable[Sample]) -> bytes:
    """The lines of samples."""
    lines = (json.dumps(transcript_line(s), ensure_ascii=False) + "\n" for s in samples)
    return "".join(lines).encode("utf-8", "surrogatepass")


def write_unfinished(
    logdir: Path | None, during: str, samples: Iterable[Sample], error: BaseException
) -> None:
    """Write what was said in a collection that an error ended, and say where it is.

    Its episodes are not over, and no sample of them is in ``transcripts.jsonl``; what the error was
    about is in the last turn of each, where ``reward`` is None.

    Args:
        logdir: the run's folder; None writes nothing.
        during: what was going on, "training" or "evaluation".
        samples: those of the episodes so far.
        error: gets a note.
    """
    said = encoded_lines(samples)
    if logdir is None or not said:
        return
    path = logdir / UNFINISHED
    try:
        logdir.mkdir(parents=True, exist_ok=True)
        path.write_bytes(said)
    except OSError as failed:
        error.add_note(f"what was said in this {during} could not be written ({failed})")
    else:
        error.add_note(f"what was said in this {during} is in {path}")
