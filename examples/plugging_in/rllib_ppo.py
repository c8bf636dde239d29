"""RLlib's PPO (new API stack) learns to choose the right word, reading prompts as texts.

    pip install "marlogue[rllib]"
    python examples/plugging_in/rllib_ppo.py

Two agents see a cue and choose one of four words; both are to choose the one that stands for it.
All agents share a policy. Prompts stay texts up to RLlib, where a preprocessor embeds them. Chance
earns 0.16; prints the mean return of an agent before and after, in about half a minute.
"""

import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.rllib.algorithms.ppo import PPOConfig

from marlogue.envs import coordination_v0
from marlogue.wrappers import CandidateActions, HashedNgrams
from marlogue.wrappers.rllib import use_environment


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20)
    env = CandidateActions(coordination_v0.parallel_env(), list(coordination_v0.ANSWERS.values()))
    # Sets the environment, one policy for all agents, and the text preprocessor.
    config = use_environment(PPOConfig(), "coordination_v0", env, embed=HashedNgrams(64))
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=8)
    config.rl_module(model_config={"fcnet_hiddens": [32], "head_fcnet_hiddens": []})
    config.training(
        train_batch_size_per_learner=256, minibatch_size=128, num_epochs=8, lr=5e-3, gamma=1.0
    )
    config.debugging(seed=1)
    ppo = config.build_algo()
    # An episode's return in RLlib is that of all agents together.
    returns = [ppo.train()["env_runners"]["episode_return_mean"] / 2 for _ in range(9)]
    ppo.stop()
    ray.shutdown()
    print(f"mean return before: {returns[0]:.2f}")
    print(f"mean return after: {returns[-1]:.2f}")


if __name__ == "__main__":
    main()
