"""Learn with few agents, then with ten, and play with thirty: the same networks.

    python examples/aac_spread_curriculum.py [--total_steps 30000] [--logdir runs/crowd]

In `spread_v0` with `observe="nearest"` each agent sees the nearest landmarks and others, so that an
observation has one size whatever N; `half_width=None` keeps the field as crowded. The curriculum
goes from 3 to 6 to 10 agents; attention takes any number of them. Thirty were never trained with.
Prints mean returns per agent, before and after.
"""

import argparse
from functools import partial

from marlogue import AACConfig, AACTrainer
from marlogue.algorithms import Callback
from marlogue.envs import spread_v0

CURRICULUM = [
    {"until": 0.25, "num_agents": 3},
    {"until": 0.5, "num_agents": 6},
    {"num_agents": 10},
]
SIZES = (10, 30)


class Stages(Callback[AACTrainer]):
    """Prints how many agents there are, when that changes."""

    def __init__(self):
        self.count = 0

    def on_episode(self, trainer, episode):
        if len(episode.returns) != self.count:
            self.count = len(episode.returns)
            print(f"  {self.count} agents after {trainer.steps} steps", flush=True)


def per_agent(trainer, count):
    """Mean return of an agent among `count`."""
    return trainer.evaluate(num_agents=count)["eval/team/return_mean"] / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--total_steps", type=int, default=30_000)
    parser.add_argument("--learning_starts", type=int, default=1_000)
    parser.add_argument("--eval_episodes", type=int, default=20)
    parser.add_argument("--num_queries", type=int, help="agents per sample to learn from; all")
    parser.add_argument("--logdir")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    trainer = AACTrainer(
        env=partial(spread_v0.parallel_env, observe="nearest", half_width=None),
        curriculum=CURRICULUM,
        callbacks=[Stages()],
        logdir=options.logdir,
        args=AACConfig(
            total_steps=options.total_steps,
            learning_starts=options.learning_starts,
            num_queries=options.num_queries,
            sharing="all",
            attention_position=list(spread_v0.POSITION),
            eval_interval=0,
            eval_episodes=options.eval_episodes,
            seed=options.seed,
            verbose=False,
        ),
    )
    before = {count: per_agent(trainer, count) for count in SIZES}
    trainer.train()
    for count in SIZES:
        after = per_agent(trainer, count)
        print(f"{count} agents: mean return of one {before[count]:.1f}, now {after:.1f}")


if __name__ == "__main__":
    main()
