"""What checkpoints cost: their size, the time to save one and to go on from it, and the share of a
run that ``save_steps`` of the default takes.

    OMP_NUM_THREADS=1 python benchmarks/checkpoint_cost.py --items 16

MAAC on story_length_v0 with the defaults of its configuration but for the length of completions.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from meter import Meter
from report import table

from marlogue import MAACConfig, MAACTrainer
from marlogue.envs import story_length_v0


def make(options: argparse.Namespace, folder: Path, resume: str | None) -> MAACTrainer:
    """A trainer of two agents and a critic."""
    return MAACTrainer(
        args=MAACConfig(
            max_steps=options.items * (1 if resume is None else 2),
            max_new_tokens=options.new_tokens,
            eval_interval=0,
            save_steps=None,
            verbose=False,
            resume=resume,
        ),
        agent_model=options.model,
        critic_model=options.model,
        env=story_length_v0.parallel_env(),
        model_config={"chat_template": True},
        logdir=folder,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", default="smollm2")
    add("--items", type=int, default=16, help="training items that are timed")
    add("--new-tokens", type=int, default=64)
    add("--saves", type=int, default=3)
    add("--folder", help="where checkpoints go; a temporary folder by default")
    options = parser.parse_args()
    meter = Meter()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        trainer = make(options, folder, None)
        meter.timed("training", trainer.train)()
        for _ in range(options.saves):
            place = meter.timed("save", trainer.keeper.save)()
        sizes = {
            part.name: sum(f.stat().st_size for f in part.rglob("*") if f.is_file())
            or part.stat().st_size
            for part in sorted(place.iterdir())
        }
        resumed = make(options, folder, str(place))
        meter.timed("load", resumed.keeper.resume)()
    rows = [["part", "MB"], *([name, f"{size / 1e6:,.1f}"] for name, size in sizes.items())]
    print(table([*rows, ["all", f"{sum(sizes.values()) / 1e6:,.1f}"]]))
    steps = MAACConfig().save_steps
    assert steps is not None
    told = [["clock", "s per item", "s per save", "s per load", f"share at save_steps={steps}"]]
    for clock in ("wall", "cpu"):
        seconds = getattr(meter, clock)
        item = seconds["training"] / options.items
        save = seconds["save"] / options.saves
        load, share = f"{seconds['load']:.2f}", f"{save / (steps * item + save):.2%}"
        told.append([clock, f"{item:.2f}", f"{save:.2f}", load, share])
    print(table(told))


if __name__ == "__main__":
    main()
