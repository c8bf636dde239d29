"""Samples that MAAC's critics need where only one of four agents matters.

    OMP_NUM_THREADS=1 python benchmarks/attention_credit.py [--seeds 0,1,2] [--json FILE]

Four agents (GPT-2 of 1 layer, random weights) each get a prompt of another length: a stake ("low"
or "high"), up to 8 words that mean nothing, and a cue. Only the third one matters: the reward is 1
when it names the colour of its cue, less or more by `--offset` as its stake is low or high. The
offset is noise for the actors unless the critic has learnt to read that one stake.

Prints, for each critic and seed, after how many joint samples the share of right answers over the
last 256 samples is `--level`, and how much of the targets' variance the third agent's value
explains on the way; then the same team with a critic of a short context. Without a level reached
the figure is the number of samples that was played, with ">".
"""

import argparse
import json
import random
import time
from contextlib import suppress

import numpy as np

from marlogue import MAACConfig, MAACTrainer, tiny_model
from marlogue.agents import Critic
from marlogue.algorithms import Callback
from marlogue.envs.coordination_v0 import ANSWERS, first_word

AGENTS, MATTERS = 4, 2
STAKES = {"low": -1.0, "high": 1.0}
FILLER = ("so", "then", "also")
LABELS = ("[Agent", "0]", "1]", "2]", "3]", "[Joint", "Action]", "action]")
WORDS = (*STAKES, *FILLER, *ANSWERS, *ANSWERS.values())
#: Name to architecture, credit and critic type.
CRITICS = {
    "joint prompt, V": ("joint", "team", "v"),
    "attention, V_i": ("attention", "agent", "v"),
    "attention, b_i": ("attention", "agent", "q"),
    "attention, team V": ("attention", "team", "v"),
}


class LevelReachedError(Exception):
    """There is nothing left to measure."""


class Watch(Callback):
    """Share of right answers of the agent that matters, update by update."""

    def __init__(self, level, window=4):
        self.level, self.window = level, window
        self.samples, self.right, self.explained = [], [], []
        self.played, self.reached = 0, None

    def on_item(self, trainer, samples):
        """Keep what the agent that matters said."""
        self.samples += [sample for sample in samples if sample.agent_idx == MATTERS]
        self.played += 1

    def on_update(self, trainer):
        """Note the figures, and stop at the level."""
        right = [first_word(s.completion) == s.item["answer"] for s in self.samples]
        targets = np.array([s.target for s in self.samples])
        errors = targets - [s.value for s in self.samples]
        self.right.append(float(np.mean(right)))
        self.explained.append(float(1 - errors.var() / max(targets.var(), 1e-9)))
        self.samples = []
        recent = self.right[-self.window :]
        if len(recent) == self.window and np.mean(recent) >= self.level:
            self.reached = self.played
            raise LevelReachedError


def rows(seed, count):
    """Prompts of different lengths, with a stake first and a cue last."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        stakes = [draw.choice(list(STAKES)) for _ in range(AGENTS)]
        cues = [draw.choice(list(ANSWERS)) for _ in range(AGENTS)]
        prompts = [
            " ".join([stake, *draw.choices(FILLER, k=draw.randint(0, 8)), cue])
            for stake, cue in zip(stakes, cues, strict=True)
        ]
        answer, stake = ANSWERS[cues[MATTERS]], STAKES[stakes[MATTERS]]
        made.append({"prompts": prompts, "answer": answer, "stake": stake})
    return made


def make_trainer(name, seed, *, updates, offset, watch, critic_lr=5e-3, n_positions=256):
    """A team with one of `CRITICS`, everything else alike."""
    architecture, credit, critic_type = CRITICS[name]

    def reward(*texts, batch_items):
        row = batch_items[0]
        return [
            float(first_word(text) == row["answer"]) + offset * row["stake"]
            for text in texts[MATTERS]
        ]

    models = [tiny_model(WORDS, seed=10 * seed + k, n_layer=1) for k in range(AGENTS)]
    critic = tiny_model((*WORDS, *LABELS), seed=10 * seed + AGENTS, n_positions=n_positions)
    return MAACTrainer(
        agents=[model for model, _ in models],
        tokenizer=models[0][1],
        critic_model=Critic(*critic),
        train_dataset=rows(seed, 64 * updates),
        reward_func=reward,
        formatters=[lambda item, k=k: item["prompts"][k] for k in range(AGENTS)],
        callbacks=[watch],
        args=MAACConfig(
            num_agents=AGENTS,
            critic_architecture=architecture,
            credit=credit,
            critic_type=critic_type,
            critic_update="joint",
            rollout_buffer_size=64,
            train_batch_size=16,
            agent_learning_rate=1.5e-3,
            critic_learning_rate=critic_lr,
            max_new_tokens=1,
            seed=seed,
            eval_interval=0,
            verbose=False,
        ),
    )


def measure(name, seed, *, level, **settings):
    """Train with the settings of `make_trainer`; returns the figures of the run."""
    watch = Watch(level)
    trainer = make_trainer(name, seed, watch=watch, **settings)
    started = time.process_time()
    with suppress(LevelReachedError):
        trainer.train()
    return {
        "critic": name,
        "seed": seed,
        "samples": watch.reached,
        "played": watch.played,
        "right": watch.right,
        "explained": watch.explained,
        "cpu_seconds": time.process_time() - started,
    }


def line(run):
    samples = run["samples"] or f">{run['played']}"
    curve = " ".join(f"{value:.2f}" for value in run["right"][::8])
    read = " ".join(f"{value:.2f}" for value in run["explained"][::8])
    return (
        f"{run['critic']:18} seed {run['seed']}: {samples!s:>6} samples, "
        f"{run['cpu_seconds']:.0f} CPU s | right {curve} | explained {read}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--critics", default="joint prompt, V;attention, V_i;attention, b_i")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--updates", type=int, default=96, help="of 64 joint samples, at most")
    parser.add_argument("--level", type=float, default=0.8)
    parser.add_argument("--offset", type=float, default=1.0)
    parser.add_argument("--critic-lr", type=float, default=5e-3)
    parser.add_argument("--context", type=int, default=24, help="of the critic that is too short")
    parser.add_argument("--json", help="file for every figure")
    options = parser.parse_args()

    runs = []
    same = {name: getattr(options, name) for name in ("updates", "offset", "level", "critic_lr")}
    for seed in map(int, options.seeds.split(",")):
        for name in options.critics.split(";"):
            runs.append(measure(name, seed, **same))
            print(line(runs[-1]), flush=True)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump(runs, file)
    print(f"with a critic whose context is {options.context} tokens:")
    for name in ("joint prompt, V", "attention, V_i"):
        try:
            run = measure(name, 0, **{**same, "updates": 8}, n_positions=options.context)
            print(f"{name:18} trains: {run['played']} samples")
        except ValueError as error:
            print(f"{name:18} {error}")


if __name__ == "__main__":
    main()
