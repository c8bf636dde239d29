"""Tables, and what became of the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cases import Case, Variant

#: Wall time above CPU time by this factor (one thread) means that others used the processor.
_BUSY = 1.15

Runs = list[dict[str, Any]]


@dataclass
class Comparison:
    """All runs of one case: the peer's, and ours by variant."""

    case: Case
    peer: Runs
    ours: dict[Variant, Runs]

    @property
    def busy(self) -> bool:
        """Whether wall times are to be mistrusted."""
        runs = self.peer + [run for runs in self.ours.values() for run in runs]
        return any(r["wall"]["total"] > _BUSY * r["cpu"]["total"] for r in runs)

    def ratio(self, variant: Variant, clock: str, phase: str) -> float:
        """Peer / ours, of the medians."""
        return _seconds(self.peer, clock, phase) / _seconds(self.ours[variant], clock, phase)

    def memory_ratio(self, variant: Variant) -> float:
        """Peer / ours, of the medians."""
        return _peak(self.peer) / _peak(self.ours[variant])


def _seconds(runs: Runs, clock: str, phase: str) -> float:
    return float(median(run[clock][phase] for run in runs))


def _peak(runs: Runs) -> float:
    return float(median(run["peak_gb"] for run in runs))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def comparison_table(comparison: Comparison) -> str:
    """CPU seconds by phase, wall seconds, generation speed and peak memory, with the ratios."""
    header = ["total", "wall", "generation", "rollout", "update", "tokens/s", "peak GB", "steps"]
    rows = [[comparison.case.name + " (CPU s)", *header]]
    rows.append(["  comlrl, float32", *_figures(comparison.peer)])
    for variant, runs in comparison.ours.items():
        rows.append([f"  marlogue, {variant.name}", *_figures(runs)])
    for variant in comparison.ours:
        ratios = [
            comparison.ratio(variant, clock, phase)
            for clock, phase in (
                ("cpu", "total"),
                ("wall", "total"),
                ("cpu", "generation"),
                ("cpu", "rollout"),
                ("cpu", "update"),
                ("cpu", "generation"),
            )
        ]
        cells = [f"{ratio:.2f}x" for ratio in [*ratios, comparison.memory_ratio(variant)]]
        rows.append([f"  ratio, {variant.name}", *cells, ""])
    return table(rows)


def _figures(runs: Runs) -> list[str]:
    tokens = runs[0]["new_tokens"] / _seconds(runs, "cpu", "generation")
    return [
        f"{_seconds(runs, 'cpu', 'total'):.2f}",
        f"{_seconds(runs, 'wall', 'total'):.2f}",
        *(f"{_seconds(runs, 'cpu', phase):.2f}" for phase in ("generation", "rollout", "update")),
        f"{tokens:.0f}",
        f"{_peak(runs):.2f}",
        str(runs[0]["optimizer_steps"]),
    ]


def target_lines(comparison: Comparison) -> list[str]:
    """One line per target that this case is there to show."""
    lines = []
    for variant in comparison.ours:
        for what, least, aim in _targets(comparison.case, variant):
            if what == "peak memory":
                ratios = {"": comparison.memory_ratio(variant)}
            else:
                phase = "generation" if what == "generation" else "total"
                ratios = {
                    " CPU": comparison.ratio(variant, "cpu", phase),
                    " wall": comparison.ratio(variant, "wall", phase),
                }
            name = f"{comparison.case.name}, {variant.name}: {what}"
            lines.append(f"{name} {_verdict(ratios, least, aim, comparison.busy)}")
    return lines


def _targets(case: Case, variant: Variant) -> list[tuple[str, float, float]]:
    """(what, least ratio, ratio aimed at) of a case."""
    if variant.critic_update != "per_agent" or case.learner == "iac-shared":
        return []
    if case.model != "smollm2":
        alone = case.generations == 1 and variant.dtype == "float32"
        return [("overall", 8.0, 8.0)] if alone else []
    if variant.dtype == "bfloat16":
        return [("overall", 4.0, 5.0)] if case.generations == 1 else []
    if case.generations > 1:
        return [("overall", 3.5, 3.5)]
    return [("overall", 2.7, 3.0), ("generation", 6.0, 6.0), ("peak memory", 2.0, 2.0)]


def _verdict(ratios: dict[str, float], least: float, aim: float, busy: bool) -> str:
    judged = ratios.get(" CPU", ratios.get("", 0.0))
    if " wall" in ratios and not busy:
        judged = min(ratios.values())
    asked = f"at least {least:g}x" + (f" (aim {aim:g}x)" if aim > least else "")
    got = ", ".join(f"{ratio:.2f}x{clock}" for clock, ratio in ratios.items())
    if judged >= least:
        result = "MET" + (", aim met" if judged >= aim > least else "")
    else:
        result = f"MISSED by {100 * (1 - judged / least):.0f}%"
    note = " (judged by CPU time: the machine was busy)" if busy and " wall" in ratios else ""
    return f"{asked}: {result}: {got}{note}"


def machine_lines(machine: dict[str, Any]) -> str:
    """The machine in three lines."""
    features = " ".join(machine["features"]) or "none of those looked for"
    slow = machine["gflops_bfloat16"] < machine["gflops_float32"]
    return (
        f"CPU {machine['cpu']}, torch {machine['torch']}, {machine['threads']} thread(s); "
        f"features: {features}\n"
        f"best matrix product: {machine['gflops_float32']:.0f} GFLOPS float32, "
        f"{machine['gflops_bfloat16']:.1f} bfloat16"
        f"{' (slower: this CPU has no bfloat16 of its own)' if slow else ''}; "
        f"memory is read at {machine['read_gb_per_s']:.1f} GB/s (all per CPU second)"
    )


def roofline(machine: dict[str, Any], flops: float, weight_bytes: float, batch: int) -> float:
    """Most tokens per CPU second that the machine can generate in a batch: it must multiply, and
    read the weights once per step for the whole batch."""
    multiply = float(machine["gflops_float32"]) * 1e9 / flops
    read = batch * float(machine["read_gb_per_s"]) * 1e9 / weight_bytes
    return min(multiply, read)


def curve_table(curve: dict[str, Any], machine: dict[str, Any], peer: float | None) -> str:
    """Tokens per CPU second against the number of prompts, beside the roofline."""
    header = ["prompts", "tokens/CPU s", "tokens/s wall", "roofline", "of roofline"]
    if peer is not None:
        header.append(f"of comlrl's {peer:.0f}")
    rows = [header]
    for batch, speed in curve["speed"].items():
        limit = roofline(machine, curve["flops"], curve["weight_bytes"], int(batch))
        cells = [
            batch,
            f"{speed['cpu']:.0f}",
            f"{speed['wall']:.0f}",
            f"{limit:.0f}",
            f"{100 * speed['cpu'] / limit:.0f}%",
        ]
        if peer is not None:
            cells.append(f"{speed['cpu'] / peer:.1f}x")
        rows.append(cells)
    return table(rows)
