"""The attention critic of MAAC: four agents, of whom only one matters, and no joint prompt.

    python examples/attention_critic_maac.py [--epochs 12] [--architecture joint] [--hint 0.9]

Each of four tiny models (random weights, no download) answers a cue of its own; the team earns 1
when the third one is right. The critic reads each agent's text by itself, so its context of 24
tokens is enough. With `--architecture joint` it would read all four prompts as one text, which
does not fit: that run ends with an error that says so. With `--hint 0.9` the agents are guided:
they are told what is right, with that weight at first and with none in the end. Prints the mean
reward before and after; about 20 seconds on a CPU.
"""

import argparse
import itertools

from marlogue import MAACConfig, MAACTrainer, tiny_model
from marlogue.agents import Critic
from marlogue.envs.coordination_v0 import ANSWERS, first_word

AGENTS, MATTERS = 4, 2
FILLER = ("please", "name", "the", "colour", "of")
LABELS = ("[Agent", "0]", "1]", "2]", "3]")
WORDS = (*FILLER, *ANSWERS, *ANSWERS.values(), *LABELS)
ROWS = [{"cues": list(cues)} for cues in itertools.product(ANSWERS, repeat=AGENTS)]


def prompt_of(agent):
    return lambda item: " ".join((*FILLER, item["cues"][agent]))


def reward(*texts, batch_items):
    """One list of texts per agent; only the third one's are looked at."""
    right = ANSWERS[batch_items[0]["cues"][MATTERS]]
    return [float(first_word(text) == right) for text in texts[MATTERS]]


def hint(state, actions, infos):
    """Guidance: an advantage for each agent's answer. `state` has the prompts."""
    cues = {agent: prompt.split()[-1] for agent, prompt in state.items()}
    return {agent: first_word(actions[agent]) == ANSWERS[cues[agent]] for agent in actions}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--architecture", choices=("attention", "joint"), default="attention")
    parser.add_argument("--hint", type=float, help="weight of the guidance at first; none without")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    models = [tiny_model(WORDS, seed=10 * options.seed + k) for k in range(AGENTS)]
    critic = tiny_model(WORDS, seed=10 * options.seed + AGENTS, n_positions=24)
    attends = options.architecture == "attention"
    trainer = MAACTrainer(
        agents=[model for model, _ in models],
        tokenizer=models[0][1],
        critic_model=Critic(*critic),
        train_dataset=ROWS,
        eval_dataset=ROWS[::5],
        reward_func=reward,
        formatters=[prompt_of(agent) for agent in range(AGENTS)],
        guidance=None if options.hint is None else hint,
        args=MAACConfig(
            num_agents=AGENTS,
            critic_architecture=options.architecture,
            credit="agent" if attends else "team",
            critic_type="q" if attends else "v",
            critic_update="joint",  # each text is read once for all agents
            guidance_weight={"start": options.hint or 0.0, "end": 0.0},
            num_train_epochs=options.epochs,
            rollout_buffer_size=64,
            agent_learning_rate=4e-3,
            critic_learning_rate=4e-3,
            max_new_tokens=1,
            shuffle=True,
            seed=options.seed,
            eval_interval=0,
            eval_num_samples=len(ROWS[::5]),
            eval_batch_size=64,
            eval_temperature=0,
            verbose=False,
        ),
    )
    before = trainer.evaluate()["eval/team/turn_1/reward_mean"]
    trainer.train()
    after = trainer.evaluate()["eval/team/turn_1/reward_mean"]
    print(f"mean reward before {before:.3f}, after {after:.3f} ({trainer.updates} updates)")


if __name__ == "__main__":
    main()
