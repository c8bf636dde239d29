"""AgileRL's IPPO learns to choose the right word, with four environments in processes of their own.

    pip install "marlogue[agilerl]"
    python examples/plugging_in/agilerl_ippo.py

Two agents see a cue and choose one of four words; both are to choose the one that stands for it.
`groups=True` with `GroupIPPO` gives all agents one policy. Chance earns 0.16; prints the mean
return of an agent before and after, in under a minute.
"""

import numpy as np
import torch
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector import AsyncPettingZooVecEnv

from marlogue.envs import coordination_v0
from marlogue.wrappers import CandidateActions, EmbedObservations, HashedNgrams
from marlogue.wrappers.agilerl import GroupIPPO, vector_env


def make_env(num_envs: int) -> AsyncPettingZooVecEnv:
    text_env = coordination_v0.parallel_env()
    choices = CandidateActions(text_env, list(coordination_v0.ANSWERS.values()))
    return vector_env(EmbedObservations(choices, HashedNgrams(64)), num_envs, groups=True)


def mean_return(ippo: GroupIPPO, episodes: int = 100) -> float:
    """The mean return of an agent over episodes."""
    env = make_env(num_envs=1)
    total = float(ippo.test(env, loop=episodes))  # summed over the agents
    env.close()
    return total / len(env.agents)


def main() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (AgileRL shuffles by numpy's global generator)
    env = make_env(num_envs=4)
    ippo = GroupIPPO(
        [env.single_observation_space(agent) for agent in env.agents],
        [env.single_action_space(agent) for agent in env.agents],
        agent_ids=env.agents,
        net_config={
            "latent_dim": 32,
            "encoder_config": {"hidden_size": [32]},
            "head_config": {"hidden_size": [32]},
        },
        learn_step=256,
        batch_size=128,
        lr=3e-3,
        update_epochs=8,
        # An episode is one turn. AgileRL's loop lets advantages run on into the next episode.
        gamma=0.0,
        ent_coef=0.0,
    )
    before = mean_return(ippo)
    train_multi_agent_on_policy(  # closes the environment
        env, "coordination_v0", "IPPO", [ippo], max_steps=4096, evo_steps=4096, verbose=False
    )
    print(f"mean return before: {before:.2f}")
    print(f"mean return after: {mean_return(ippo):.2f}")


if __name__ == "__main__":
    main()
