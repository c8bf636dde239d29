"""Three pursuers learn to encircle a prey that is faster than they are: who attends to whom?

    pip install "marlogue[mpe,plot]"
    python examples/aac_tag.py [--total_steps 20000] [--logdir runs/aac_tag]

In simple_tag of mpe2 each touch of the prey earns every pursuer 10. The prey moves at random here:
`Subteam` plays it, and the pursuers are the team that learns. The pictures in `logdir/attention`
show them in their places during an evaluation, with arrows for their attention; TensorBoard has
them, too. Prints returns (sums over pursuers and 25 steps) and whom each attended to most.
"""

import argparse

from mpe2 import simple_tag_v3

from marlogue import AACConfig, AACTrainer
from marlogue.algorithms import Callback, fresh_folder
from marlogue.algorithms.attention_episode import episode_figure
from marlogue.algorithms.attention_figures import figures_available
from marlogue.algorithms.attention_trace import AttentionTrace, list_traces
from marlogue.wrappers import Subteam

PURSUERS = "adversary_*"
PLACE = [2, 3]  # of an observation: x and y, after the velocity


def pursuit(prey="random", **kwargs):
    """The pursuers' side; `prey` may also be a function from its observation to an action."""
    return Subteam(simple_tag_v3.parallel_env(**kwargs), PURSUERS, prey)


class Progress(Callback[AACTrainer]):
    """Prints each evaluation."""

    def on_evaluation(self, trainer, metrics):
        mean, deviation = (metrics[f"eval/team/return_{kind}"] for kind in ("mean", "std"))
        print(f"  after {trainer.steps} steps: mean return {mean:.1f} (deviation {deviation:.1f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--total_steps", type=int, default=20_000)
    parser.add_argument("--learning_starts", type=int, default=1_000)
    parser.add_argument("--eval_episodes", type=int, default=40)
    parser.add_argument("--logdir", default="runs/aac_tag")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    trainer = AACTrainer(
        env=pursuit,
        callbacks=[Progress()],
        logdir=fresh_folder(options.logdir),
        args=AACConfig(
            total_steps=options.total_steps,
            learning_starts=options.learning_starts,
            attention_position=PLACE,
            eval_interval=max(1, options.total_steps // 2),
            eval_episodes=options.eval_episodes,
            seed=options.seed,
            verbose=False,
        ),
    )
    print(f"{', '.join(trainer.team.agents)} learn")
    trainer.train()

    path = list_traces(trainer.logdir)[trainer.steps]
    trace = AttentionTrace.load(path)
    for name, weights in zip(trace.names, trace.mean_weights(), strict=True):
        most = max(range(len(weights)), key=weights.__getitem__)
        print(f"{name} attended to {trace.names[most]} most: {weights[most]:.2f}")
    if figures_available():
        picture = path.with_suffix(".png")
        episode_figure(trace).savefig(picture, dpi=120)
        print(f"the last evaluation's first episode is in {picture}")


if __name__ == "__main__":
    main()
