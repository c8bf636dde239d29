"""An army learns to fight one that moves at random: battle of magent2, where agents leave early.

    pip install "marlogue[magent2]"
    python examples/aac_magent2.py [--map_size 16] [--total_steps 20000] [--logdir runs/battle]

`Subteam` plays the blue side at random; the red agents learn, all with one network, and are hurt,
and leave. What an agent sees (13 x 13 cells in 5 layers) is flattened. An attack that hits pays,
dying costs, and so does each step; a return is the sum over the red army. Prints the mean return
before and after, and how long the battles are.
"""

import argparse
from functools import partial

from magent2.environments import battle_v4

from marlogue import AACConfig, AACTrainer
from marlogue.wrappers import Subteam

REWARDS = {
    "step_reward": -0.005,
    "dead_penalty": -0.1,
    "attack_penalty": -0.1,
    "attack_opponent_reward": 0.2,
}


def battle(map_size, max_cycles):
    """The red side of a battle."""
    env = battle_v4.parallel_env(map_size=map_size, max_cycles=max_cycles, **REWARDS)
    return Subteam(env, "red_*")


def shown(metrics):
    """The figures that are printed."""
    found = metrics["eval/team/return_mean"], metrics["eval/team/length_mean"]
    return f"mean return {found[0]:.2f}, battles of {found[1]:.0f} steps"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--map_size", type=int, default=16)
    parser.add_argument("--max_cycles", type=int, default=200)
    parser.add_argument("--total_steps", type=int, default=20_000)
    parser.add_argument("--learning_starts", type=int, default=1_000)
    parser.add_argument("--eval_episodes", type=int, default=10)
    parser.add_argument("--logdir")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    trainer = AACTrainer(
        env=partial(battle, options.map_size, options.max_cycles),
        logdir=options.logdir,
        args=AACConfig(
            total_steps=options.total_steps,
            learning_starts=options.learning_starts,
            sharing="all",
            reward_sharing="mean",  # of those that are still there
            num_queries=8,  # agents per sample to learn from
            eval_interval=0,
            eval_episodes=options.eval_episodes,
            eval_greedy=False,
            seed=options.seed,
            verbose=False,
        ),
    )
    print(f"{trainer.team.num_agents} red agents, observations of {trainer.team.observation_size}")
    print(f"before: {shown(trainer.evaluate())}")
    trainer.train()
    print(f"after:  {shown(trainer.evaluate())} ({trainer.updates} updates)")


if __name__ == "__main__":
    main()
