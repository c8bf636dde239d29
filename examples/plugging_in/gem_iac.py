"""An agent learns a game of gem with IAC.

    pip install "marlogue[gem]"
    python examples/plugging_in/gem_iac.py [--max_steps 600]

Gem has picked a number from 1 to 10, and says "higher" or "lower" to a guess in \\boxed{}. Four
guesses are allowed; a right one earns 1, the last one more the nearer it is. A text without a guess
ends the game at -0.1, and that is what a model of random weights mostly says at first. Prints the
mean return before and after; about 20 CPU seconds.
"""

import argparse

from marlogue import IACConfig, IACTrainer, tiny_model
from marlogue.wrappers.gem import gem_env

GUESSES = [rf"\boxed{{{number}}}" for number in range(1, 11)]
WORDS = [*GUESSES, "At", "turn", "1,", "2,", "3,", "you", "guessed", "target", "higher", "lower"]
TURNS = 4


def total(samples):
    """A figure of one episode: what it paid."""
    return {"return": sum(sample.reward for sample in samples)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max_steps", type=int, default=600, help="games to train on")
    options = parser.parse_args()

    model, tokenizer = tiny_model(WORDS, n_layer=1, n_positions=256)
    trainer = IACTrainer(
        agents=[model],
        tokenizer=tokenizer,
        env=gem_env("game:GuessTheNumber-v0-easy"),
        eval_env=gem_env("game:GuessTheNumber-v0-easy"),
        args=IACConfig(
            use_separate_critic=False,  # a value head on the model itself
            num_turns=TURNS,
            max_steps=options.max_steps,
            rollout_buffer_size=32,
            agent_learning_rate=2e-3,
            max_new_tokens=1,
            eval_interval=0,
            eval_num_samples=100,
            eval_batch_size=100,
            verbose=False,
        ),
        metrics_callback=total,
    )
    before = trainer.evaluate()["eval/return"]
    trainer.train()
    after = trainer.evaluate()["eval/return"]
    print(f"mean return before: {before:.2f}")
    print(f"mean return after:  {after:.2f}")


if __name__ == "__main__":
    main()
