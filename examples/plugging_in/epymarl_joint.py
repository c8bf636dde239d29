r"""The joint environment that EPyMARL reads, and value decomposition on it.

    python examples/plugging_in/epymarl_joint.py

EPyMARL is a repository that is cloned. In its folder, with this folder on PYTHONPATH, the same
environment is trained on with

    python src/main.py --config=vdn --env-config=gymma with \
        env_args.key="epymarl_joint:my/coordination-v0" env_args.time_limit=1 \
        reward_scalarisation=mean

Here the agents learn without it: the sum of their values, each linear in what the agent sees, is
fitted to the team reward. Chance earns 0.16 per episode. Prints the mean return before and after;
some seconds on a CPU.
"""

import gymnasium
import numpy as np

from marlogue.envs import coordination_v0
from marlogue.wrappers import CandidateActions, EmbedObservations, HashedNgrams
from marlogue.wrappers.epymarl import register_joint


def make_env(num_turns=1):
    env = coordination_v0.parallel_env(num_turns=num_turns, shuffle=True)
    words = list(coordination_v0.ANSWERS.values())
    return EmbedObservations(CandidateActions(env, words), HashedNgrams(64))


register_joint("my/coordination-v0", make_env)


def main(episodes=2000, seed=0):
    env = gymnasium.make("my/coordination-v0")
    random = np.random.default_rng(seed)
    agents = range(env.unwrapped.n_agents)
    num_actions, size = env.action_space[0].n, env.observation_space[0].shape[0]
    weights = np.zeros((len(agents), num_actions, size))
    returns = []
    observation, _ = env.reset(seed=seed)
    for episode in range(episodes):
        explore = max(0.0, 1 - episode / (0.8 * episodes))
        values = [weights[agent] @ observation[agent] for agent in agents]
        actions = [
            random.integers(num_actions) if random.random() < explore else value.argmax()
            for value in values
        ]
        _, rewards, terminated, _, _ = env.step(actions)
        assert terminated  # one turn: there is no next value to bootstrap from
        returns.append(np.mean(rewards))
        error = returns[-1] - sum(values[agent][actions[agent]] for agent in agents)
        for agent in agents:
            weights[agent, actions[agent]] += 0.2 * error * observation[agent]
        observation, _ = env.reset()
    first, last = np.mean(returns[:200]), np.mean(returns[-200:])
    print(f"mean return of an episode before: {first:.2f}, after: {last:.2f}")
    return returns


if __name__ == "__main__":
    main()
