"""What a training of actor-attention-critic is playing, and how that is saved.

``playing.safetensors`` has what was seen, remembered and done in the episodes under way, and
``playing.json`` which they are.

E environments, N agents, H size of the actors' memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from marlogue.algorithms.aac_acting import ActingTeam
from marlogue.algorithms.replay_data import Array
from marlogue.algorithms.team_tape import Running, Tape
from marlogue.algorithms.team_vector import TeamVector
from marlogue.algorithms.team_views import TeamView, VectorStep

_TENSORS, _ABOUT = "playing.safetensors", "playing.json"


@dataclass(frozen=True)
class SavedPlay:
    """What was being played.

    Attributes:
        stage: number of the curriculum's stage.
        running: [E], the episodes.
        players: state of who played them.
    """

    stage: int
    running: list[Running]
    players: Mapping[str, Tensor]

    @property
    def next_episodes(self) -> list[int]:
        """[E], numbers of the episodes that come next."""
        return [one.episode + 1 for one in self.running]

    def save(self, folder: Path) -> None:
        """Write it into a new folder."""
        folder.mkdir()
        tensors = {f"players.{name}": tensor for name, tensor in self.players.items()}
        for env, one in enumerate(self.running):
            fields = {**one.shown._asdict(), "actions": one.actions, "returns": one.returns}
            tensors |= {
                f"{env}.{name}": torch.from_numpy(array)
                for name, array in fields.items()
                if array is not None
            }
        episodes = [{"episode": one.episode, "length": one.length} for one in self.running]
        save_file({name: t.contiguous() for name, t in tensors.items()}, folder / _TENSORS)
        about = {"stage": self.stage, "episodes": episodes}
        (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> SavedPlay:
        """Read what :meth:`save` wrote."""
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        tensors = load_file(folder / _TENSORS)

        def part(prefix: str) -> dict[str, Tensor]:
            return {
                key.removeprefix(prefix): tensor.clone()
                for key, tensor in tensors.items()
                if key.startswith(prefix)
            }

        running = []
        for env, entry in enumerate(about["episodes"]):
            arrays: dict[str, Any] = {k: v.numpy() for k, v in part(f"{env}.").items()}
            actions, returns = arrays.pop("actions", None), arrays.pop("returns")
            shown = TeamView(**arrays)
            running.append(Running(**entry, actions=actions, shown=shown, returns=returns))
        return cls(about["stage"], running, part("players."))


class Play:
    """The environments of a stage, who plays in them, and the episodes under way.

    Args:
        stage: its number.
        vector: the environments.
        players: who plays.

    Attributes:
        view: what is seen now.
    """

    def __init__(self, stage: int, vector: TeamVector, players: ActingTeam) -> None:
        self.stage, self.vector, self.players = stage, vector, players
        self._tape = Tape(vector.num_envs, vector.team.num_agents)
        self.view: TeamView

    def begin(self, episodes: int | list[int]) -> None:
        """Begin the episodes of these numbers."""
        self.view = self.vector.reset(episodes)

    def resume(self, saved: SavedPlay) -> Array:
        """Go on with what was saved.

        Returns:
            The environments [<= E] whose episode is lost; the next one has begun there.
        """
        self.view, lost = self.vector.resume(saved.running)
        self._tape.resume(saved.running, lost)
        self.players.load_state_tensors(saved.players)
        self.players.forget(lost)
        return lost.nonzero()[0]

    def step(self, actions: Array) -> VectorStep:
        """Act in every environment."""
        step = self.vector.step(actions)
        self._tape.add(actions, step)
        self.players.forget(step.over | step.lost)
        self.view = step.view
        return step

    def saved(self) -> SavedPlay:
        """What is being played, or was at last."""
        episodes = [number - 1 for number in self.vector.next_episodes]
        running = self._tape.running(episodes, self.view)
        return SavedPlay(self.stage, running, self.players.state_tensors())
