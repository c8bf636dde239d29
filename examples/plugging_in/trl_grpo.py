"""TRL's GRPO on a text environment: one model plays both agents and learns to agree with itself.

    pip install "marlogue[trl]"
    python examples/plugging_in/trl_grpo.py [--steps 120] [--frozen]

Two agents see a cue and have to say the same word. TRL generates and learns as always; `Rollouts`
plays whole episodes with its model, and `episode_reward` reads what they earned. With `--frozen`
the second agent is a function that knows the words. Returns are means over 256 episodes, 1 at most.
"""

import argparse
import os
import tempfile
from pathlib import Path

from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from marlogue.agents import tiny_model
from marlogue.envs import coordination_v0
from marlogue.wrappers.trl import Rollouts, dataset, episode_reward

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func is an experimental argument of TRL


def settings(folder, steps):
    return GRPOConfig(
        str(folder / "out"),
        max_steps=steps,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=32,
        per_device_eval_batch_size=32,
        num_generations=8,  # episodes of one row that are compared with each other
        max_completion_length=1,  # tokens of an answer
        logging_steps=steps,
        save_strategy="no",
        report_to="none",
        bf16=False,
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=120, help="updates")
    parser.add_argument("--frozen", action="store_true", help="learn beside a frozen agent")
    options = parser.parse_args()

    env = coordination_v0.parallel_env()
    others = {"agent_1": coordination_v0.ANSWERS.get} if options.frozen else None
    rows = dataset(env, ["agent_0"] if options.frozen else None)
    model, tokenizer = tiny_model(coordination_v0.VOCABULARY)  # any model; TRL loads it by name
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder / "model")
        trainer = GRPOTrainer(
            model=str(folder / "model"),
            processing_class=tokenizer,
            reward_funcs=episode_reward,
            train_dataset=rows,
            eval_dataset=dataset(env, ["agent_0"]).repeat(8),
            rollout_func=Rollouts(env, others),
            args=settings(folder, options.steps),
        )
        trainer.remove_callback(PrinterCallback)
        print(f"mean return before: {trainer.evaluate()['eval_reward']:.3f}")
        trainer.train()
        print(f"mean return after:  {trainer.evaluate()['eval_reward']:.3f}")


if __name__ == "__main__":
    main()
