"""MAAC on `story_length`: two SmolLM2-135M agents and one critic that reads both prompts.

    python examples/story_length_maac.py [--max_steps 40] [--logdir runs/story_length_maac]

The environment is given by its parts, a dataset and callbacks, as one would write them for a task
of one's own. Prints the mean reward over held-out topics before and after, and two transcripts.
About five minutes on two CPU cores; `story_length_maac.yaml` is the same run without Python.
"""

import argparse

from marlogue import MAACConfig, MAACTrainer
from marlogue.algorithms import fresh_folder
from marlogue.envs import story_length_v0


def short_prompt(item):
    return f"Write one short sentence about {item['topic']}."


def long_prompt(item):
    return f"Write two sentences about {item['topic']}."


def reward(short_texts, long_texts):
    """One team reward per joint answer; see `length_reward` for its definition."""
    pairs = zip(short_texts, long_texts, strict=True)
    return [story_length_v0.length_reward(short, long) for short, long in pairs]


def show(samples):
    """A metrics callback: it sees each row's samples; here it prints the evaluated ones."""
    sample = samples[0]
    if sample.item["topic"] == story_length_v0.TOPICS[-1]:
        for one in samples:
            print(f"  [{one.agent}, reward {one.reward:.2f}] {one.completion.strip()!r}")
    return {"words": sum(len(one.completion.split()) for one in samples) / len(samples)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max_steps", type=int, default=40, help="topics to train on")
    parser.add_argument("--max_new_tokens", type=int, default=40)
    parser.add_argument("--eval_num_samples", type=int, default=16)
    parser.add_argument("--logdir", default="runs/story_length_maac")
    options = parser.parse_args()

    topics = [{"topic": topic} for topic in story_length_v0.TOPICS]
    trainer = MAACTrainer(
        agent_model="smollm2",
        critic_model="smollm2",
        model_config={"chat_template": True},
        train_dataset=topics[:24],
        eval_dataset=topics[24:][::-1],
        reward_func=reward,
        formatters=[short_prompt, long_prompt],
        metrics_callback=show,
        logdir=fresh_folder(options.logdir),
        args=MAACConfig(
            num_agents=2,
            num_generations=4,
            rollout_buffer_size=16,
            max_steps=options.max_steps,
            agent_learning_rate=3e-5,
            critic_learning_rate=3e-5,
            max_new_tokens=options.max_new_tokens,
            shuffle=True,
            eval_interval=0,
            eval_num_samples=options.eval_num_samples,
            eval_batch_size=16,
            verbose=False,
        ),
    )
    before = trainer.evaluate()["eval/team/turn_1/reward_mean"]
    trainer.train()
    after = trainer.evaluate()["eval/team/turn_1/reward_mean"]
    print(f"mean reward before {before:.3f}, after {after:.3f} ({trainer.updates} updates)")


if __name__ == "__main__":
    main()
