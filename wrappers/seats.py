"""One agent's place in an episode whose other agents have frozen policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space, Text
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.callbacks import noted
from marlogue.envs.reward_values import as_finite
from marlogue.envs.text_env import TextEnv, step_many
from marlogue.envs.waiting import idle_text, waits
from marlogue.wrappers.partners import Asked, Partners
from marlogue.wrappers.view import ACTION_MASK


def idle_action(space: Space[Any], info: Mapping[str, Any]) -> Any:
    """What a waiting agent does: something allowed, which the environment ignores."""
    if isinstance(space, Text):
        return idle_text(space)
    if isinstance(space, Discrete):
        allowed = np.flatnonzero(info.get(ACTION_MASK, ()))
        return space.start + space.dtype.type(allowed[0] if allowed.size else 0)
    zeros = np.zeros(space.shape, space.dtype) if space.shape is not None else None
    return zeros if zeros is not None and space.contains(zeros) else space.sample()


class Seat:
    """What one agent has seen and earned in the running episode of `env`.

    Args:
        env: the environment, which this object alone steps.
        agent: the agent that sits here.

    Attributes:
        observation: what the agent was shown last.
        info: its info, in a fresh dict.
        reward: what it earned since `earned` was called last.
        terminated, truncated: how the episode ended for it, both False while it goes on.

    What it was shown last, its info and the flags are those of its own last turn, but what it is
    given after that, while the others play on, is added to `reward`: it earned it.
    """

    def __init__(self, env: ParallelEnv, agent: str) -> None:
        self.env = env
        self.agent = agent
        self.numbers = {name: number for number, name in enumerate(env.possible_agents)}
        self.stream: tuple[int, ...] = ()
        self._clear()

    def _clear(self) -> None:
        self.observation: Any = None
        self.info: dict[str, Any] = {}
        self.reward = 0.0
        self.terminated = self.truncated = False
        self._turn = 0
        self._joined = False
        self._live: list[str] = []
        self._shown: Mapping[str, Any] = {}
        self._infos: Mapping[str, Any] = {}

    def start(self, begun: tuple[Mapping[str, Any], Mapping[str, Any]], *stream: int) -> None:
        """Sit down in an episode that was just reset.

        Args:
            begun: what `env.reset` returned.
            stream: what the random numbers of this episode are named after.
        """
        self._clear()
        self.stream = stream
        self._live = list(self.env.agents)
        self._see(*begun)

    @property
    def over(self) -> bool:
        """Whether the episode is over for this agent."""
        return self.terminated or self.truncated

    @property
    def must_act(self) -> bool:
        """Whether the episode cannot go on without an action of this agent."""
        return not self.over and self._joined and not waits(self.info)

    @property
    def closed(self) -> bool:
        """Whether the episode is over for this agent and for all others."""
        return self.over and not self._live

    def asks(self) -> list[Asked]:
        """The other agents that have to act now."""
        return [
            Asked(
                name,
                self._shown[name],
                self._infos.get(name, {}),
                (*self.stream, self._turn, self.numbers[name]),
            )
            for name in self._live
            if name != self.agent and not waits(self._infos.get(name, {}))
        ]

    def joint_action(self, action: Any, answers: Iterator[Any]) -> dict[str, Any]:
        """Agent to action, from this agent's own and the answers to what `asks` gave."""
        joint = {}
        for name in self._live:
            info = self._infos.get(name, {})
            if waits(info):
                joint[name] = idle_action(self.env.action_space(name), info)
            else:
                joint[name] = action if name == self.agent else next(answers)
        return joint

    def take(self, result: Sequence[Mapping[str, Any]]) -> None:
        """See what `env.step` returned.

        Raises:
            ValueError: when the agent is gone without a flag, or its reward is no finite number.
        """
        shown, rewards, terminations, truncations, infos = result
        self._turn += 1
        reward = rewards.get(self.agent, 0.0)
        self.reward += as_finite(reward, f"{self.env} gave the reward {reward!r}", self.agent)
        self._live = [
            name
            for name in self.env.agents
            if not terminations.get(name, False) and not truncations.get(name, False)
        ]
        if self.over:
            self._shown, self._infos = shown, infos
            return
        self.terminated = bool(terminations.get(self.agent, False))
        self.truncated = bool(truncations.get(self.agent, False))
        if self.agent not in self.env.agents and not self.over:
            if self._joined:
                raise ValueError(
                    f"{self.env} dropped {self.agent} from its agents without terminating or "
                    "truncating it; set one of the flags in the step in which an agent leaves"
                )
            self.terminated = not self.env.agents  # the episode ended before it joined
        self._see(shown, infos)

    def earned(self) -> float:
        """The reward since this was called last, or since the episode began."""
        reward, self.reward = self.reward, 0.0
        return reward

    def _see(self, shown: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        self._joined = self._joined or self.agent in self.env.agents
        self._shown, self._infos = shown, infos
        self.observation = shown.get(self.agent, self.observation)
        self.info = dict(infos.get(self.agent, {}))


def play_on(seats: Sequence[Seat], actions: Sequence[Any], partners: Partners) -> None:
    """Play until each seat's agent must act again, or its episode is over for everybody.

    Where an agent has left, the others play on to the end: an environment may pay it then.

    Args:
        seats: seats of running episodes.
        actions: what each one's agent does; None where it does not have to act.
        partners: the policies of the others.
    """
    moves = list(zip(seats, actions, strict=True))
    while moves:
        asked = [one for seat, _ in moves for one in seat.asks()]
        answers = iter(partners.answer(asked))
        joint = [seat.joint_action(action, answers) for seat, action in moves]
        envs = [seat.env for seat, _ in moves]
        for (seat, _), result in zip(moves, _step_all(envs, joint), strict=True):
            seat.take(result)
        moves = [(seat, None) for seat, _ in moves if not seat.must_act and not seat.closed]


def _step_all(envs: Sequence[ParallelEnv], joint: Sequence[dict[str, Any]]) -> Sequence[Any]:
    if all(type(env) is TextEnv and env.task is envs[0].task for env in envs):
        return step_many(envs, joint)  # one reward call for as many episodes as the function takes
    results = []
    for index, (env, actions) in enumerate(zip(envs, joint, strict=True)):
        with noted(f"stepping episode {index} of {len(envs)} of {env}"):
            results.append(env.step(actions))
    return results
