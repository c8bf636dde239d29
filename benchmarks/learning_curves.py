"""Learning curves on one task, of our learner or of BenchMARL's, judged by the same episodes.

    python benchmarks/learning_curves.py --task spread --learner aac --seeds 3
    python benchmarks/learning_curves.py --task spread --learner masac --seeds 3
    python benchmarks/learning_curves.py --task spread_10 --learner aac
    python benchmarks/learning_curves.py --task spread --show

Curves are added to a file per task (``benchmarks/curves/TASK.json``), a learner and seed that is
there already is replaced. The peers need BenchMARL (``pip install benchmarl``); the tasks need mpe2
(spread, spread_continuous, tag) or pettingzoo[sisl] (pursuit).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from report import table
from team_tasks import TASKS, Policy, Task, evaluate

from marlogue.agents.teams import TeamSpec

_CURVES = Path(__file__).with_name("curves")
_POINTS = 10  # evaluations of a training, by default
PEERS = ("masac", "mappo")

#: What is set of BenchMARL, chosen once and not searched for: MASAC makes as many updates as our
#: defaults do (one in ten steps, batches of 256), MAPPO ten passes over every 2000 steps.
PEER_SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("spread", "masac"): {"learning_rate": 1e-3, "entropy": 0.05, "collected": 1000},
    ("spread", "mappo"): {"learning_rate": 7e-4, "collected": 2000, "updates": 10},
    ("pursuit", "masac"): {"learning_rate": 5e-4, "entropy": 0.05, "discount": 0.99},
    ("pursuit", "mappo"): {
        "learning_rate": 5e-4,
        "discount": 0.99,
        "collected": 2000,
        "updates": 10,
    },
}
#: What is set of AACConfig.
OUR_SETTINGS: dict[str, dict[str, Any]] = {
    # Catches are rare: short horizons, what matters drawn more often, and policies kept open.
    "pursuit": {
        "hidden_size": 64,
        "actor_hidden_sizes": [64, 64],
        "batch_size": 128,
        "train_interval": 5,
        "discount": 0.9,
        "n_step": 3,
        "replay": "prioritized",
        "temperature": 0.02,
        "learn_temperature": True,
        "target_entropy": 0.8,
    },
    "spread_10": {"hidden_size": 64, "num_queries": 4, "num_envs": 5},
}


class Curve:
    """Returns over a training.

    Args:
        task: what is learnt.
        every: steps between evaluations.
    """

    def __init__(self, task: Task, every: int) -> None:
        self.points: list[tuple[int, float]] = []
        self.larger: float | None = None  # of the same networks at the end, with more agents
        self._task, self._every = task, every
        self._env = task.make()
        self._spent = 0.0

    def look(self, steps: int, policy: Policy) -> None:
        """Evaluate where it is time to."""
        if steps // self._every <= (self.points[-1][0] // self._every if self.points else 0):
            return
        before = time.process_time()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.points.append((steps, evaluate(self._task, policy, self._env)))
        self._spent += time.process_time() - before
        print(f"{steps:>8} {self.points[-1][1]:8.1f}", flush=True)

    @property
    def spent(self) -> float:
        """CPU seconds of the evaluations."""
        return self._spent


def learn_peer(task: Task, name: str, args: argparse.Namespace, seed: int, curve: Curve) -> Any:
    """A training of BenchMARL; its settings."""
    from benchmarl_side import Settings, make_experiment, policy_of, watch

    chosen = PEER_SETTINGS.get((args.task, name), {}) | args.set
    settings = Settings(learner=name, steps=args.steps, **chosen)
    experiment = make_experiment(settings, task.make, task.max_cycles, seed)
    policy = policy_of(experiment, task.greedy)
    watch(experiment, lambda steps: curve.look(steps, policy))
    experiment.run()
    return vars(settings)


def learn_ours(task: Task, name: str, args: argparse.Namespace, seed: int, curve: Curve) -> Any:
    """A training of AACTrainer; its settings."""
    from marlogue.algorithms import AACConfig, AACTrainer
    from marlogue.algorithms.callbacks import Callback

    class Looking(Callback[AACTrainer]):
        def on_update(self, trainer: AACTrainer) -> None:
            curve.look(trainer.steps, policy)

    chosen = OUR_SETTINGS.get(args.task, {}) | args.set
    config = AACConfig(
        **chosen, total_steps=args.steps, eval_interval=0, seed=seed, device="cpu", verbose=False
    )
    trainer = AACTrainer(args=config, env=task.make(), callbacks=[Looking()])
    actors = trainer.networks.actors
    policy = _our_policy(actors, trainer.statistics, task.greedy)
    trainer.train()
    curve.look(args.steps, policy)
    if task.larger is not None:
        env = task.larger()
        team = TeamSpec.of(env)
        statistics = trainer.statistics.for_team(config, team)
        many = _our_policy(actors.for_team(team), statistics, task.greedy)
        curve.larger = evaluate(task, many, env)
        print(f"  larger {curve.larger:8.1f}", flush=True)
    return chosen


def _our_policy(actors: Any, statistics: Any, greedy: bool) -> Policy:
    observations = statistics.preparation().observations

    @torch.no_grad()
    def policy(seen: Any) -> Any:
        distribution, _ = actors(observations(torch.from_numpy(seen)[None]))
        actions = distribution.mode() if greedy else distribution.sample()[0]
        return actions[0].numpy()

    return policy


def run(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One training: where from, settings, points and the CPU seconds that it took."""
    task = TASKS[args.task]
    curve = Curve(task, args.every)
    learn: Callable[..., Any] = learn_peer if args.learner in PEERS else learn_ours
    before = time.process_time()
    settings = learn(task, args.learner, args, seed, curve)
    package = "benchmarl" if args.learner in PEERS else "marlogue"
    return {
        "learner": args.learner,
        "label": args.label,
        "package": f"{package} {importlib.metadata.version(package)}",
        "seed": seed,
        "steps": args.steps,
        "settings": settings,
        "cpu_seconds": round(time.process_time() - before - curve.spent, 1),
        "points": [[steps, round(value, 2)] for steps, value in curve.points],
        **({} if curve.larger is None else {"larger": round(curve.larger, 1)}),
    }


def store(path: Path, curve: dict[str, Any]) -> None:
    """Add a curve to a file, in the place of one of the same learner, label, steps and seed."""

    def key(c: dict[str, Any]) -> tuple[Any, ...]:
        return c["learner"], c["label"], c["steps"], c["seed"]

    known = json.loads(path.read_text()) if path.exists() else []
    kept = sorted([c for c in known if key(c) != key(curve)] + [curve], key=lambda c: str(key(c)))
    path.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(c) for c in kept)  # a curve per line
    path.write_text(f"[\n{lines}\n]\n")


def summary(task: Task, curves: list[dict[str, Any]]) -> str:
    """A row per learner: the last evaluation, mean over the seeds."""
    rows = [["learner", "steps", "seeds", "return (mean)", "lowest", "highest", "CPU s per run"]]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for curve in curves:
        key = curve["learner"], curve["label"], curve["package"], curve["steps"]
        groups.setdefault(key, []).append(curve)
    for (learner, label, package, steps), runs in groups.items():
        last = [run["points"][-1][1] for run in runs]
        name = f"{learner} {label} ({package})".replace("  ", " ")
        figures = [f"{number:.1f}" for number in (mean(last), min(last), max(last))]
        cost = f"{mean(run['cpu_seconds'] for run in runs):.0f}"
        rows.append([name, str(steps), str(len(runs)), *figures, cost])
    best = "" if task.best is None else f"; best known {task.best}"
    return table(rows) + f"\nrandom actions {task.random}{best}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", choices=TASKS, default="spread")
    add("--learner", choices=("aac", *PEERS), default="aac")
    add("--seeds", type=int, default=1)
    add("--first-seed", type=int, default=0)
    add("--steps", type=int, help="of the training; the task's by default")
    add("--every", type=int, help="steps between evaluations; a tenth of the training by default")
    add("--label", default="", help="a name for settings that are not the usual ones")
    add("--set", type=json.loads, default={}, help="settings that differ, as JSON")
    add("--threads", type=int, default=1)
    add("--out", type=Path, help="benchmarks/curves/TASK.json by default")
    add("--show", action="store_true", help="learn nothing, print what is stored")
    args = parser.parse_args()
    task = TASKS[args.task]
    args.steps = args.steps or task.steps
    args.every = args.every or max(1, args.steps // _POINTS)
    path = args.out or _CURVES / f"{args.task}.json"
    torch.set_num_threads(args.threads)
    for seed in range(args.first_seed, args.first_seed + (0 if args.show else args.seeds)):
        print(f"{args.learner}, seed {seed}", flush=True)
        store(path, run(args, seed))
    print(summary(task, json.loads(path.read_text())))


if __name__ == "__main__":
    main()
