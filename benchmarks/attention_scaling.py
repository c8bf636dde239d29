"""CPU time and memory of learning against the number of agents, BenchMARL's MASAC beside it.

    python benchmarks/attention_scaling.py [--rounds 3] [--quick]

An update is the critic's step, the actors' step and that of the target networks, with batches of
256, hidden layers of 128 units, discrete actions and the expected actor gradient. Every cell is
measured in a process of its own with one thread, in turns over the rounds; CPU milliseconds are the
median, memory is by how much the process grew. Without BenchMARL its rows are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from cases import run_child
from report import table
from scaling_cells import Cell


class Row(NamedTuple):
    """A row of the table: what it is called, the work, and the most that it may take."""

    name: str
    cell: Cell
    most_ms: float | None = None
    most_gb: float | None = None


ROWS = [
    Row("AAC, full attention", Cell(work="update", num_agents=3), 15),
    Row("BenchMARL MASAC", Cell(work="peer", num_agents=3)),
    Row("AAC, concat critic", Cell(work="update", num_agents=3, critic="concat")),
    Row("AAC, full attention", Cell(work="update", num_agents=10)),
    Row("BenchMARL MASAC", Cell(work="peer", num_agents=10)),
    Row("AAC, concat critic", Cell(work="update", num_agents=10, critic="concat")),
    Row("AAC, full attention", Cell(work="update", num_agents=30)),
    Row("BenchMARL MASAC", Cell(work="peer", num_agents=30)),
    Row("AAC, concat critic", Cell(work="update", num_agents=30, critic="concat")),
    Row("AAC, full attention", Cell(work="update", num_agents=100), 1000, 0.7),
    Row("AAC, M = 32", Cell(work="update", num_agents=100, num_queries=32)),
    Row("AAC, M = 16", Cell(work="update", num_agents=100, num_queries=16), 350),
    Row("BenchMARL MASAC", Cell(work="peer", num_agents=100)),
    Row("AAC, concat critic", Cell(work="update", num_agents=100, critic="concat")),
    Row(
        "critic's step, linear",
        Cell(work="critic", num_agents=1000, batch_size=32, attention="linear"),
        450,
        0.7,
    ),
    Row(
        "critic's step, M = 16",
        Cell(work="critic", num_agents=1000, batch_size=32, num_queries=16),
        250,
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each cell")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds of each")
    parser.add_argument("--quick", action="store_true", help="one short round up to 10 agents")
    parser.add_argument("--json", type=Path, help="every measurement goes there")
    args = parser.parse_args()
    rows = list(ROWS)
    if args.quick:
        rows = [row for row in rows if row.cell.num_agents <= 10]
        args.rounds, args.seconds = 1, 1.0
    if importlib.util.find_spec("benchmarl") is None:
        print("BenchMARL is not installed here: its rows are left out (pip install benchmarl).")
        rows = [row for row in rows if row.cell.work != "peer"]
    machine = run_child({"kind": "machine"}, threads=1)
    found: list[list[dict[str, float]]] = [[] for _ in rows]
    for _ in range(args.rounds):
        for row, runs in zip(rows, found, strict=True):
            job = {"kind": "cell", "cell": asdict(row.cell), "seconds": args.seconds}
            runs.append(run_child(job, threads=1))
            print("  ".join(_line(row, runs[-1:])).rstrip(), file=sys.stderr, flush=True)
    if args.json:
        names = [{"name": row.name, **asdict(row.cell)} for row in rows]
        measured = [{**n, "runs": runs} for n, runs in zip(names, found, strict=True)]
        args.json.write_text(json.dumps({"machine": machine, "cells": measured}, indent=1))
    print(
        f"{machine['cpu']}, torch {machine['torch']}, one thread, "
        f"{machine['gflops_float32']:.0f} GFLOPS (float32)"
    )
    print(table([HEAD, *(_line(row, runs) for row, runs in zip(rows, found, strict=True))]))


HEAD = ["", "N", "B", "CPU ms", "lowest", "GB", "target"]


def _line(row: Row, runs: list[dict[str, Any]]) -> list[str]:
    ms = median(run["ms"] for run in runs)
    gb = median(run["gb"] for run in runs)
    sizes = [str(row.cell.num_agents), str(row.cell.batch_size)]
    lowest = min(run["ms"] for run in runs)
    return [row.name, *sizes, f"{ms:.1f}", f"{lowest:.1f}", f"{gb:.2f}", _verdict(row, ms, gb)]


def _verdict(row: Row, ms: float, gb: float) -> str:
    if row.most_ms is None:
        return ""
    met = ms <= row.most_ms and (row.most_gb is None or gb <= row.most_gb)
    memory = "" if row.most_gb is None else f", {row.most_gb} GB"
    return f"{row.most_ms:.0f} ms{memory}: {'met' if met else 'MISSED'}"


if __name__ == "__main__":
    main()
