"""Kills a run at random moments, again and again: it has to end as one that nobody disturbed.

    OMP_NUM_THREADS=1 python benchmarks/soak.py [--kills 300] [--seed 0] [--algorithm maac|iac]
        [--folder FOLDER] [--json FILE]

A tiny team trains in a process, with a checkpoint after every third item. After a random amount of
processor time (while it starts, resumes, plays, learns or saves) the process gets SIGKILL, SIGTERM,
or SIGTERM twice, and another one goes on with `resume="auto"`. At the end the last checkpoints of
this run and of an undisturbed one must agree in every byte of weights and optimisers and in their
counters, buffers and random numbers; so must progress.json, its table, the transcripts, and what
TensorBoard reads, but for speeds. Reward and evaluation draw from Python's global generator, which
a checkpoint holds, too.

Prints a summary; ends with an error at the first difference.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marlogue import IACConfig, IACTrainer, MAACConfig, MAACTrainer, tiny_model
from marlogue.algorithms.checkpoints import CheckpointStore
from marlogue.envs import coordination_v0

WORDS = (*coordination_v0.VOCABULARY, "[Agent", "0]", "1]", "[Joint", "Action]", "action]")
ITEMS = 30  # of a run
LONGEST = 1.3  # seconds of processor time after which a process is killed at the latest
RESUMABLE = 75
PRELOADED = ["pytest", "marlogue.algorithms", "benchmarks.soak"]


@dataclass
class Summary:
    """What a soak did.

    Attributes:
        runs: trainings that were killed until they were done.
        kills: processes that a signal was sent to.
        exits: how the processes ended, by exit code.
        lost: runs that began anew, since they were killed before the first checkpoint.
        seconds: processor time of the processes.
    """

    runs: int = 0
    kills: int = 0
    exits: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    seconds: float = 0.0


class DifferenceError(AssertionError):
    """A run that was killed did not end as the undisturbed one."""


def noisy(*completions: Any, batch_items: Any) -> list[float]:
    """The task's reward, and noise of Python's global generator."""
    return [
        reward + random.random() / 10
        for reward in coordination_v0.reward(*completions, batch_items=batch_items)
    ]


def build(algorithm: str, seed: int, logdir: Path) -> MAACTrainer | IACTrainer:
    """The trainer of a run, which goes on where it was."""
    settings = {
        "num_turns": 2,
        "max_new_tokens": 2,
        "rollout_buffer_size": 6,
        "train_batch_size": 2,
        "max_steps": ITEMS,
        "shuffle": True,
        "agent_learning_rate": 1e-2,
        "eval_interval": 7,
        "eval_num_samples": 2,
        "logging_steps": 5,
        "save_steps": 3,
        "save_best": True,
        "resume": "auto",
        "seed": seed,
        "verbose": False,
    }
    models = [
        tiny_model(WORDS, seed=3 * seed + k, n_embd=16, n_layer=1, n_positions=64) for k in range(3)
    ]
    task = {"num_turns": 2, "reward_func": noisy, "early_termination_threshold": 0.55}
    parts = {
        "agents": [model for model, _ in models[:2]],
        "tokenizer": models[0][1],
        "env": coordination_v0.parallel_env(**task),
        "eval_env": coordination_v0.parallel_env(**task),
        "logdir": logdir,
    }
    if algorithm == "maac":
        return MAACTrainer(args=MAACConfig(**settings), critic_model=models[2][0], **parts)
    return IACTrainer(args=IACConfig(**settings, use_separate_critic=False), **parts)


def train(algorithm: str, seed: int, logdir: Path, said: Path) -> None:
    """What a process does; what it says goes to a file."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    torch.set_num_threads(1)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what a user's code may use
    torch.manual_seed(seed)
    build(algorithm, seed, logdir).train()


def soak(
    algorithm: str, kills: int, seed: int, folder: Path, tell: Callable[[str], object] = print
) -> Summary:
    """Kill runs until there were so many kills.

    Raises:
        DifferenceError: when a run does not end as the undisturbed one, or a process in a way that
            it should not.
    """
    summary, draws = Summary(), random.Random(seed)
    while summary.kills < kills:
        place = folder / f"run_{summary.runs}"
        place.mkdir(parents=True)
        arguments = (algorithm, seed + summary.runs)
        process = start(train, *arguments, place / "undisturbed", place / "said")
        _wait(process, float("inf"), summary)
        _expect(process, (0,), place)
        while True:
            process = start(train, *arguments, place / "killed", place / "said")
            disturbed = summary.kills < kills
            _wait(process, draws.uniform(0, LONGEST) if disturbed else float("inf"), summary)
            if not process.is_alive():
                _expect(process, (0,), place)
                break
            summary.kills += 1
            how = draws.choice([[signal.SIGKILL], [signal.SIGTERM], [signal.SIGTERM] * 2])
            for number in how:
                os.kill(process.pid or 0, number)
            process.join()
            summary.exits[process.exitcode or 0] += 1
            # Before it listens to signals, SIGTERM ends it, too; and it may just have ended.
            _expect(process, (-how[0], RESUMABLE, 0), place)
            process.close()
        different = differences(place / "undisturbed", place / "killed")
        if different:
            raise DifferenceError(f"{place}: {', '.join(different)}")
        summary.lost += len(list((place / "killed").glob("superseded_*")))
        summary.runs += 1
        tell(f"{algorithm}: {summary.kills} kills, {summary.runs} runs ended as undisturbed")
    return summary


def differences(one: Path, other: Path) -> list[str]:
    """What two runs differ in that should be the same."""
    ends = [CheckpointStore(run / "checkpoints", None).newest() for run in (one, other)]
    if None in ends or len({end.name for end in ends if end}) != 1:
        return [f"the last checkpoints ({ends})"]
    contents = [_content(end) for end in ends if end]
    found = [
        name
        for name in sorted({*contents[0], *contents[1]})
        if contents[0].get(name) != contents[1].get(name)
    ]
    if _rows(one) != _rows(other):
        found.append("progress.json")
    if (one / "transcripts.jsonl").read_bytes() != (other / "transcripts.jsonl").read_bytes():
        found.append("transcripts.jsonl")
    if _curves(one) != _curves(other):
        found.append("TensorBoard")
    if _table(other) != _rows(other):
        found.append("progress.csv")
    if _content(one / "best") != _content(other / "best"):
        found.append("the best models")
    found += [f"{path} was left over" for path in (other / "checkpoints").glob(".*")]
    return found


def _content(folder: Path) -> dict[str, Any]:
    """Files of tensors as bytes, and the state but for what a clock has measured."""
    tensors = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")
    }
    if not (folder / "state.json").exists():
        return tensors
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return {**tensors, **state, "reporter": state["reporter"]["env_step"]}


def _rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "progress.json").read_text(encoding="utf-8").splitlines()
    return [_timeless(json.loads(line)) for line in lines]


def _table(folder: Path) -> list[dict[str, Any]]:
    with open(folder / "progress.csv", newline="", encoding="utf-8") as file:
        read = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    return [_timeless(row) for row in read]


def _curves(folder: Path) -> dict[str, Any]:
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return _timeless(
        {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    )


def _timeless(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if "per_second" not in name}


def start(target: Callable[..., None], *arguments: Any) -> Any:
    """A process that has imported already what takes seconds; a `multiprocessing.Process`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def _wait(process: Any, seconds: float, summary: Summary) -> None:
    """Until it has ended, or has had so many seconds of the processor: then a machine that is busy
    does not change where it is killed."""
    used = 0.0
    while process.is_alive():
        used = _processor_time(process.pid, used)
        if used >= seconds:
            break
        time.sleep(0.002)
    summary.seconds += used


def _processor_time(pid: int, before: float) -> float:
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:  # it has just ended
        return before
    user, system = told.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _expect(process: Any, codes: tuple[int, ...], place: Path) -> None:
    if process.exitcode not in codes:
        said = (place / "said").read_text(encoding="utf-8")
        raise DifferenceError(f"{place}: a process ended with {process.exitcode}:\n{said[-4000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", choices=("maac", "iac"), default="maac")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak_"))
    tell = partial(print, flush=True)
    summary = soak(options.algorithm, options.kills, options.seed, folder, tell)
    print(
        f"{summary.kills} kills in {summary.runs} runs: each ended as the undisturbed one.\n"
        f"exit codes: {dict(summary.exits)} (-9 SIGKILL, 75 resumable, -15 a second SIGTERM or one "
        f"while starting)\nbegun anew before the first checkpoint: {summary.lost}\n"
        f"processor time: {summary.seconds:.0f} s\nin {folder}"
    )
    if options.json is not None:
        options.json.write_text(json.dumps(vars(summary), indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
