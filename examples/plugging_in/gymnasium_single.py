"""One agent as a Gymnasium environment, str in and str out, with a frozen partner.

    python examples/plugging_in/gymnasium_single.py [--steps 100]

The learner is a table from prompt and word to the mean reward, which tries words at random every
fifth time. It could be any code that is written for Gymnasium, and the partner any function from
text to text, or an LLMPolicy. Returns are means over 40 turns, 1 at most.
"""

import argparse
from collections import defaultdict

import gymnasium
import numpy as np

import marlogue.wrappers  # noqa: F401  registers the ids
from marlogue.envs import coordination_v0

WORDS = list(coordination_v0.ANSWERS.values())


def partner(prompt, rng):
    """Knows the words, and slips one time in ten; `rng` follows from the seed of the reset."""
    return coordination_v0.ANSWERS[prompt] if rng.random() < 0.9 else "nothing"


def best(table, prompt):
    return max(WORDS, key=lambda word: np.mean(table[prompt, word] or [1.0]))


def mean_return(table):
    env = gymnasium.make("marlogue/coordination-v0", agent="agent_0", others=partner)
    total = 0.0
    for episode in range(40):
        prompt, _ = env.reset(seed=0) if episode == 0 else env.reset()
        _, reward, *_ = env.step(best(table, prompt))
        total += reward / 40
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="turns of 8 episodes each")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    table = defaultdict(list)
    print(f"mean return before: {mean_return(table):.3f}")
    envs = gymnasium.make_vec(
        "marlogue/coordination-v0", num_envs=8, others=partner, autoreset_mode="SameStep"
    )
    prompts, _ = envs.reset(seed=1)
    for _ in range(options.steps):
        explores = rng.random(8) < 0.2
        words = [
            str(rng.choice(WORDS)) if explore else best(table, prompt)
            for prompt, explore in zip(prompts, explores, strict=True)
        ]
        following, rewards, *_ = envs.step(words)
        for prompt, word, reward in zip(prompts, words, rewards, strict=True):
            table[prompt, word].append(reward)
        prompts = following
    envs.close()
    print(f"mean return after:  {mean_return(table):.3f}")


if __name__ == "__main__":
    main()
