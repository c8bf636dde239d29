"""One agent of a parallel environment as a Gymnasium environment; the others are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.callbacks import shortened
from marlogue.wrappers.partners import Partners, Policy
from marlogue.wrappers.seats import Seat, play_on
from marlogue.wrappers.view import parallel

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams

MOST_EPISODES = 100
"""So many episodes may go by, in one reset, without a turn of the agent."""


class SingleAgent(gymnasium.Env[Any, Any]):
    """A parallel environment as one of its agents sees it.

    On a text environment an observation is a prompt and an action a completion, both `str`; on a
    view of one, whatever the view shows and takes. Where the agent is not live yet or has to wait
    (`infos[agent]["waits"]`), the others play on until it must act or the episode ends, and what it
    earns meanwhile is added up. Where it leaves before the others they play on, too, within its
    last step: what it is given until their end belongs to the reward of that step. An episode that
    ends before the agent's first turn is left out: `reset` goes on to the next one.

    Args:
        env: the environment; this object resets and steps it.
        agent: the agent whose view it is; None for the first one.
        others: agent to policy for each of the others, or one policy for all of them. A policy is
            a function from observation to action (prompt to text), or a
            `marlogue.agents.LLMPolicy`. A function that names them also gets, by keyword, `info`
            (the agent's info, with the `action_mask` where there is one) and `rng` (a numpy
            `Generator`, the same for the same seed, episode, turn and agent).
        sampling: how the `LLMPolicy`s sample; None for `SamplingParams()`. With one seed they
            always say the same.

    Attributes:
        agent: the agent's name.
        env: the parallel environment.

    Raises:
        TypeError: when `env` is not a `ParallelEnv`, or a policy cannot be asked.
        ValueError: when there is no such agent, or policies are missing or name nobody.
    """

    def __init__(
        self,
        env: ParallelEnv,
        agent: str | None = None,
        others: Mapping[str, Policy] | Policy | None = None,
        *,
        sampling: SamplingParams | None = None,
    ) -> None:
        self.env = parallel(env)
        self.agent = chosen_agent(env, agent)
        self.partners = Partners(env, self.agent, others, sampling)
        self.observation_space = env.observation_space(self.agent)
        self.action_space = env.action_space(self.agent)
        # Gymnasium warns about what renders and names no frame rate.
        self.metadata = {"render_fps": 1, **getattr(env, "metadata", {})}
        self.render_mode = getattr(env, "render_mode", None)
        self._seat = Seat(env, self.agent)
        self._seed: int | None = None
        self._episode = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode, and play it to the agent's first turn.

        Args:
            seed: of the environment, and of the others' random numbers.
            options: as the environment takes them.

        Returns:
            The agent's observation and info.

        Raises:
            RuntimeError: when `MOST_EPISODES` episodes ended without a turn of the agent.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = seed, 0
        elif self._seed is None:
            self._seed = int(self.np_random.integers(2**31))
        for attempt in range(MOST_EPISODES):
            begun = self.env.reset(seed=None if attempt else seed, options=options)
            self._seat.start(begun, self._seed, self._episode)
            self._episode += 1
            if not self._seat.must_act and not self._seat.over:
                play_on([self._seat], [None], self.partners)
            if self._seat.must_act:
                return self._seat.observation, self._seat.info
        raise RuntimeError(no_turn(self.env, self.agent))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act, and let the others act until it is the agent's turn again.

        Raises:
            RuntimeError: when no episode is running.
            ValueError: when the action is not in the action space.
        """
        seat = self._seat
        if not seat.must_act:
            raise RuntimeError("step was called without a running episode; call reset first")
        check_action(self, self.action_space, action)
        play_on([seat], [action], self.partners)
        return seat.observation, seat.earned(), seat.terminated, seat.truncated, seat.info

    def render(self) -> Any:
        """Whatever the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def __str__(self) -> str:
        spec = f" of {self.spec.id}" if self.spec is not None else ""
        return f"SingleAgent<{self.agent}, {self.env}>{spec}"


def chosen_agent(env: ParallelEnv, agent: str | None) -> str:
    """The agent of that name, or the first one.

    Raises:
        ValueError: when there is no such agent.
    """
    names = list(env.possible_agents)
    if agent is not None and agent not in names:
        raise ValueError(f"agent ({agent!r}) must be one of {', '.join(names)}")
    return names[0] if agent is None else agent


def check_action(whose: Any, space: gymnasium.Space[Any], action: Any) -> None:
    """Refuse an action that is not in the space.

    Raises:
        ValueError: names space and action.
    """
    if not space.contains(action):
        raise ValueError(
            f"the action ({shortened(action)}) must be in the action space of {whose}, {space}"
        )


def no_turn(env: ParallelEnv, agent: str) -> str:
    """What to say when an agent never gets to act."""
    return (
        f"{MOST_EPISODES} episodes of {env} ended without a turn of {agent}; choose another agent, "
        "or reset with a row in which it has something to do"
    )
