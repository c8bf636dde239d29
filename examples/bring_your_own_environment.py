"""An environment that knows nothing of Marlogue, trained with MAAC.

    python examples/bring_your_own_environment.py [--max_steps 600]

`Rendezvous` is an ordinary PettingZoo `ParallelEnv` whose observations and actions are texts: two
walkers in a row of rooms hear where both are, and say "left", "right" or "stay"; the team earns 1
when they meet. It has no dataset, so a training item is a seed for `reset`, and `max_steps` says
how many. An episode that is cut off by its turn limit is *truncated*: its value is bootstrapped.
Prints how often the walkers meet within the limit before and after; about 20 seconds on a CPU.
"""

import argparse

import numpy as np
from pettingzoo import ParallelEnv

from marlogue import MAACConfig, MAACTrainer, check_text_env, tiny_model
from marlogue.envs import UnicodeText

ROOMS = ("red", "green", "blue", "white", "black")
MOVES = {"left": -1, "stay": 0, "right": 1}
TURNS = 3


class Rendezvous(ParallelEnv):
    metadata = {"name": "rendezvous_v0", "render_modes": []}
    render_mode = None

    def __init__(self):
        self.possible_agents = ["ann", "bob"]
        self.agents = []
        # Like gymnasium's Text, but it contains whatever a language model may say.
        self.observation_spaces = {agent: UnicodeText(100) for agent in self.possible_agents}
        self.action_spaces = {agent: UnicodeText(10_000) for agent in self.possible_agents}
        self.random = np.random.default_rng()

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.turn = 0
        rooms = self.random.choice(len(ROOMS), size=2, replace=False)
        self.rooms = dict(zip(self.agents, rooms.tolist(), strict=True))
        return self.prompts(), {agent: {} for agent in self.agents}

    def step(self, actions):
        if not self.agents:
            raise RuntimeError("the episode is over; call reset first")
        self.turn += 1
        for agent, said in actions.items():
            step = MOVES.get(said.strip(), 0)
            self.rooms[agent] = min(max(self.rooms[agent] + step, 0), len(ROOMS) - 1)
        met = self.rooms["ann"] == self.rooms["bob"]
        cut_off = not met and self.turn == TURNS
        acted, self.agents = self.agents, [] if met or cut_off else self.agents
        return (
            self.prompts(),
            dict.fromkeys(acted, float(met)),
            dict.fromkeys(acted, met),
            dict.fromkeys(acted, cut_off),
            {agent: {} for agent in acted},
        )

    def prompts(self):
        ann, bob = ROOMS[self.rooms["ann"]], ROOMS[self.rooms["bob"]]
        return {"ann": f"you {ann} friend {bob}", "bob": f"you {bob} friend {ann}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max_steps", type=int, default=3000, help="episodes to train on")
    options = parser.parse_args()

    check_text_env(Rendezvous())
    words = (*ROOMS, *MOVES, "you", "friend")
    models = [tiny_model(words, seed=seed) for seed in range(3)]
    trainer = MAACTrainer(
        agents=[models[0][0], models[1][0]],
        critic_model=models[2][0],
        tokenizer=models[0][1],
        env=Rendezvous(),
        eval_env=Rendezvous(),
        args=MAACConfig(
            num_turns=TURNS,  # no episode is longer
            max_steps=options.max_steps,
            rollout_buffer_size=96,
            agent_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            discount=0.9,  # sooner is better
            max_new_tokens=1,
            eval_interval=0,
            eval_num_samples=40,
            eval_batch_size=40,
            verbose=False,
        ),
        metrics_callback=met,
    )
    before = trainer.evaluate()["eval/met"]
    trainer.train()
    after = trainer.evaluate()["eval/met"]
    print(f"share of episodes in which they meet: before {before:.2f}, after {after:.2f}")


def met(samples):
    """A figure of one episode, logged beside the built-in ones."""
    return {"met": max(sample.reward for sample in samples)}


if __name__ == "__main__":
    main()
