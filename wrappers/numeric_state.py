"""Numbers in place of texts in `state()` and infos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatten, flatten_space
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.callbacks import kind_of, noted
from marlogue.envs.episodes import COMMON, Infos
from marlogue.envs.waiting import WAITS, waits
from marlogue.wrappers.embedder import Embedder
from marlogue.wrappers.numeric_spaces import info_numbers, is_number, is_numeric
from marlogue.wrappers.view import ACTION_MASK, View


class NumericState(View):
    """A numeric `state()`, and infos without texts; observations and actions stay as they are.

    The state is a float32 vector: the agents' observations, flattened by
    `gymnasium.spaces.utils.flatten` and put one behind the other in the order of `possible_agents`
    (zeros for an agent that was shown nothing in the last step), or what `embed` makes of the text
    state inside. Infos keep their numbers and numeric arrays; `__common__` and `info_keys` see
    below.

    Args:
        env: the environment. Unless `embed` is given its observations are numbers.
        embed: `embed(state) -> [D]`, called by `state()` with the text that `state()` of the
            environment inside returns, and once at first to measure D. `HashedNgrams` is one.
        info_keys: the keys that every info of an agent has, as floats; 0.0 where the environment
            gives none, or None. All others are left out, but for `action_mask` and `waits`
            (always there, a bool). For libraries that need the same keys in every step (TorchRL).
            None: keep what is numeric.

    `infos["__common__"]`, the facts about the team, is dropped in either case: not every library
    tells it from an agent.

    Attributes:
        state_space: `Box(low, high, (D,), float32)`.

    Raises:
        TypeError: when observations are texts and there is no `embed`, when an argument has a wrong
            type, when the state inside is no text, or when an info of `info_keys` is no number.
        ValueError: when `embed` does not return D finite numbers.
    """

    shared: ClassVar[tuple[str, ...]] = ("embedder",)

    def __init__(
        self,
        env: ParallelEnv,
        *,
        embed: Callable[[str], Any] | None = None,
        info_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(env)
        self.info_keys = None if info_keys is None else _keys(info_keys)
        self.embedder = None if embed is None else Embedder(embed)
        self._flat: dict[str, NDArray[np.float32]] | None = None  # before the first reset
        if self.embedder is None:
            self._boxes = {agent: self._box(agent) for agent in env.possible_agents}
            self.state_space = _joined(list(self._boxes.values()))
        else:
            self.state_space = self.embedder.space

    def state(self) -> NDArray[np.float32]:
        """The global state as of the last reset or step, `[D]`, float32, in a fresh array.

        Raises:
            RuntimeError: before the first reset.
        """
        if self.embedder is not None:
            return self._embedded(self.embedder)
        flat = self._flat
        if flat is None:
            raise RuntimeError("state was called before reset; call reset first")
        return np.concatenate(
            [flat.get(a, np.zeros(box.shape, np.float32)) for a, box in self._boxes.items()]
        )

    def _embedded(self, embedder: Embedder) -> NDArray[np.float32]:
        text = self.env.state()
        if not isinstance(text, str):
            raise TypeError(
                f"embed needs an environment whose state() is a text; that of {self.env} returns "
                f"{kind_of(text)}. Leave embed out to put the agents' observations together"
            )
        with noted(f"embedding the state of {self.env}"):
            return embedder(text, "for the state")

    @override
    def _show(
        self, shown: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Infos]:
        seen, fresh = super()._show(shown, infos)
        if self.embedder is None:
            self._flat = {
                agent: np.asarray(flatten(self.observation_spaces[agent], seen[agent]), np.float32)
                for agent in self._boxes
                if agent in seen
            }
        return seen, {
            agent: self._numeric(agent, info) for agent, info in fresh.items() if agent != COMMON
        }

    def _numeric(self, agent: str, info: Mapping[str, Any]) -> dict[str, Any]:
        if self.info_keys is None:
            return {key: value for key, value in info.items() if _numbers(value)}
        kept: dict[str, Any] = dict(info_numbers(agent, info, self.info_keys))
        kept[WAITS] = waits(info)
        return kept if ACTION_MASK not in info else {**kept, ACTION_MASK: info[ACTION_MASK]}

    def _box(self, agent: str) -> Box:
        space = self.observation_spaces[agent]
        try:
            flat = flatten_space(space) if is_numeric(space) else None
        except NotImplementedError:  # a kind of space that gymnasium does not know
            flat = None
        if not isinstance(flat, Box):
            raise TypeError(
                f"NumericState needs numeric observations of one size; the observation space of "
                f"{agent} is {space}. Put EmbedObservations or TokenObservations inside, or set "
                "embed to make numbers of the text state"
            )
        return flat


def _keys(info_keys: Sequence[str]) -> tuple[str, ...]:
    if isinstance(info_keys, str) or not all(isinstance(key, str) for key in info_keys):
        raise TypeError(f"info_keys ({info_keys!r}) must be a list of keys (str)")
    return tuple(info_keys)


def _joined(boxes: Sequence[Box]) -> Box:
    """The space of the boxes' vectors one behind the other, zeros always included."""
    lows = np.concatenate([box.low for box in boxes]).astype(np.float32)
    highs = np.concatenate([box.high for box in boxes]).astype(np.float32)
    return Box(np.minimum(lows, 0.0), np.maximum(highs, 0.0), dtype=np.float32)


def _numbers(value: Any) -> bool:
    return is_number(value) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")
