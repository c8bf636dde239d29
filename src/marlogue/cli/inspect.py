"""``marlogue inspect``: a batch whose step was skipped, computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marlogue.algorithms.aac_bad_batches import BadReplay
from marlogue.algorithms.bad_batches import BadBatch
from marlogue.algorithms.replayed_batch import Replayed, replay, stored
from marlogue.cli.errors import WordParser, as_usage_errors

_SHOWN = 200  # characters of a prompt or completion
_EPISODES = 3  # samples that are shown as text
_HEAD = (
    *("agent", "turn", "item", "gen", "tokens", "log_prob", "value", "target", "advantage"),
    *("loss", "gradient", "first that is not finite"),
)


def inspect(words: Sequence[str]) -> None:
    """Print the numbers of each sample of a batch, and what is not finite.

    Raises:
        UsageError: when there is no such batch, or the team does not fit.
    """
    given = _parser().parse_args(words)
    path = Path(given.batch)
    with as_usage_errors():
        replayed = BadReplay.load(path)
        if replayed is not None:
            print("\n".join([*_headline(path, replayed.about), "", *replayed.report()]))
            return
        batch = BadBatch.load(path)
        team = batch.team if given.team is None else Path(given.team)
        if team is None:
            rows, weights = stored(batch), None
        else:
            rows, weights = replay(batch, team, given.device)
    print("\n".join(report(path, batch, rows, weights)))


def report(
    path: Path, batch: BadBatch, rows: Sequence[Replayed], weights: Sequence[str] | None
) -> list[str]:
    """The lines that are printed.

    Args:
        path: of the batch.
        batch: what was saved.
        rows: its samples' numbers.
        weights: lines about weights that are not finite; None where no team was loaded.
    """
    unknown = {"log_prob", "advantage"} if batch.histories is not None else set()
    if weights is None:
        unknown |= {"log_prob", "loss", "gradient"}
    lines = [
        *_headline(path, vars(batch)),
        f"{len(rows)} samples, computed in {batch.dtype}, temperature {batch.temperature:g}",
        "",
        *_table([_HEAD, *(_cells(row, unknown) for row in rows)]),
        "",
    ]
    if weights is None:
        lines.append(
            "nothing was computed again: this batch holds no team, since it did not stop its run; "
            "name a saved one with --team"
        )
    else:
        lines += weights or ["all weights of the team are finite"]
    bad = [row for row in rows if row.first is not None]
    if not bad and weights is not None:
        lines.append(
            "each sample's numbers are finite by themselves; their sum was not, or the batch was "
            "computed otherwise (device, dtype)"
        )
    for row in bad[:_EPISODES]:
        lines += ["", f"{row.sample.agent}, item {row.sample.item_idx}: {row.first}"]
        lines += [f"  is asked: {_short(row.sample.prompt)}"]
        lines += [f"  answers:  {_short(row.sample.completion)}"]
    return lines


def _headline(path: Path, about: Mapping[str, Any]) -> list[str]:
    return [
        f"{path}: a step of {about['model']} was skipped ({about['in_a_row']} in a row): the "
        f"{about['number']} was {about['value']}",
        f"after update {about['updates']} and {about['env_step']} joint actions",
    ]


def _cells(row: Replayed, unknown: set[str]) -> tuple[str, ...]:
    """A line of the table; numbers that the step does not have are left out."""
    sample = row.sample
    numbers = {
        "log_prob": row.log_prob,
        "value": row.value,
        "target": sample.target,
        "advantage": sample.advantage,
        "loss": row.loss,
        "gradient": row.gradient_norm,
    }
    return (
        sample.agent,
        str(sample.turn_idx + 1),
        str(sample.item_idx),
        str(sample.generation_idx),
        str(len(sample.completion_ids)),
        *("-" if name in unknown else f"{number:.4g}" for name, number in numbers.items()),
        row.first or "",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."


def _parser() -> WordParser:
    parser = WordParser(
        prog="marlogue inspect",
        description="A batch whose step was skipped since a number was not finite, computed again "
        "with the team as it was.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "batch", metavar="FOLDER", help="of the batch, in bad_batches of a run's folder"
    )
    parser.add_argument("--team", metavar="FOLDER", help="the team to compute with")
    parser.add_argument("--device", default="cpu", help="where it is computed")
    return parser
