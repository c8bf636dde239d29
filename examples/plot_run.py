"""Draw the reward curve of a run from its log.

    python examples/plot_run.py runs/quickstart reward.png

The team's mean reward in each turn over the joint actions scored so far: as logged (dots), and as
the mean of the last few updates (line). Needs matplotlib: pip install "marlogue[plot]".
"""

import csv
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # a file, not a window
import matplotlib.pyplot as plt

WINDOW = 4  # updates


def read_curves(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Points (joint actions, mean reward) by turn, from `progress.csv`."""
    curves: dict[str, list[tuple[float, float]]] = {}
    with open(folder / "progress.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name.startswith("team/") and name.endswith("/reward_mean"):
                    turn = name.split("/")[1].replace("_", " ")
                    step = float(row["time/joint_actions"])
                    curves.setdefault(turn, []).append((step, float(value)))
    return curves


def main(folder: str, picture: str) -> None:
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for turn, points in sorted(read_curves(Path(folder)).items()):
        steps, rewards = zip(*points, strict=True)
        starts = [max(0, k + 1 - WINDOW) for k in range(len(rewards))]
        means = [sum(rewards[s : k + 1]) / (k + 1 - s) for k, s in enumerate(starts)]
        (line,) = axes.plot(steps, means, label=f"{turn}, mean of {WINDOW} updates")
        axes.plot(steps, rewards, "o", color=line.get_color(), alpha=0.4, markersize=4)
    axes.set(xlabel="joint actions", ylabel="mean team reward", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(picture, dpi=120)
    print(f"wrote {picture}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python examples/plot_run.py RUN_FOLDER PICTURE.png")
    main(sys.argv[1], sys.argv[2])
