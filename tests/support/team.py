"""A small real team and a task for it, for tests of the learners."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from marlogue.agents import tiny_model
from marlogue.algorithms import (
    Callback,
    IACConfig,
    IACTrainer,
    MAACConfig,
    MAACTrainer,
    Sample,
)

#: The words of the task, and those of the text that the centralised critic reads.
VOCABULARY = (
    *("go", "again", "a", "b", "c", "x", "y", "z"),
    *("[Agent", "0]", "1]", "[Joint", "Action]", "action]"),
)
KINDS = ("maac", "separate", "shared")


def rows(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"go {'xyz'[k % 3]} {'abc'[k // 3 % 3]}"} for k in range(count)]


def reward_of(first: str, second: str) -> list[float]:
    """Each agent's reward: its own words, and the letters a and b of the team."""
    team = 1.5 * (first + second).count("a") - (first + second).count("b")
    return [0.5 * len(first.split()) + team, 0.25 * len(second.split()) - team]


def reward(first: Sequence[str], second: Sequence[str]) -> list[list[float]]:
    return [reward_of(a, b) for a, b in zip(first, second, strict=True)]


def again(prompt_history_per_agent: Any, agent_completions: Sequence[str]) -> list[str]:
    """Show each agent its prompt again, with what the other one said."""
    shown = [history[-1] for history in prompt_history_per_agent]
    return [f"{shown[k]} again {agent_completions[1 - k]}" for k in range(2)]


def model(seed: int) -> Any:
    """A model over `VOCABULARY`, with weights large enough for every input to matter."""
    made, _ = tiny_model(VOCABULARY, seed=seed, n_embd=16, n_layer=1, n_positions=256)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    return made


def tokenizer() -> Any:
    return tiny_model(VOCABULARY, n_embd=2, n_layer=1)[1]


def make_trainer(kind: str, **changes: Any) -> Any:
    """A trainer of one of `KINDS` on the task. Names of the trainer's own arguments replace them,
    all others are fields of its configuration."""
    own = {
        "agents": [model(1), model(2)],
        "tokenizer": tokenizer(),
        "reward_func": reward,
        "external_transition": again,
        "train_dataset": rows(4),
    }
    if kind == "maac":
        own["critic_model"] = model(3)
    elif kind == "separate":
        own["critics"] = [model(3), model(4)]
    arguments = (
        *("critics", "critic_model", "agent_model", "eval_dataset", "env", "eval_env", "callbacks"),
        *("metrics_callback", "logdir", "model_config", "joint_formatter", "formatters"),
        *("reward_processor", "wandb_config", "guidance"),
    )
    for name in list(changes):
        if name in own or name in arguments:
            own[name] = changes.pop(name)
            if name == "env":
                for replaced in ("reward_func", "external_transition", "train_dataset"):
                    own.pop(replaced, None)
    settings = {
        "max_new_tokens": 4,
        "agent_learning_rate": 1e-2,
        "critic_learning_rate": 2e-2,
        "rollout_buffer_size": 4,
        "eval_interval": 0,
        "verbose": False,
        **changes,
    }
    if kind == "maac":
        return MAACTrainer(args=MAACConfig(**settings), **own)
    if kind == "shared":
        settings["use_separate_critic"] = False
    return IACTrainer(args=IACConfig(**settings), **own)


def weights(trainer: Any) -> dict[str, Any]:
    """A copy of every weight that a trainer trains, by name."""
    parts = {}
    for k, agent in enumerate(trainer.agents):
        parts[f"agent {k}"] = agent.model
        if agent.value_head is not None:
            parts[f"agent {k} head"] = agent.value_head
    for k, critic in enumerate(trainer.critics):
        parts[f"critic {k}"] = critic.model
        parts[f"critic {k} head"] = critic.value_head
    return {
        f"{part} {name}": tensor.detach().clone()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }


class Recorder(Callback):
    """Remembers the samples of each item, and which were collected before which update."""

    def __init__(self) -> None:
        self.items: list[list[Sample]] = []
        self.updates: list[list[Sample]] = []
        self.events: list[Any] = []
        self._open: list[Sample] = []

    def on_train_start(self, trainer: Any) -> None:
        self.events.append("start")

    def on_item(self, trainer: Any, samples: Sequence[Sample]) -> None:
        self.events.append("item")
        self.items.append(list(samples))
        self._open += samples

    def on_update(self, trainer: Any) -> None:
        self.events.append("update")
        self.updates.append(self._open)
        self._open = []

    def on_evaluation(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.events.append("evaluation")

    def on_train_end(self, trainer: Any) -> None:
        self.events.append("end")


def twin(part: Any) -> Any:
    """A deep copy, as it is now."""
    return copy.deepcopy(part)
