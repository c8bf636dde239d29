"""Several turns: a transition tells each agent what the other one said in the turn before.

    python examples/multi_turn.py [--epochs 100]

Two tiny models (random weights, no download) are to say which number comes next. Only the first
one sees the number, so that the second can but guess in the first turn; in the second turn it has
heard the first one's answer. A team that has learnt earns 0.625 in the first turn and about 1 in
the second. Prints both before and after; about half a minute on a CPU.
"""

import argparse
from itertools import pairwise

from marlogue import MAACConfig, MAACTrainer, tiny_model

NUMBERS = ("one", "two", "three", "four", "five")
WORDS = (*NUMBERS, "see", "nothing", "heard")
ROWS = [{"number": number, "answer": following} for number, following in pairwise(NUMBERS)]


def see_number(item):
    return f"see {item['number']}"


def see_nothing(item):
    return "see nothing"


def reward(seers, hearers, batch_items):
    """Half a point for each agent whose word is the answer; one team reward per joint answer."""
    answer = batch_items[0]["answer"]
    pairs = zip(seers, hearers, strict=True)
    return [0.5 * (first == answer) + 0.5 * (second == answer) for first, second in pairs]


def hear_each_other(agent_completions, prompt_history_per_agent):
    """The prompts of the second turn. A transition names what it needs, in any order; besides
    these two there are prompt, item, num_agents, response_history_per_agent, rewards, turn_idx
    and infos."""
    prompts = []
    for agent, history in enumerate(prompt_history_per_agent):
        words = agent_completions[1 - agent].split()
        prompts.append(f"{history[-1]} heard {words[0] if words else ''}".strip())
    return prompts


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    models = [tiny_model(WORDS, seed=3 * options.seed + index) for index in range(3)]
    trainer = MAACTrainer(
        agents=[models[0][0], models[1][0]],
        critic_model=models[2][0],
        tokenizer=models[0][1],
        train_dataset=ROWS * 24,  # an epoch is one update, of 96 episodes
        eval_dataset=ROWS,
        reward_func=reward,
        formatters=[see_number, see_nothing],
        external_transition=hear_each_other,
        args=MAACConfig(
            num_turns=2,
            external_prompt_passthrough=True,  # what the transition returns is the whole prompt
            discount=0.9,
            num_train_epochs=options.epochs,
            rollout_buffer_size=192,  # samples of both turns
            agent_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            max_new_tokens=1,
            seed=options.seed,
            eval_interval=0,
            eval_num_samples=len(ROWS),
            eval_batch_size=len(ROWS),
            eval_temperature=0,
            verbose=False,
        ),
    )
    report("before", trainer.evaluate())
    trainer.train()
    report("after", trainer.evaluate())


def report(when, metrics):
    first, second = (metrics[f"eval/team/turn_{turn}/reward_mean"] for turn in (1, 2))
    print(f"{when}: mean reward {first:.3f} in the first turn, {second:.3f} in the second")


if __name__ == "__main__":
    main()
