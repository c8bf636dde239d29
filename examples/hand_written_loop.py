"""The environment without a trainer: PettingZoo's loop, written by hand, with a policy in it.

    python examples/hand_written_loop.py [--model smollm2]

Plays two episodes of `story_length` with a language model for each agent and prints what was said.
By default the models are tiny ones of random weights, so that nothing is downloaded and nonsense
is said; `--model smollm2` lets SmolLM2-135M write. Any function from text to text could play.
"""

import argparse

from marlogue import LLMPolicy, SamplingParams, tiny_model
from marlogue.agents import load_causal_lm, load_tokenizer
from marlogue.envs import check_text_env, story_length_v0

NONSENSE = ("the", "a", "small", "old", "boat", "clock", "rain", "and", "sings", "waits", ".")


def make_policies(name, agents):
    if name == "tiny":
        return {
            agent: LLMPolicy(*tiny_model(NONSENSE, seed=index))
            for index, agent in enumerate(agents)
        }
    model, tokenizer = load_causal_lm(name), load_tokenizer(name)
    shared = LLMPolicy(model, tokenizer, chat_template=True)
    return dict.fromkeys(agents, shared)  # fine as long as nobody learns


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, a folder or a hub name")
    options = parser.parse_args()

    env = story_length_v0.parallel_env()
    check_text_env(env)  # our conformance test; PettingZoo's own passes as well
    policies = make_policies(options.model, env.possible_agents)
    sampling = SamplingParams(max_new_tokens=40)

    for episode in range(2):
        observations, infos = env.reset(options={"row": episode})
        turn = 0
        while env.agents:
            actions = {}
            for number, agent in enumerate(env.agents):
                # The last argument names the random numbers: the same name, the same answer.
                stream = (episode, turn, number)
                answer = policies[agent].act([observations[agent]], sampling, [stream])[0]
                actions[agent] = answer.text
                print(f"{agent} is asked: {observations[agent]}")
                print(f"{agent} answers:  {answer.text.strip()} ({len(answer.ids)} tokens)")
            observations, rewards, terminations, truncations, infos = env.step(actions)
            over = any(terminations.values()) or any(truncations.values())
            print(f"rewards: {rewards}, over: {over}\n")
            turn += 1
        assert infos[agent]["row"] == episode


if __name__ == "__main__":
    main()
