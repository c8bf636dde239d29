"""Many episodes of any parallel environment, by one copy of it per episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.actions import check_agents
from marlogue.envs.callbacks import noted
from marlogue.envs.copies import Copies
from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.reward_values import as_finite
from marlogue.envs.waiting import idle_text

Started = tuple[list[str], dict[str, str], Infos]


class ForeignEpisodes:
    """Episodes of a parallel environment that is only known by PettingZoo's interface.

    Args:
        env: the environment, of which deep copies are made, or a function that makes it.

    Raises:
        TypeError: when it is not a `ParallelEnv`, or does not name its possible agents.
    """

    def __init__(self, env: ParallelEnv | Callable[[], ParallelEnv]) -> None:
        self._copies = Copies(env)
        self._live: dict[int, list[str]] = {}
        first = self._copies[0]
        self.idle_texts = {a: idle_text(first.action_space(a)) for a in first.possible_agents}

    def reset(self, starts: Sequence[Any], num_generations: int) -> list[Started]:
        """Begin episodes, each in a copy of its own."""
        plans = [self._copies.plan(start.seed, start.options) for start in starts]
        plans = [plan for plan in plans for _ in range(num_generations)]
        self._copies.grow(len(plans))
        return [self._begin(index, seed, options) for index, (seed, options) in enumerate(plans)]

    def _begin(self, index: int, seed: int | None, options: dict[str, Any] | None) -> Started:
        env = self._copies[index]
        shown, infos = self._copies.reset(index, seed, options)
        self._live[index] = agents = list(env.agents)
        _check_texts(shown, agents, f"the reset of episode {index} of {env}")
        return list(agents), dict(shown), dict(infos)

    def step(
        self, indices: Sequence[int], actions: Sequence[Mapping[str, str]]
    ) -> list[tuple[list[str], StepResult]]:
        """Play a turn of some episodes. Agents that are flagged as ended are not live any more."""
        for index, action in zip(indices, actions, strict=True):
            check_agents(action, self._live[index])
        return [
            self._step_one(index, action) for index, action in zip(indices, actions, strict=True)
        ]

    def _step_one(self, index: int, action: Mapping[str, str]) -> tuple[list[str], StepResult]:
        env = self._copies[index]
        with noted(f"stepping episode {index} of {env}"):
            returned = env.step(dict(action))
        where = f"the step of episode {index} of {env}"
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise ValueError(f"{where} returned {type(returned).__name__}, not PettingZoo's five")
        result = StepResult(*(dict(part) for part in returned))
        self._live[index] = live = [agent for agent in env.agents if not _ended(agent, result)]
        _check_texts(result.observations, live, where)
        # Of who has left before, too: what comes late was earned.
        paid = {*action, *(agent for agent in result.rewards if agent in self.idle_texts)}
        rewards = {
            agent: _reward(result, agent, where) for agent in self.idle_texts if agent in paid
        }
        return list(live), result._replace(rewards=rewards)

    def env(self, index: int) -> ParallelEnv:
        """The copy that plays an episode."""
        return self._copies[index]

    def close(self) -> None:
        """Close the copies."""
        self._copies.close()


def _ended(agent: str, result: StepResult) -> bool:
    return bool(result.terminations.get(agent, False) or result.truncations.get(agent, False))


def _check_texts(shown: Mapping[str, Any], agents: Sequence[str], where: str) -> None:
    for agent in agents:
        if agent not in shown:
            raise ValueError(f"{where} gave {agent} no observation")
        if not isinstance(shown[agent], str):
            raise ValueError(
                f"{where} gave {agent} the observation {shown[agent]!r}; it must be a prompt "
                "(str): wrap the environment so that it speaks in texts"
            )


def _reward(result: StepResult, agent: str, where: str) -> float:
    reward = result.rewards.get(agent)
    return as_finite(reward, f"the environment gave the reward {reward!r}", f"{agent}, {where}")
