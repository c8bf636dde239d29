"""What checkpoints cost: their size, the time to save one and to go on from it, and the share of a
run that ``save_steps`` of the default takes.

    OMP_NUM_THREADS=1 python benchmarks/checkpoint_cost.py --learner maac --steps 16
    OMP_NUM_THREADS=1 python benchmarks/checkpoint_cost.py --learner aac --steps 5000

MAAC on story_length_v0, with the defaults of its configuration but for the length of completions;
AAC on spread_v0 with the defaults of its own, and a replay that is full.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from meter import Meter
from report import table

from marlogue import AACConfig, AACTrainer, MAACConfig, MAACTrainer
from marlogue.envs import spread_v0, story_length_v0

#: They evaluate nothing, and save when they are told to.
QUIET: dict[str, Any] = {"eval_interval": 0, "save_steps": None, "verbose": False}
Trainer = MAACTrainer | AACTrainer
#: Makes a trainer that writes into a folder, and goes on from a checkpoint where one is given.
Make = Callable[[Path, str | None], Trainer]


def maac(options: argparse.Namespace, folder: Path, resume: str | None = None) -> MAACTrainer:
    """A trainer of two agents and a critic."""
    return MAACTrainer(
        args=MAACConfig(
            max_steps=options.steps * (1 if resume is None else 2),
            max_new_tokens=options.new_tokens,
            resume=resume,
            **QUIET,
        ),
        agent_model=options.model,
        critic_model=options.model,
        env=story_length_v0.parallel_env(),
        model_config={"chat_template": True},
        logdir=folder,
    )


def aac(
    options: argparse.Namespace, folder: Path, resume: str | None = None, *, fills: bool = False
) -> AACTrainer:
    """A trainer that learns from the first step on; or one that ``fills`` its replay at random,
    and learns next to nothing."""
    steps = options.replay if fills else options.steps
    return AACTrainer(
        args=AACConfig(
            total_steps=steps,
            learning_starts=steps - 1 if fills else 0,
            replay_size=options.replay,
            resume=resume,
            **QUIET,
        ),
        env=partial(spread_v0.parallel_env, num_agents=options.agents),
        logdir=folder,
    )


def timed(options: argparse.Namespace, meter: Meter, folder: Path) -> tuple[Trainer, Make]:
    """A trainer whose checkpoints are of full size, and what makes another one like it; training
    has been timed."""
    maker: Callable[..., Trainer] = aac if options.learner == "aac" else maac
    trainer = maker(options, folder / "timed")
    meter.timed("training", trainer.train)()
    if options.learner == "maac":
        return trainer, partial(maac, options)
    trainer = aac(options, folder / "full", fills=True)
    trainer.train()
    return trainer, partial(aac, options, fills=True)


def sizes(place: Path) -> list[list[str]]:
    """Megabytes of the parts of a checkpoint."""
    parts = {
        part.name: sum(f.stat().st_size for f in [part, *part.rglob("*")] if f.is_file()) / 1e6
        for part in sorted(place.iterdir())
    }
    rows = [[name, f"{size:,.1f}"] for name, size in parts.items()]
    return [["part", "MB"], *rows, ["all", f"{sum(parts.values()):,.1f}"]]


def shares(options: argparse.Namespace, meter: Meter) -> list[list[str]]:
    """Seconds, and what saving takes of a run."""
    every = (AACConfig if options.learner == "aac" else MAACConfig)().save_steps
    assert every is not None
    rows = [["clock", "s per step", "s per save", "s per load", f"share at save_steps={every}"]]
    for clock in ("wall", "cpu"):
        seconds = getattr(meter, clock)
        step, save = seconds["training"] / options.steps, seconds["save"] / options.saves
        share = f"{save / (every * step + save):.2%}"
        rows.append([clock, f"{step:.4f}", f"{save:.3f}", f"{seconds['load']:.3f}", share])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--learner", choices=("maac", "aac"), default="maac")
    add("--steps", type=int, default=16, help="training items (AAC: steps) that are timed")
    add("--saves", type=int, default=3)
    add("--folder", help="where checkpoints go; a temporary folder by default")
    add("--model", default="smollm2", help="of MAAC")
    add("--new-tokens", type=int, default=64, help="of MAAC")
    add("--agents", type=int, default=3, help="of AAC")
    add("--replay", type=int, default=AACConfig().replay_size, help="observations, of AAC")
    options = parser.parse_args()
    meter = Meter()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        trainer, make = timed(options, meter, folder)
        for _ in range(options.saves):
            place = meter.timed("save", trainer.keeper.save)()
        told = sizes(place)
        resumed = make(folder / "resumed", str(place))
        meter.timed("load", resumed.keeper.resume)()
    print(table(told))
    print(table(shares(options, meter)))


if __name__ == "__main__":
    main()
