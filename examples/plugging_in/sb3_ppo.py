"""Stable-Baselines3 PPO on a text environment: one policy for all agents of 8 episodes.

    python examples/plugging_in/sb3_ppo.py [--steps 4096]

Two agents see a cue and have to say the same word. PPO sees hashed n-grams of the prompt and picks
one of four words. Returns are the mean over 400 episodes of what one agent earns, 1 at most.
"""

import argparse

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from marlogue.envs import coordination_v0
from marlogue.wrappers import CandidateActions, EmbedObservations, HashedNgrams
from marlogue.wrappers.sb3 import TeamVecEnv

WORDS = list(coordination_v0.ANSWERS.values())


def make_team():
    texts = coordination_v0.parallel_env()
    return EmbedObservations(CandidateActions(texts, WORDS), HashedNgrams(64))


def mean_return(model):
    test = VecMonitor(TeamVecEnv(make_team(), num_episodes=8))
    returns, _ = evaluate_policy(model, test, n_eval_episodes=400, deterministic=False)
    return returns


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=4096, help="answers to learn from")
    options = parser.parse_args()

    torch.set_num_threads(1)  # the network is tiny
    env = VecMonitor(TeamVecEnv(make_team(), num_episodes=8))  # 16 environments: 2 agents each
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=8,
        batch_size=128,
        n_epochs=4,
        learning_rate=5e-3,
        ent_coef=0.02,
        seed=0,
        device="cpu",
    )
    print(f"mean return before: {mean_return(model):.3f}")
    model.learn(options.steps)
    print(f"mean return after:  {mean_return(model):.3f}")


if __name__ == "__main__":
    main()
