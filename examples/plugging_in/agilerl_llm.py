"""AgileRL's GRPO trains a language model to agree with a partner that knows the words.

    pip install "marlogue[agilerl-llm]"
    python examples/plugging_in/agilerl_llm.py

AgileRL's harness for language models takes one agent, texts in and texts out; the other agent is a
frozen function here. Prints the mean return, 1 at most, before and after; about a minute.
"""

import torch
from agilerl.algorithms import GRPO
from agilerl.training.llm.rollout import train_llm_rollout
from peft import LoraConfig

from marlogue.agents import tiny_model
from marlogue.envs import coordination_v0
from marlogue.wrappers.agilerl_llm import harness_maker


def main() -> None:
    torch.manual_seed(0)
    # GRPO trains adapters only, which get nowhere in a model whose random weights are small.
    model, tokenizer = tiny_model(coordination_v0.VOCABULARY, initializer_range=0.2)
    make_harness = harness_maker(
        coordination_v0.parallel_env(),
        tokenizer,
        others=coordination_v0.ANSWERS.__getitem__,  # the partner: cue to word
        apply_chat_template=False,
    )
    grpo = GRPO(
        pad_token_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
        actor_network=model,
        lora_config=LoraConfig(
            r=16, lora_alpha=32, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True
        ),
        batch_size=8,  # groups per update
        group_size=16,
        lr=1e-2,
        beta=0.0,
        max_grad_norm=1.0,
        temperature=1.0,
        top_k=0,
        max_output_tokens=1,
        min_output_tokens=1,
        max_model_len=64,
        use_separate_reference_adapter=False,
        use_liger_loss=False,
        gradient_checkpointing=False,
        offload_trainer_during_rollout=False,
        device="cpu",
    )
    before = grpo.test(make_harness(), loop=64)
    train_llm_rollout(
        [grpo],
        max_turns=1,
        env_factory=make_harness,
        max_steps=20 * 8 * 16,
        evaluation_interval=100,
        verbose=False,
    )
    print(f"mean return before: {before:.2f}")
    print(f"mean return after: {grpo.test(make_harness(), loop=64):.2f}")


if __name__ == "__main__":
    main()
