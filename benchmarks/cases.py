"""What is measured: cases, the variants of our side, and children that measure one of them.

Nothing heavy is imported here: the parent process stays small and idle while a child works.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MODELS = ("toy", "tiny", "smollm2")
LEARNERS = ("maac", "iac", "iac-shared")
NUM_AGENTS = 2

_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One piece of work, the same for both libraries.

    Attributes:
        model: "toy" (60 thousand weights), "tiny" (a million) or "smollm2" (135 million).
        learner: "maac", "iac" (separate critics) or "iac-shared" (value head on the actor).
        turns: turns of an episode.
        generations: joint answers per prompt.
        prompts: rows of the dataset.
        prompt_tokens: tokens of every prompt of every turn.
        ragged: prompts of half to one and a half times ``prompt_tokens`` instead.
        new_tokens: tokens of every completion (forced).
        buffer: rollout_buffer_size, samples per agent and update.
        epochs: passes over the rows.
    """

    model: str
    learner: str
    turns: int
    generations: int
    prompts: int
    prompt_tokens: int
    ragged: bool
    new_tokens: int
    buffer: int
    epochs: int

    @property
    def name(self) -> str:
        """For the tables."""
        turns = f"{self.turns} turn" + "s" * (self.turns > 1)
        return f"{self.model} {self.learner}, {turns}, G={self.generations}"

    @property
    def new_token_count(self) -> int:
        """Tokens that all agents generate in the whole run."""
        episodes = self.prompts * self.generations * self.epochs
        return episodes * self.turns * NUM_AGENTS * self.new_tokens


@dataclass(frozen=True)
class Variant:
    """How our side does it."""

    dtype: str = "float32"
    critic_update: str = "per_agent"

    @property
    def name(self) -> str:
        """For the tables."""
        return self.dtype + ("" if self.critic_update == "per_agent" else ", joint critic update")


class ChildError(RuntimeError):
    """A measurement ended with an error."""


def run_child(job: dict[str, Any], threads: int) -> Any:
    """Do a job (see ``child.py``) in a fresh process, so that its peak memory is its own.

    Args:
        job: ``kind`` and its arguments.
        threads: OMP_NUM_THREADS of the child.

    Raises:
        ChildError: with the end of what the child wrote.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        done = subprocess.run(
            [sys.executable, str(_CHILD), json.dumps(job), str(result)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not result.exists():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            how = f"exit status {done.returncode}"
            if done.returncode == -9:
                how = "killed, as a process is that needs more memory than there is"
            raise ChildError(f"{job['kind']} of {job.get('side', 'the machine')}: {how}\n{said}")
        return json.loads(result.read_text())


def train_job(side: str, case: Case, variant: Variant | None = None) -> dict[str, Any]:
    """The job of training once on a case."""
    job = {"kind": "train", "side": side, "case": asdict(case)}
    return job if variant is None else job | {"variant": asdict(variant)}
