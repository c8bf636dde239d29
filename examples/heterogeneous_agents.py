"""A team of different models: each agent has its own architecture, vocabulary and tokenizer.

    python examples/heterogeneous_agents.py [--max_steps 400]

A small GPT-2 and a small Llama (random weights, no download) play the coordination task with IAC.
Each critic is a model of its own again; the second agent's critic has another vocabulary than the
agent, and so reads the text in its own tokens. Prints the mean reward before and after; about 20
seconds on a CPU. Identifiers mix as well: agents=["smollm2", "some-org/another-model"].
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from marlogue import IACConfig, IACTrainer, tiny_model
from marlogue.agents import Critic
from marlogue.envs import coordination_v0

WORDS = coordination_v0.VOCABULARY


def small_llama(tokenizer, seed):
    """A Llama of 2 layers whose vocabulary is the tokenizer's."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=128,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max_steps", type=int, default=400)
    options = parser.parse_args()

    gpt2, forwards = tiny_model(WORDS, seed=1)
    _, backwards = tiny_model(tuple(reversed(WORDS)), seed=2, n_embd=16)
    llama = small_llama(backwards, seed=2)
    first_critic, _ = tiny_model(WORDS, seed=3)
    second_critic, alphabetical = tiny_model(sorted(WORDS), seed=4)

    env = coordination_v0.parallel_env()
    trainer = IACTrainer(
        agents=[gpt2, llama],
        tokenizer=[forwards, backwards],
        critics=[first_critic, Critic(second_critic, alphabetical)],
        env=env,
        eval_env=env,
        args=IACConfig(
            max_steps=options.max_steps,
            num_generations=16,
            rollout_buffer_size=64,
            agent_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            max_new_tokens=1,
            eval_interval=0,
            eval_temperature=0,
            verbose=False,
        ),
    )
    for agent, tokenizer in zip(trainer.agents, (forwards, backwards), strict=True):
        name = type(agent.model).__name__
        print(f"{name} reads 'dawn red' as {tokenizer('dawn red')['input_ids']}")
    before = trainer.evaluate()["eval/team/turn_1/reward_mean"]
    trainer.train()
    after = trainer.evaluate()["eval/team/turn_1/reward_mean"]
    print(f"mean reward before {before:.3f}, after {after:.3f}")


if __name__ == "__main__":
    main()
