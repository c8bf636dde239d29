"""The state of a training of actor-attention-critic: what it depends on from here on, on disk.

``model`` is what :meth:`AACTrainer.save_model` saves, ``learner.safetensors`` has optimisers and
draws, ``replay`` is :mod:`marlogue.algorithms.replay_files`, ``playing`` is
:mod:`marlogue.algorithms.aac_play`, and ``state.json`` has the rest. Nothing in a folder is run
when it is loaded.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from safetensors.torch import load_file, save_file

from marlogue.algorithms import aac_saving
from marlogue.algorithms.aac_config import plain
from marlogue.algorithms.aac_play import SavedPlay
from marlogue.algorithms.keeping_config import settings_of
from marlogue.algorithms.run_description import description, of_model
from marlogue.algorithms.sample_table import SampleTable
from marlogue.envs.callbacks import callback_name
from marlogue.envs.episodes import is_json

if TYPE_CHECKING:
    from marlogue.algorithms.aac import AACTrainer

#: Fields of the configuration without which a checkpoint makes no sense: those of the networks
#: (also where no shape shows it), of what replay and statistics hold, of seeds. The others
#: (schedules, rates, sizes of batches, logging, devices, ...) may change when a run goes on.
TRAINED = (
    *("critic_architecture", "attention", "attention_neighbours", "attention_position"),
    *("attention_graph", "num_heads", "team_head", "actor_trunk", "sharing", "layer_norm"),
    *("num_envs", "replay", "replay_size", "reward_sharing", "normalize_observations"),
    *("scale_rewards", "seed"),
)
_MODEL, _LEARNER, _REPLAY, _PLAYING = "model", "learner.safetensors", "replay", "playing"
_STATE = "state.json"


def describe(trainer: AACTrainer) -> dict[str, Any]:
    """What is trained, and how."""
    args = plain(trainer.args)
    trained = {name: args[name] for name in TRAINED}
    models = trainer.networks.modules()
    team = aac_saving.describe(trainer.stage_teams[0])
    stages = [{k: _told(k, v) for k, v in one.env_kwargs.items()} for one in trainer.stages]
    guidance = trainer.guidance
    return description(
        {
            "algorithm": type(trainer).__name__,
            **trained,
            **{name.replace("_", " "): value for name, value in team.items()},
            "arguments of the environment": stages,
            "networks": {name: of_model(model) for name, model in models.items()},
            "guided": guidance is not None,
        },
        {
            **settings_of(trained, args),
            "environment": _named(trainer.env),
            "guidance": guidance if isinstance(guidance, bool | None) else _named(guidance),
            "ends of the curriculum's stages": [stage.until for stage in trainer.stages],
        },
    )


def save_state(trainer: AACTrainer, folder: Path) -> None:
    """Save it into an empty folder."""
    trainer.save_model(folder / _MODEL)
    learner = trainer.learner.state_tensors()
    save_file({name: tensor.contiguous() for name, tensor in learner.items()}, folder / _LEARNER)
    if trainer.memory is not None:
        trainer.memory.save(folder / _REPLAY)
    playing = trainer.resumed if trainer.play is None else trainer.play.saved()
    if playing is not None:
        playing.save(folder / _PLAYING)
    rewards = trainer.statistics.rewards
    table = SampleTable()
    state = {
        "counters": trainer.counters(),
        "explorer": trainer.explorer.state_dict(),
        "skipped": trainer.learner.skipped.state_dict(),
        "reward_sums": None if rewards is None else rewards.sums.tolist(),
        "reporter": trainer.reporter.state_dict(table),
        "outside": trainer.outside.state_dict(),
    }
    state["samples"] = table.state_dict()  # after all that goes into it
    (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")


def load_state(trainer: AACTrainer, folder: Path) -> None:
    """Go on from what was saved by a trainer of the same networks and environment.

    Raises:
        ValueError: when it was another one.
    """
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    playing = SavedPlay.load(folder / _PLAYING) if (folder / _PLAYING).exists() else None
    if playing is not None:  # teams are taken over one after the other, as they were then
        for team in trainer.stage_teams[: playing.stage + 1]:
            trainer.use_team(team)
        assert trainer.memory is not None
        trainer.memory.load(folder / _REPLAY)
    trainer.load_model(folder / _MODEL)
    if not trainer.args.learn_temperature:
        with torch.no_grad():
            trainer.networks.log_temperature.fill_(math.log(trainer.args.temperature))
    trainer.learner.load_state_tensors(load_file(folder / _LEARNER))
    trainer.explorer.load_state_dict(state["explorer"])
    trainer.learner.skipped.load_state_dict(state["skipped"])
    rewards = trainer.statistics.rewards
    if rewards is not None:
        rewards.sums[:] = state["reward_sums"]
    trainer.resumed = playing
    trainer.load_counters(state["counters"], 0 if playing is None else playing.next_episodes)
    trainer.reporter.load_state_dict(state["reporter"], SampleTable.load(state["samples"]))
    trainer.outside.load_state_dict(state["outside"], folder)


def _told(name: str, value: Any) -> Any:
    """An argument as a description can hold it: the text of an object would be another one in
    every process."""
    return value if is_json(name, value) else _named(value)


def _named(value: Any) -> str:
    return type(value).__name__ if isinstance(value, ParallelEnv) else callback_name(value)
