"""Two agents learn a game of TextArena with MAAC.

    pip install "marlogue[textarena]"
    python examples/plugging_in/textarena_maac.py [--max_steps 150]

In the market entry game each of two players sends a message, and then enters ([E]) or stays out
([S]). Both are rewarded with 1 when their scores are equal; what is no decision is refused until,
after three of them, the player is out. The agents start as models of random weights that say
anything. Prints the mean return, at most 1, before and after; about 25 CPU seconds.
"""

import argparse

from marlogue import MAACConfig, MAACTrainer, tiny_model
from marlogue.wrappers.textarena import textarena_env

WORDS = ["[E]", "[S]", "Player", "Market", "Conversation", "Decision", "phase:", "invalid", "move."]
MOVES = 12  # the game has no end while a player says nothing that counts


def market():
    return textarena_env(
        "MarketEntryGame-v0-train",
        num_players=2,
        num_rounds=1,  # this and the next one are arguments of the game
        communication_turns=1,
        truncate_after=MOVES,
    )


def mean_return(samples):
    """A figure of one episode; the players' rewards come at its end."""
    return {"return": sum(sample.reward for sample in samples) / 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max_steps", type=int, default=150, help="games to train on")
    options = parser.parse_args()

    models = [tiny_model(WORDS, seed=seed, n_layer=1, n_positions=1500) for seed in range(3)]
    trainer = MAACTrainer(
        agents=[models[0][0], models[1][0]],
        critic_model=models[2][0],
        tokenizer=models[0][1],
        env=market(),
        eval_env=market(),
        args=MAACConfig(
            num_turns=MOVES,
            max_steps=options.max_steps,
            rollout_buffer_size=32,
            agent_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            max_new_tokens=1,
            eval_interval=0,
            eval_num_samples=40,
            eval_batch_size=40,
            verbose=False,
        ),
        metrics_callback=mean_return,
    )
    before = trainer.evaluate()["eval/return"]
    trainer.train()
    after = trainer.evaluate()["eval/return"]
    print(f"mean return before: {before:.2f}")
    print(f"mean return after:  {after:.2f}")


if __name__ == "__main__":
    main()
