"""Training once with either library, with the clock on its phases.

The clock hangs at the same places of both: the call that generates (ours: the policy's
``backend.generate``; the peer: the model's ``generate``), the one that collects rollouts, and the
one that updates. Models are loaded, trainers built, and a small run of another trainer made (what
is imported or set up at first use) before it starts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from cases import NUM_AGENTS, Case, Variant
from meter import Meter, peak_memory
from torch.optim.optimizer import register_optimizer_step_post_hook
from work import formatter, make_rows, make_transition, models_for, reward

LEARNING_RATE = 5e-6


class Counter:
    """Counts what was done, to see that both sides did the same."""

    def __init__(self) -> None:
        self.optimizer_steps = 0
        self.lengths: set[int] = set()
        self.new_tokens = 0
        self.prompt_tokens = 0
        register_optimizer_step_post_hook(self._step)

    def add(self, prompt_tokens: int, new_tokens: int) -> None:
        """Count a completion."""
        self.prompt_tokens += prompt_tokens
        self.new_tokens += new_tokens
        self.lengths.add(new_tokens)

    def _step(self, *_: Any) -> None:
        self.optimizer_steps += 1

    def check(self, case: Case) -> None:
        """See that all completions have the forced length.

        Raises:
            RuntimeError: when they don't, and times would not compare.
        """
        if self.lengths != {case.new_tokens} or self.new_tokens != case.new_token_count:
            raise RuntimeError(
                f"{self.new_tokens} tokens were generated, in completions of {self.lengths}; "
                f"{case.new_token_count} were to be, in completions of {case.new_tokens}."
            )


def common_arguments(case: Case, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Trainer arguments that both libraries take."""
    return {
        "reward_func": reward,
        "formatters": [formatter(agent) for agent in range(NUM_AGENTS)],
        "external_transition": make_transition(rows) if case.turns > 1 else None,
    }


def common_config(case: Case) -> dict[str, Any]:
    """Config fields that both libraries have."""
    config = {
        "num_agents": NUM_AGENTS,
        "num_turns": case.turns,
        "num_generations": case.generations,
        "num_train_epochs": case.epochs,
        "agent_learning_rate": LEARNING_RATE,
        "critic_learning_rate": LEARNING_RATE,
        "rollout_buffer_size": case.buffer,
        "max_new_tokens": case.new_tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "external_prompt_passthrough": True,
        "early_termination_threshold": None,
        "eval_interval": 0,
    }
    if case.learner != "maac":
        config["use_separate_critic"] = case.learner == "iac"
    return config


def build_peer(case: Case, on_rollouts: Any = None) -> Any:
    """The peer's trainer of a case."""
    from comlrl.trainers.actor_critic import IACConfig, IACTrainer, MAACConfig, MAACTrainer
    from datasets import Dataset  # type: ignore[import-untyped]

    agents, critics, tokenizer = models_for(case)
    for model in agents:
        model.generation_config.min_new_tokens = case.new_tokens
    config, trainer = (
        (MAACConfig, MAACTrainer) if case.learner == "maac" else (IACConfig, IACTrainer)
    )
    rows = make_rows(case, tokenizer)
    built = trainer(
        # top_k=0 is none; its None would mean the 50 of a checkpoint without a word about it.
        args=config(**common_config(case), top_k=0),
        agents=agents,
        critics=critics or None,
        tokenizer=tokenizer,
        train_dataset=Dataset.from_list(rows),
        metrics_callback=on_rollouts,
        **common_arguments(case, rows),
    )
    built.verbose = False
    return built


def build_ours(case: Case, variant: Variant, agents: Any = None, **arguments: Any) -> Any:
    """Our trainer of a case, with policies of one's own where ``agents`` is given."""
    from marlogue.algorithms import IACConfig, IACTrainer, MAACConfig, MAACTrainer

    models, critics, tokenizer = models_for(case)
    config: dict[str, Any] = {
        **common_config(case),
        "min_new_tokens": case.new_tokens,
        "dtype": variant.dtype,
        "verbose": False,
    }
    args: Any
    trainer: Any
    if case.learner == "maac":
        config["critic_update"] = variant.critic_update
        args, trainer = MAACConfig(**config), MAACTrainer
    else:
        args, trainer = IACConfig(**config), IACTrainer
    rows = make_rows(case, tokenizer)
    return trainer(
        args=args,
        agents=agents or models,
        critics=critics or None,
        tokenizer=tokenizer,
        train_dataset=rows,
        **common_arguments(case, rows),
        **arguments,
    )


def train_peer(case: Case) -> dict[str, Any]:
    """Train with the peer; times, memory and counts."""
    build_peer(_warm_up(case)).train()
    counter = Counter()

    def count(rollouts: Sequence[Any]) -> dict[str, float]:
        for rollout in rollouts:
            counter.add(rollout.prompt_len, rollout.response_len)
        return {}

    trainer = build_peer(case, count)
    meter = Meter()
    for agent in trainer.agents:
        agent.model.generate = meter.timed("generation", agent.model.generate)
    trainer._collect_rollouts = meter.timed("collection", trainer._collect_rollouts)
    trainer._update = meter.timed("update", trainer._update)
    return _train(case, trainer, meter, counter)


def train_ours(case: Case, variant: Variant) -> dict[str, Any]:
    """Train with this library; times, memory and counts."""
    from marlogue.algorithms import Callback

    build_ours(_warm_up(case), variant).train()
    counter = Counter()

    class Count(Callback):
        def on_item(self, trainer: Any, samples: Sequence[Any]) -> None:
            for sample in samples:
                counter.add(len(sample.prompt_ids), len(sample.completion_ids))

    trainer = build_ours(case, variant, callbacks=[Count()])
    meter = Meter()
    for agent in trainer.agents:
        agent.backend.generate = meter.timed("generation", agent.backend.generate)
    trainer._collect = meter.timed("collection", trainer._collect)
    trainer._update = meter.timed("update", trainer._update)
    return _train(case, trainer, meter, counter)


def _warm_up(case: Case) -> Case:
    return replace(case, model="tiny", prompts=2, prompt_tokens=4, new_tokens=2, buffer=2, epochs=1)


def _train(case: Case, trainer: Any, meter: Meter, counter: Counter) -> dict[str, Any]:
    loaded = peak_memory()
    meter.timed("total", trainer.train)()
    counter.check(case)
    return {
        **meter.result(),
        "peak_gb": peak_memory(),
        "loaded_gb": loaded,
        "new_tokens": counter.new_tokens,
        "prompt_tokens": counter.prompt_tokens,
        "optimizer_steps": counter.optimizer_steps,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
    }
