"""Episodes that guided learning needs on cloud_scheduling_v0, beside learning without guidance.

    OMP_NUM_THREADS=1 python benchmarks/guidance_learning.py --agents 5,20,50,200 --seeds 3
    OMP_NUM_THREADS=1 python benchmarks/guidance_learning.py --recover
    OMP_NUM_THREADS=1 python benchmarks/guidance_learning.py --agents 200 --episodes 40 --all

Costs are those of greedy policies over the same evaluation episodes, divided by best-fit's. The
first table: after how many training episodes (of 200 steps) the cost is at most twice best-fit's,
and the lowest cost by then. ``--all`` plays every episode instead of stopping there. ``--recover``:
a reference that takes the servers for others, whose weight stays or is annealed to 0.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from report import table

from marlogue import AACConfig, AACTrainer
from marlogue.algorithms.callbacks import Callback
from marlogue.algorithms.streams import EVAL, derived_seed
from marlogue.envs import cloud_scheduling_v0 as cloud

_EPISODES = 8  # of an evaluation
_ENOUGH = 2.0


class Reached(Exception):  # noqa: N818
    """The level is reached; the training may end."""


class Costs(Callback[AACTrainer]):
    """The greedy policies' cost after each episode, as a multiple of best-fit's."""

    def __init__(self, best: float, stop: bool) -> None:
        self.best, self.stop = best, stop
        self.found: list[float] = []

    def on_episode(self, trainer: AACTrainer, episode: Any) -> None:
        """Evaluate."""
        returns = trainer.evaluate(episodes=_EPISODES)["eval/team/return_mean"]
        self.found.append(-returns / trainer.team.num_agents / self.best)
        print(f"    episode {len(self.found):3d}  {self.found[-1]:.2f}", flush=True)
        if self.stop and self.found[-1] <= _ENOUGH:
            raise Reached


def heuristic_cost(env: Any, choose: Callable[[Any], dict[str, int]], seed: int) -> float:
    """Mean cost of the episodes that a trainer with this seed evaluates."""
    costs = []
    for number in range(_EPISODES):
        env.reset(seed=derived_seed(seed, EVAL, number, 0))
        total = 0.0
        while env.agents:
            env.step(choose(env))
            total += env.cost
        costs.append(total)
    return float(np.mean(costs))


def learnt(
    num_agents: int, seed: int, episodes: int, *, stop: bool, guided: bool = True, **changes: Any
) -> list[float]:
    """Costs after each episode."""
    error = changes.pop("reference_error", 0.0)

    def make() -> Any:
        return cloud.parallel_env(num_agents, reference_error=error, cluster_seed=seed)

    env = make()
    steps = env.settings.max_steps
    costs = Costs(heuristic_cost(env, cloud.best_fit, seed), stop)
    settings = {
        "total_steps": episodes * steps,
        "learning_starts": steps // 2,
        "train_interval": 1,
        "batch_size": 32,
        "num_queries": 16 if num_agents > 16 else None,
        "eval_interval": 0,
        "device": "cpu",
        "seed": seed,
        "verbose": False,
    }
    trainer = AACTrainer(
        args=AACConfig(**{**settings, **changes}),
        env=make,
        guidance=True if guided else None,
        callbacks=[costs],
    )
    with suppress(Reached):
        trainer.train()
    return costs.found


def speed(args: argparse.Namespace) -> None:
    """The first table."""
    rows = []
    for num_agents in args.agents:
        for guided in (True, False):
            needed, last = [], []
            started = time.process_time()
            for seed in range(args.seeds if guided else 1):
                print(f"N = {num_agents}, seed {seed}, {'guided' if guided else 'without'}")
                found = learnt(
                    num_agents, seed, args.episodes, stop=not args.all, guided=guided, **args.set
                )
                below = [k + 1 for k, cost in enumerate(found) if cost <= _ENOUGH]
                needed.append(str(below[0]) if below else f"> {len(found)}")
                last.append(f"{min(found):.2f}")
            spent = time.process_time() - started
            how = "guided" if guided else "without"
            rows.append([str(num_agents), how, ", ".join(needed), ", ".join(last), f"{spent:.0f}"])
            if args.guided_only:
                break
    heads = ["N", "", f"episodes to {_ENOUGH:g} x best-fit", "lowest", "CPU s"]
    print(table([heads, *rows]))


def recover(args: argparse.Namespace) -> None:
    """The second table."""
    rows = []
    weights = {
        "right, 0.9 to 0.2": (0.0, {"end": 0.2}),
        "wrong, stays at 0.9": (1.0, {"end": 0.9}),
        "wrong, 0.9 to 0 by half": (1.0, {"end": 0.0, "until": 0.5}),
    }
    for name, (error, weight) in weights.items():
        print(name)
        found = learnt(
            args.agents[0],
            0,
            args.episodes,
            stop=False,
            reference_error=error,
            guidance_weight=weight,
            **args.set,
        )
        middle = found[len(found) // 2 - 1]
        rows.append([name, f"{min(found[:5]):.2f}", f"{middle:.2f}", f"{np.mean(found[-5:]):.2f}"])
    heads = ["reference and weight", "best of the first 5", "halfway", "mean of the last 5"]
    print(table([heads, *rows]))


def main() -> None:
    """Read the options and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", default="5,20,50,200", help="numbers of agents")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=15)
    parser.add_argument("--all", action="store_true", help="play all episodes")
    parser.add_argument("--guided-only", action="store_true")
    parser.add_argument("--recover", action="store_true")
    parser.add_argument("--set", type=eval, default={}, help="more fields of AACConfig, as a dict")
    args = parser.parse_args()
    args.agents = [int(number) for number in args.agents.split(",")]
    recover(args) if args.recover else speed(args)


if __name__ == "__main__":
    main()
