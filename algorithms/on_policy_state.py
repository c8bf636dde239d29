"""The state of MAAC's and IAC's training: what it depends on from here on, on disk.

``team`` is a saved team (:mod:`marlogue.algorithms.saving`), ``optimizers`` has a safetensors file
for each optimiser, and ``state.json`` the rest. Nothing in a folder is run when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from marlogue.algorithms.judges import Values
from marlogue.algorithms.keeping_config import settings_of
from marlogue.algorithms.open_update import OpenUpdate
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.run_description import description, of_model, of_rows
from marlogue.algorithms.sample_table import SampleTable
from marlogue.algorithms.saving import load_weights, save_team
from marlogue.envs import TextEnv
from marlogue.envs.callbacks import callback_name
from marlogue.envs.text_env import text_env_inside

if TYPE_CHECKING:
    from marlogue.algorithms.on_policy import OnPolicyTrainer

#: Fields of the configuration without which a checkpoint makes no sense. The others (schedules,
#: sizes of batches, logging, devices, ...) may change when a run goes on.
TRAINED = (
    *("num_agents", "num_turns", "critic_type", "shuffle", "seed", "reference_kl_enabled"),
    *("critic_architecture", "credit", "attention_heads", "critic_update"),
    *("use_separate_critic", "critic_value_head_hidden_dim", "value_head_hidden_dim"),
)
_STATE = "state.json"


def describe(trainer: OnPolicyTrainer) -> dict[str, Any]:
    """What is trained, and how."""
    args = asdict(trainer.args)
    trained = {name: args[name] for name in TRAINED if name in args}
    inner = text_env_inside(trainer.environments.train)
    return description(
        {
            "algorithm": type(trainer).__name__,
            **trained,
            "agents": trainer.environments.agents,
            "models of the agents": [of_model(agent.model) for agent in trainer.agents],
            "models of the critics": [of_model(critic.model) for critic in trainer.critics],
            "dataset": "an environment's own" if inner is None else of_rows(inner.task.rows),
        },
        {
            **settings_of(trained, args),
            "model_config": trainer.model_config,
            "environment": _names(trainer),
        },
    )


def _names(trainer: OnPolicyTrainer) -> list[str]:
    """What is called while episodes are played."""
    played = trainer.environments.train_runner.env_of(0)
    if not isinstance(played, TextEnv):
        return [type(played).__name__]
    return [callback_name(one) for one in played.task.callbacks if one is not None]


def save_state(trainer: OnPolicyTrainer, folder: Path) -> None:
    """Save it into an empty folder."""
    save_team(trainer.agents, trainer.critics, folder / "team")
    (folder / "optimizers").mkdir()
    for name, optimizer in optimizers_of(trainer).items():
        save_file(optimizer.state_tensors(), folder / "optimizers" / f"{name}.safetensors")
    table = SampleTable()
    update = trainer.open_update
    state = {
        "items": trainer.items_done,
        "buffers": [table.add(buffer) for buffer in trainer.buffers],
        "waiting": [table.add(values.waiting) for values in _values(trainer)],
        "update": None if update is None else update.state_dict(table),
        "counters": trainer.counters(),
        "reporter": trainer.reporter.state_dict(table),
        "reference": trainer.reference_store.keep(),
        "outside": trainer.outside.state_dict(),
    }
    state["samples"] = table.state_dict()  # after all that goes into it
    (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")


def load_state(trainer: OnPolicyTrainer, folder: Path) -> None:
    """Go on from what was saved by a trainer of the same team and data.

    Raises:
        ValueError: when it is of another team, or of an order of other rows.
    """
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    trainer.reference_store.restore(state["reference"], folder)
    load_weights(trainer.agents, trainer.critics, folder / "team")
    for name, optimizer in optimizers_of(trainer).items():
        optimizer.load_state_tensors(load_file(folder / "optimizers" / f"{name}.safetensors"))
    table = SampleTable.load(state["samples"])
    trainer.items.load_state_dict(state["items"])
    trainer.items_done = state["items"]
    trainer.buffers = [table.get(numbers) for numbers in state["buffers"]]
    for values, numbers in zip(_values(trainer), state["waiting"], strict=True):
        values.waiting = table.get(numbers)
    update = state["update"]
    trainer.open_update = None if update is None else OpenUpdate.load(update, table)
    trainer.load_counters(state["counters"])
    trainer.reporter.load_state_dict(state["reporter"], table)
    for agent in trainer.agents:
        agent.backend.sync(agent.model)
    trainer.outside.load_state_dict(state["outside"], folder)


def optimizers_of(trainer: OnPolicyTrainer) -> dict[str, Optimizer]:
    """All of them, by the names of their models in the folder of a saved team."""
    found = {f"agent_{k}": actor.optimizer for k, actor in enumerate(trainer.actors)}
    critics = enumerate(trainer.critic_side.optimizers)
    return found | {f"critic_{k}": optimizer for k, optimizer in critics}


def _values(trainer: OnPolicyTrainer) -> Sequence[Values]:
    return list(dict.fromkeys(trainer.critic_side.values))
