"""Marlogue side by side with comlrl 1.4.3 on the same work; see README.md beside this file.

Both train in turns (A B A B), each run in a process of its own. Nothing of the peer is changed: it
is given the same weights, rows, reward and forced completion lengths through its public arguments.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cases import LEARNERS, MODELS, Case, ChildError, Variant, run_child, train_job
from report import Comparison, comparison_table, curve_table, machine_lines, target_lines

PEER_VERSION = "1.4.3"
MEANT_FOR = "16 prompts of 60 tokens, 64 new tokens, 1 thread, a quiet machine"
_GRADIENTS_AGREE = 1e-5


def main() -> None:
    options = parse()
    require_peer()
    say(f"load average {os.getloadavg()[0]:.1f}; the figures are best on a quiet machine")
    machine = run_child({"kind": "machine"}, options.threads)
    print(machine_lines(machine), flush=True)
    result: dict[str, Any] = {
        "machine": machine,
        "peer": peer_version(),
        "options": vars(options),
        "cases": [],
        "failed": {},
    }
    if options.check:
        result["check"] = check(options)
    comparisons = []
    for case in cases(options):
        try:
            comparison = compare(case, variants(options, machine, case), options)
        except ChildError as error:  # the other cases are hours of work
            result["failed"][case.name] = str(error)
            print(f"\n{case.name}: not measured\n{error}", flush=True)
            continue
        comparisons.append(comparison)
        result["cases"].append(as_json(comparison))
        save(options, result)
        print("\n" + comparison_table(comparison), flush=True)
    if options.curve:
        result["curve"] = {
            model: curve(model, options, machine, comparisons) for model in options.models
        }
    lines = [line for comparison in comparisons for line in target_lines(comparison)]
    lines += [f"{name}: not measured" for name in result["failed"]]
    print(f"\nTargets (they are meant for {MEANT_FOR})")
    print("\n".join(f"  {line}" for line in lines or ["none of the chosen cases has one"]))
    result["targets"] = lines
    save(options, result)
    if result["failed"]:
        sys.exit(1)


def save(options: argparse.Namespace, result: dict[str, Any]) -> None:
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)

    def names(known: tuple[str, ...]) -> Any:
        def split(text: str) -> list[str]:
            chosen = text.split(",")
            if wrong := [name for name in chosen if name not in known]:
                raise argparse.ArgumentTypeError(f"{wrong} must be among {', '.join(known)}")
            return chosen

        return split

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    add = parser.add_argument
    add("--models", type=names(MODELS), default=list(MODELS))
    add("--learners", type=names(LEARNERS), default=["maac", "iac"])
    add("--turns", type=numbers, default=[1, 2], help="1,2 by default")
    add("--generations", type=numbers, default=[1, 4], help="G; above 1 with one turn only")
    add(
        "--dtypes",
        type=names(("float32", "bfloat16")),
        default=None,
        help="of our side; bfloat16 is left out unless asked for where it is slower than float32",
    )
    add("--repeats", type=int, default=2)
    add("--prompts", type=int, default=16, help="joint samples per epoch and turn: G a prompt")
    add("--prompt-tokens", type=int, default=60)
    add("--ragged", action="store_true", help="prompts of 0.5 to 1.5 times that length")
    add("--new-tokens", type=int, default=64)
    add("--buffer", type=int, default=None, help="default: all of an epoch, 16 a turn at most")
    add("--epochs", type=int, default=None, help="default 1 for smollm2, else 2")
    add("--threads", type=int, default=1)
    add("--joint", action=argparse.BooleanOptionalAction, default=True)
    add("--curve", action=argparse.BooleanOptionalAction, default=True)
    add("--batches", type=numbers, default=[2, 4, 8, 16, 32, 64], help="of the curve")
    add("--check", action="store_true", help="also compare the gradients of one update")
    add("--json", default=None, help="write every figure to this file")
    add("--quick", action="store_true", help="one turn, G=1, one repeat, little of smollm2")
    options = parser.parse_args()
    if options.quick:
        options.turns, options.generations, options.repeats = [1], [1], 1
        options.batches = [batch for batch in options.batches if batch <= 16]
    return options


def require_peer() -> None:
    if importlib.util.find_spec("comlrl") is None:
        sys.exit('comlrl must be installed; run: pip install "marlogue[benchmark]"')
    if peer_version() != PEER_VERSION:
        say(f"comlrl is {peer_version()}; the targets were set against {PEER_VERSION}")


def peer_version() -> str:
    return importlib.metadata.version("comlrl")


def cases(options: argparse.Namespace) -> list[Case]:
    """Every combination that both libraries allow."""
    return [
        Case(
            model=model,
            learner=learner,
            turns=turns,
            generations=generations,
            prompts=max(1, samples // generations),
            prompt_tokens=options.prompt_tokens,
            ragged=options.ragged,
            new_tokens=new_tokens,
            buffer=options.buffer or min(samples, 16) * turns,
            epochs=options.epochs or (1 if model == "smollm2" else 2),
        )
        for model in options.models
        for samples, new_tokens in [amount(options, model)]
        for learner in options.learners
        for turns in options.turns
        for generations in options.generations
        if turns == 1 or generations == 1
    ]


def amount(options: argparse.Namespace, model: str) -> tuple[int, int]:
    """Joint samples per epoch and turn, and tokens of a completion."""
    if options.quick and model == "smollm2":
        return min(options.prompts, 4), min(options.new_tokens, 16)
    return options.prompts, options.new_tokens


def variants(options: argparse.Namespace, machine: dict[str, Any], case: Case) -> list[Variant]:
    """How our side does a case: in each dtype, and once with joint critic updates."""
    fast = machine["gflops_bfloat16"] > machine["gflops_float32"]
    dtypes = options.dtypes or ["float32", *(["bfloat16"] if fast else [])]
    chosen = [Variant(dtype) for dtype in dtypes]
    if options.joint and case.learner == "maac":
        chosen.append(Variant(dtypes[0], critic_update="joint"))
    return chosen


def compare(case: Case, ours: list[Variant], options: argparse.Namespace) -> Comparison:
    """Run both sides in turns.

    Raises:
        ChildError: when a run fails, or the two did different work.
    """
    comparison = Comparison(case, [], {variant: [] for variant in ours})
    for repeat in range(options.repeats):
        comparison.peer.append(run_child(train_job("peer", case), options.threads))
        progress(case, "comlrl", comparison.peer[-1], repeat)
        for variant in ours:
            run = run_child(train_job("ours", case, variant), options.threads)
            comparison.ours[variant].append(run)
            progress(case, variant.name, run, repeat)
            must_agree = ["new_tokens", "prompt_tokens"]
            if variant.critic_update == "per_agent":
                must_agree.append("optimizer_steps")
            for figure in must_agree:
                if run[figure] != comparison.peer[-1][figure]:
                    raise ChildError(
                        f"{case.name}: {figure} is {run[figure]} here and "
                        f"{comparison.peer[-1][figure]} with the peer: not the same work"
                    )
    return comparison


def check(options: argparse.Namespace) -> dict[str, Any]:
    """One update on the same tokens with both, for every learner."""
    print("\nOne update on the same tokens: largest difference between the two")
    chosen = [
        Case(
            model=model,
            learner=learner,
            turns=turns,
            generations=generations,
            prompts=2 if model == "smollm2" else 4,
            prompt_tokens=12,
            ragged=True,
            new_tokens=8,
            buffer=64,
            epochs=1,
        )
        for model in options.models
        for learner in LEARNERS
        for turns, generations in ((1, 1), (1, 4), (2, 1))
        if model != "smollm2" or (turns, generations) == (1, 1)
    ]
    job = {"kind": "check", "cases": [asdict(case) for case in chosen]}
    found = {}
    for case, seen in zip(chosen, run_child(job, options.threads), strict=True):
        verdict = "agree" if seen["gradient"] <= _GRADIENTS_AGREE else "DIFFER"
        print(
            f"  {case.name}: {seen['gradients']} gradients {verdict}: "
            f"{seen['gradient']:.1e} of the largest entry; weights "
            f"{seen['weight_in_learning_rates']:.2f} learning rates apart",
            flush=True,
        )
        found[case.name] = seen
    return found


def curve(
    model: str,
    options: argparse.Namespace,
    machine: dict[str, Any],
    comparisons: list[Comparison],
) -> dict[str, Any]:
    """Print generation speed against the number of prompts, and return it."""
    job: dict[str, Any] = {
        "kind": "generate",
        "model": model,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": amount(options, model)[1],
        "batches": options.batches,
    }
    measured: dict[str, Any] = run_child(job, options.threads)
    # The peer answers one prompt at a time, however many there are.
    peer = [
        run["new_tokens"] / run["cpu"]["generation"]
        for comparison in comparisons
        if comparison.case.model == model and comparison.case.generations == 1
        for run in comparison.peer
    ]
    print(
        f"\n{model}: generation, {options.prompt_tokens} prompt and {job['new_tokens']} new "
        f"tokens, float32; {measured['flops'] / 1e6:.1f} MFLOP per token"
    )
    print(curve_table(measured, machine, sum(peer) / len(peer) if peer else None), flush=True)
    return measured


def as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "case": asdict(comparison.case),
        "peer": comparison.peer,
        "ours": [{**asdict(variant), "runs": runs} for variant, runs in comparison.ours.items()],
    }


def progress(case: Case, who: str, run: dict[str, Any], repeat: int) -> None:
    say(f"{case.name}, repeat {repeat + 1}, {who}: {run['cpu']['total']:.2f} CPU s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except ChildError as error:
        sys.exit(str(error))
