"""A callback that keeps the best team, and a metric of one's own.

    python examples/extending/callback.py [--output_dir runs/best]

`KeepBest` saves the team whenever an evaluation is the best so far. `agreement` is a metrics
callback: it is called with each row's samples once they have been learnt from, and what it returns
is logged (for evaluated rows under `eval/`). From YAML: `callbacks: [{name: callback.KeepBest,
kwargs: {folder: runs/best}}]` and `metrics_callback: callback.agreement`.
"""

import argparse

from marlogue import MAACConfig, MAACTrainer, tiny_model
from marlogue.algorithms import Callback, load_team
from marlogue.envs import coordination_v0

WORDS = coordination_v0.VOCABULARY


class KeepBest(Callback):
    """Saves the team with the best evaluation."""

    def __init__(self, folder, metric="eval/team/turn_1/reward_mean"):
        self.folder = folder
        self.metric = metric
        self.best = float("-inf")

    def on_evaluation(self, trainer, metrics):
        if metrics[self.metric] > self.best:
            self.best = metrics[self.metric]
            trainer.save_model(self.folder)
            print(f"update {trainer.updates:3d}: {self.metric} {self.best:.3f}, saved")


def agreement(samples):
    """Share of an item's joint answers in which all agents said the same."""
    answers = {}
    for sample in samples:
        answers.setdefault((sample.generation_idx, sample.turn_idx), set()).add(sample.completion)
    return {"agreement": sum(len(said) == 1 for said in answers.values()) / len(answers)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output_dir", default="runs/best")
    parser.add_argument("--max_steps", type=int, default=200)
    options = parser.parse_args()

    models = [tiny_model(WORDS, seed=seed) for seed in (1, 2, 3)]
    env = coordination_v0.parallel_env()
    keep_best = KeepBest(options.output_dir)
    trainer = MAACTrainer(
        agents=[models[0][0], models[1][0]],
        tokenizer=models[0][1],
        critic_model=models[2][0],
        env=env,
        eval_env=env,
        callbacks=[keep_best],
        metrics_callback=agreement,
        args=MAACConfig(
            max_steps=options.max_steps,
            num_generations=16,
            rollout_buffer_size=64,
            agent_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            max_new_tokens=1,
            eval_interval=40,
            eval_temperature=0,
            verbose=False,
        ),
    )
    trainer.train()
    print(f"agreement in the last evaluation: {trainer.evaluate()['eval/agreement']:.2f}")
    print(f"the best of {keep_best.best:.3f} has {len(load_team(options.output_dir))} agents")


if __name__ == "__main__":
    main()
