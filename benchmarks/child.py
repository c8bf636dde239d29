"""One measurement, in a process of its own: ``child.py JOB RESULT``.

JOB is JSON: ``kind`` ("machine", "train", "generate", "check" or "cell") and that kind's
arguments. What was measured is written to the file RESULT as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cases import Case, Variant


def do(job: dict[str, Any]) -> Any:
    kind = job["kind"]
    if kind == "machine":
        from machine import describe

        return describe()
    if kind == "cell":
        from scaling_cells import Cell, measure

        return measure(Cell(**job["cell"]), job["seconds"])
    if kind == "generate":
        from curve import measure

        return measure(job["model"], job["prompt_tokens"], job["new_tokens"], job["batches"])
    if kind == "check":
        from check import compare

        return [compare(Case(**case)) for case in job["cases"]]
    case = Case(**job["case"])
    from sides import train_ours, train_peer

    if job["side"] == "peer":
        return train_peer(case)
    return train_ours(case, Variant(**job.get("variant", {})))


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(do(json.loads(sys.argv[1]))))
