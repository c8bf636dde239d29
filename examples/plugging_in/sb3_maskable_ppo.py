"""MaskablePPO of sb3-contrib on a text environment whose rows offer different candidates.

    pip install "marlogue[sb3]"
    python examples/plugging_in/sb3_maskable_ppo.py [--steps 4096]

As in sb3_ppo.py, but a row lists the words that may be said to its cue, two to four of them. What
is missing is masked: an action that is none of them is never sampled, and would be refused.
Returns are the mean over 400 episodes of what one agent earns, 1 at most.
"""

import argparse

import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from marlogue.envs import coordination_v0
from marlogue.wrappers import CandidateActions, EmbedObservations, HashedNgrams
from marlogue.wrappers.sb3 import TeamVecEnv

CHOICES = {
    "dawn": ["red", "gold"],
    "noon": ["blue", "gold", "red"],
    "dusk": ["blue", "black"],
    "night": ["gold", "red", "blue", "black"],
}


def make_team():
    rows = [{**row, "choices": CHOICES[row["prompt"]]} for row in coordination_v0.dataset()]
    texts = coordination_v0.parallel_env(dataset=rows)
    return EmbedObservations(CandidateActions(texts, "choices", num_candidates=4), HashedNgrams(64))


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
    model = MaskablePPO(
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
