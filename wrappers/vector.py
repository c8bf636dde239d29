"""Many episodes of one agent's view, as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Text
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.copies import Copies
from marlogue.envs.task import whole_number
from marlogue.wrappers.openings import Opening, openings
from marlogue.wrappers.partners import Partners, Policy
from marlogue.wrappers.seats import Seat, play_on
from marlogue.wrappers.single_agent import MOST_EPISODES, check_action, chosen_agent, no_turn

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams

Flags = npt.NDArray[np.bool_]
Stepped = tuple[Any, npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]


class TextVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` episodes of what `SingleAgent` shows of an environment.

    It does what `gymnasium.vector.SyncVectorEnv` does with as many `SingleAgent`s, with three
    differences: the episodes go through the rows of a `TextEnv` together, instead of each playing
    the same ones; a `TextEnv` scores all of them in one call of a reward function that is marked
    with `batched_reward`; and prompts for a frozen `LLMPolicy` are answered in one batch.

    Observations of texts are a tuple of `str`, actions a sequence of `str`. (Do not put texts into
    `gymnasium.vector.AsyncVectorEnv` without `shared_memory=False`: through shared memory it
    returns a run of zeros, "000..." or NUL characters, in place of every text, and says nothing.)

    Args:
        env: the parallel environment, or a function that makes it. Each episode has a copy of it.
        num_envs: how many episodes are played side by side.
        agent, others, sampling: as for `SingleAgent`.
        autoreset_mode: what follows the end of an episode, an `AutoresetMode` or its value:
            "NextStep" ignores its next action and begins a new one in its place, with reward 0;
            "SameStep" begins a new one at once and hands out the last observation and info as
            `infos["final_obs"]` and `infos["final_info"]`; "Disabled" waits for
            `reset(options={"reset_mask": mask})`, a bool array [num_envs].

    Raises:
        TypeError, ValueError: as `SingleAgent`; also when `num_envs` is below 1, or there is no
            such mode.
    """

    def __init__(
        self,
        env: ParallelEnv | Callable[[], ParallelEnv],
        num_envs: int,
        agent: str | None = None,
        others: Mapping[str, Policy] | Policy | None = None,
        *,
        sampling: SamplingParams | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        self.closed = (
            True  # until there is something to close: gymnasium 1.2 does so when collected
        )
        self.num_envs = num_envs = whole_number("num_envs", num_envs, 1)
        self.autoreset_mode = _mode(autoreset_mode)
        self._copies = Copies(env)
        self._copies.grow(num_envs)
        first = self._copies[0]
        self.agent = chosen_agent(first, agent)
        self.partners = Partners(first, self.agent, others, sampling)
        self.metadata = {
            "render_fps": 1,
            **getattr(first, "metadata", {}),
            "autoreset_mode": self.autoreset_mode,
        }
        self.render_mode = getattr(first, "render_mode", None)
        self.single_observation_space = first.observation_space(self.agent)
        self.single_action_space = first.action_space(self.agent)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seats = [Seat(self._copies[index], self.agent) for index in range(num_envs)]
        self._seeds: list[int | None] = [None] * num_envs
        self._episodes = [0] * num_envs
        self._over = np.ones(num_envs, dtype=np.bool_)
        self._begun = False
        self.closed = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode everywhere, or where `options["reset_mask"]` is True.

        Args:
            seed: one for all (the rows begin anew, and are shared out), or one for each episode.
            options: as the environment takes them, and `reset_mask`.

        Returns:
            The batch of observations, and the infos of the episodes that were begun.

        Raises:
            TypeError, ValueError: when mask or seeds have another shape or type.
        """
        passed = dict(options or {})
        chosen = self._masked(passed.pop("reset_mask", None))
        given = passed or None
        if seed is None or isinstance(seed, int | np.integer):
            super().reset(seed=None if seed is None else int(seed))
            plan = openings(self._copies, chosen, None if seed is None else int(seed), given)
        else:
            plan = self._own_openings(chosen, list(seed), given)
        if seed is not None:
            for opening in plan:
                self._seeds[opening.copy], self._episodes[opening.copy] = opening.seed, 0
        self._begin(plan, given)
        infos: dict[str, Any] = {}
        for index in chosen:
            infos = self._add_info(infos, self._seats[index].info, index)
        self._begun = True
        return self._batch(), infos

    def step(self, actions: Any) -> Stepped:
        """Act in every episode that is running.

        Args:
            actions: one per episode; that of an episode which is begun anew is ignored.

        Returns:
            Observations, rewards (float64 [num_envs]), terminations, truncations, infos.

        Raises:
            RuntimeError: before reset, or in an episode that is over and is not begun anew.
            ValueError: when actions are too few or too many, or not in the action space.
        """
        moves = self._checked(actions)
        fresh = np.flatnonzero(self._over)
        active = np.flatnonzero(~self._over)
        seats = [self._seats[index] for index in active]
        play_on(seats, [moves[index] for index in active], self.partners)
        self._begin(openings(self._copies, fresh.tolist(), None))
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        rewards[active] = [seat.earned() for seat in seats]
        terminations = np.array([seat.terminated for seat in self._seats])
        truncations = np.array([seat.truncated for seat in self._seats])
        self._over = terminations | truncations
        infos = self._infos_after_step()
        return self._batch(), rewards, terminations, truncations, infos

    def render(self) -> tuple[Any, ...]:
        """What each episode's environment renders."""
        return tuple(seat.env.render() for seat in self._seats)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the copies."""
        self._copies.close()

    def _infos_after_step(self) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        last: dict[int, dict[str, Any]] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            ended = np.flatnonzero(self._over).tolist()
            for index in ended:
                seat = self._seats[index]
                last[index] = {"final_obs": seat.observation, "final_info": seat.info}
            self._begin(openings(self._copies, ended, None))
        for index, seat in enumerate(self._seats):
            infos = self._add_info(infos, last.get(index, {}), index)
            # Gymnasium makes an array of numbers of them, in which None has no place.
            known = {key: value for key, value in seat.info.items() if value is not None}
            infos = self._add_info(infos, known, index)
        return infos

    def _begin(self, plan: Sequence[Opening], options: dict[str, Any] | None = None) -> None:
        """Begin the planned episodes, and play each to the agent's first turn."""
        for _ in range(MOST_EPISODES):
            for opening in plan:
                self._start(opening)
            behind = [self._seats[opening.copy] for opening in plan]
            behind = [seat for seat in behind if not seat.must_act and not seat.over]
            play_on(behind, [None] * len(behind), self.partners)
            again = [o.copy for o in plan if not self._seats[o.copy].must_act]
            if not again:
                self._over[[opening.copy for opening in plan]] = False
                return
            plan = openings(self._copies, again, None, options)
        raise RuntimeError(no_turn(self._copies[0], self.agent))

    def _start(self, opening: Opening) -> None:
        index = opening.copy
        seed = self._seeds[index]
        if seed is None:
            seed = self._seeds[index] = int(self.np_random.integers(2**31))
        begun = self._copies.reset(*opening)
        self._seats[index].start(begun, seed, self._episodes[index])
        self._episodes[index] += 1

    def _own_openings(
        self, chosen: Sequence[int], seeds: list[Any], options: dict[str, Any] | None
    ) -> list[Opening]:
        if len(seeds) != self.num_envs:
            raise ValueError(
                f"seed ({len(seeds)} of them) must be one integer, or one for each of the "
                f"{self.num_envs} episodes"
            )
        return [Opening(index, *self._copies.plan(seeds[index], options)) for index in chosen]

    def _masked(self, mask: Any) -> list[int]:
        if mask is None:
            return list(range(self.num_envs))
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] ({mask!r}) must be a numpy array of bools")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] ({mask}) must have shape ({self.num_envs},) and be True "
                "somewhere"
            )
        if not self._begun and not mask.all():
            raise ValueError(
                f"options['reset_mask'] ({mask}) must be True everywhere in the first reset"
            )
        return list(np.flatnonzero(mask).tolist())

    def _checked(self, actions: Any) -> list[Any]:
        if not self._begun:
            raise RuntimeError("step was called before reset; call reset first")
        if self._over.any() and self.autoreset_mode is AutoresetMode.DISABLED:
            raise RuntimeError(
                f"the episodes {np.flatnonzero(self._over).tolist()} are over, and autoreset_mode "
                'is "Disabled"; reset them with options={"reset_mask": terminations | truncations}'
            )
        if not isinstance(actions, Iterable):
            raise TypeError(
                f"actions ({actions!r}) must hold one for each of the {self.num_envs} episodes"
            )
        if isinstance(self.single_action_space, Text):
            moves = [actions] if isinstance(actions, str) else list(actions)
        else:
            moves = list(iterate(self.action_space, actions))
        if len(moves) != self.num_envs:
            raise ValueError(
                f"actions ({len(moves)}) must be as many as there are episodes ({self.num_envs})"
            )
        for index, action in enumerate(moves):
            if not self._over[index]:
                check_action(f"episode {index}", self.single_action_space, action)
        return moves

    def _batch(self) -> Any:
        empty: Any = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        shown = [seat.observation for seat in self._seats]
        return concatenate(self.single_observation_space, shown, empty)


def _mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        values = ", ".join(repr(one.value) for one in AutoresetMode)
        raise ValueError(f"autoreset_mode ({mode!r}) must be one of {values}") from None
