"""Schedulers of a cluster learn with descent guidance, beside best-fit and random choice.

    python examples/aac_cloud_scheduling.py [--num_agents 20] [--total_steps 5000] [--alone]

Each of N schedulers sends its jobs to one of five servers, which it shares with its neighbours; the
cost of a step is the demand that waits, as a share of the cluster. The environment knows a fluid
model of itself, and its `guidance` says for each scheduler what every choice does to the distance
from it. `--alone` learns without. After Yang and Liu 2026, "Descent-Guided Policy Gradient". Prints
mean costs per step; best-fit is a central one that knows where the jobs before went.
"""

import argparse
from functools import partial

import numpy as np

from marlogue import AACConfig, AACTrainer
from marlogue.envs import cloud_scheduling_v0


def cost_of(policy, num_agents, steps, episodes):
    """Mean cost per step of a policy that sees the environment."""
    env = cloud_scheduling_v0.parallel_env(num_agents, max_steps=steps)
    costs = []
    for episode in range(episodes):
        env.reset(seed=episode)
        while env.agents:
            env.step(policy(env))
            costs.append(env.cost)
    return float(np.mean(costs))


def cost_in(metrics, num_agents, steps):
    """Mean cost per step of a trained team: every agent's reward is minus the cost."""
    return -metrics["eval/team/return_mean"] / (num_agents * steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_agents", type=int, default=20)
    parser.add_argument("--total_steps", type=int, default=5_000)
    parser.add_argument("--learning_starts", type=int, default=200)
    parser.add_argument("--max_steps", type=int, default=200, help="of an episode")
    parser.add_argument("--episodes", type=int, default=5, help="of an evaluation")
    parser.add_argument("--alone", action="store_true", help="without guidance")
    parser.add_argument("--logdir")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = options.num_agents, options.max_steps

    generator = np.random.default_rng(options.seed)
    chance = partial(cloud_scheduling_v0.random_choice, generator=generator)
    for name, policy in (
        ("random choice", chance),
        ("shortest queue", cloud_scheduling_v0.shortest_queue),
        ("best-fit", cloud_scheduling_v0.best_fit),
    ):
        print(f"{name:15s} cost {cost_of(policy, *sizes, options.episodes):.4f}")

    trainer = AACTrainer(
        env=partial(cloud_scheduling_v0.parallel_env, *sizes[:1], max_steps=options.max_steps),
        guidance=None if options.alone else True,
        logdir=options.logdir,
        args=AACConfig(
            total_steps=options.total_steps,
            learning_starts=options.learning_starts,
            random_start=False,
            sharing="all",  # one network for all schedulers
            guidance_weight={"start": 0.9, "end": 0.2},
            eval_interval=0,
            eval_episodes=options.episodes,
            eval_greedy=False,  # alike schedulers should not all choose the same
            seed=options.seed,
            verbose=False,
        ),
    )
    before = cost_in(trainer.evaluate(), *sizes)
    trainer.train()
    after = cost_in(trainer.evaluate(), *sizes)
    how = "alone" if options.alone else "with guidance"
    print(f"trained {how}: cost before {before:.4f}, after {after:.4f}")


if __name__ == "__main__":
    main()
