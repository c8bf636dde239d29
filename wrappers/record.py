"""Episodes written to a file as they are played, and read back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.task import flag
from marlogue.wrappers.recording import JsonLines, RecordedEpisode, RecordedTurn, as_json, replay
from marlogue.wrappers.view import View

__all__ = ["Record", "RecordedEpisode", "RecordedTurn", "replay"]


class Record(View):
    """Writes each turn as a line of JSON when it has been played; changes nothing.

    A line has `episode` and `turn` (from 0), `observations` (what the agents acted on), `actions`,
    and `rewards`, `terminations`, `truncations` and `infos` as the step returned them; the first
    line of an episode also `seed`, `options`, `row` (null where infos name none) and `first_infos`,
    those of the reset; the last one also `last_observations`. Arrays become lists. A line is in
    the file before the step returns, so a crash loses nothing.

    A file has one writer. For several copies of the environment (as trainers and vectorised
    environments make them, in one process or many) put `{copy}` into the path: each copy writes a
    file of its own, with the first number that is free.

    Args:
        env: the environment; at any place in a chain of views, it records what is seen there.
        path: of the file to be made; missing folders are made, too. Without `append` a file that
            is there is an error, and nothing is ever overwritten.
        append: add episodes to a file that may be there already. Half a line at its end, where a
            crash cut it, is removed, and a warning says so.

    Raises:
        FileExistsError: when the file is there and `append` is False.
        TypeError: when an argument has a wrong type; in a step, when something cannot be JSON.
        ValueError: when `append` comes with `{copy}`, or the file to add to is no recording.
        RuntimeError: at reset and in a step of a copy whose path has no `{copy}`.
    """

    def __init__(
        self, env: ParallelEnv, path: str | os.PathLike[str], *, append: bool = False
    ) -> None:
        super().__init__(env)
        self.lines = JsonLines(os.fspath(path), flag("append", append))
        self._start: dict[str, str] = {}
        self._shown = ""
        self._turn = 0

    @override
    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        self.lines.open()  # where nothing can be written, nothing is played
        shown, infos = super().reset(seed, options)
        rows = [info["row"] for info in infos.values() if "row" in info]
        self._start = {
            "seed": as_json("seed", seed),
            "options": as_json("options", None if options is None else dict(options)),
            "row": as_json("row", rows[0] if rows else None),
            "first_infos": as_json("infos", infos),
        }
        self._shown, self._turn = as_json("observations", shown), 0
        self.lines.begin_episode()
        return shown, infos

    @override
    def step(self, actions: Mapping[str, Any]) -> StepResult:
        self.lines.open()
        acted_on = self._shown
        result = super().step(actions)
        parts = {
            "observations": acted_on,
            "actions": as_json("actions", dict(actions)),
            "rewards": as_json("rewards", result.rewards),
            "terminations": as_json("terminations", result.terminations),
            "truncations": as_json("truncations", result.truncations),
            "infos": as_json("infos", result.infos),
        }
        self._shown = as_json("observations", result.observations)
        if not self.agents:
            parts["last_observations"] = self._shown
        self.lines.write(self._turn, self._start, parts)
        self._turn += 1
        return result

    def close(self) -> None:
        """Close the file and the environment inside."""
        self.lines.close()
        super().close()
