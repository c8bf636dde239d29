"""Peak memory of training against the size of the rollout buffer: it is not to grow.

Each size is one run in a process of its own, of two iterations: the second generates while the
optimisers' states are there.
"""

from __future__ import annotations

import argparse
import sys

from cases import LEARNERS, MODELS, Case, ChildError, Variant, run_child, train_job
from report import table

_TOLERANCE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", choices=MODELS, default="smollm2")
    add("--learner", choices=LEARNERS, default="maac")
    add("--buffers", default="16,64", help="sizes to compare: 16,64 by default")
    add("--prompt-tokens", type=int, default=60)
    add("--new-tokens", type=int, default=64)
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--peer", action="store_true", help="the peer too (its memory grows: mind yours)")
    add("--threads", type=int, default=1)
    options = parser.parse_args()
    sides = ["ours", "peer"] if options.peer else ["ours"]
    peaks: dict[str, list[float]] = {side: [] for side in sides}
    rows = [["buffer", *(f"{side}, peak GB" for side in sides)]]
    for buffer in (int(size) for size in options.buffers.split(",")):
        case = Case(
            model=options.model,
            learner=options.learner,
            turns=1,
            generations=1,
            prompts=buffer,
            prompt_tokens=options.prompt_tokens,
            ragged=False,
            new_tokens=options.new_tokens,
            buffer=buffer,
            epochs=2,
        )
        for side in sides:
            variant = Variant(options.dtype) if side == "ours" else None
            run = run_child(train_job(side, case, variant), options.threads)
            peaks[side].append(run["peak_gb"])
        rows.append([str(buffer), *(f"{peaks[side][-1]:.2f}" for side in sides)])
    print(table(rows))
    growth = peaks["ours"][-1] / peaks["ours"][0] - 1
    verdict = "MET" if growth <= _TOLERANCE else "MISSED"
    print(f"Peak memory does not grow with rollout_buffer_size: {verdict} ({growth:+.1%})")


if __name__ == "__main__":
    try:
        main()
    except ChildError as error:
        sys.exit(str(error))
