"""Some of the agents learn, and the others have policies already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.waiting import waits
from marlogue.wrappers.partners import Asked, Policy
from marlogue.wrappers.players import FrozenAgents
from marlogue.wrappers.seats import idle_action
from marlogue.wrappers.view import ACTION_MASK, View

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams

RANDOM: Final = "random"


class Subteam(View):
    """A parallel environment that only some of its agents are players of.

    The others are asked for their actions inside `step`, and seen by nobody: they have no
    observation, reward or info outside. In simple_tag of mpe2, the pursuers against a prey that
    moves at random:

        Subteam(simple_tag_v3.parallel_env(), "adversary_*")

    An episode ends when it has ended for all players, even if others could go on.

    Args:
        env: the environment.
        agents: the players: their names, or a pattern of names as in a shell ("adversary_*").
            They keep the order that they have in the environment.
        others: what the others do: one policy for all of them, or agent to policy. A policy is
            "random" (any allowed action, all equally likely), a function from observation to
            action, or a `marlogue.agents.LLMPolicy`. A function that names them also gets, by
            keyword, `info` (the agent's info) and `rng` (a numpy `Generator`, the same for the same
            seed, episode, turn and agent).
        sampling: how an `LLMPolicy` samples.

    `state()` is that of the whole environment.

    Raises:
        TypeError: when `env` is not a `ParallelEnv`, or a policy cannot be asked.
        ValueError: when there is no such agent, or policies are missing, or name players or nobody.
    """

    shared: ClassVar[tuple[str, ...]] = ("_frozen",)

    def __init__(
        self,
        env: ParallelEnv,
        agents: str | Sequence[str],
        others: Mapping[str, Policy | Literal["random"]] | Policy | Literal["random"] = RANDOM,
        *,
        sampling: SamplingParams | None = None,
    ) -> None:
        super().__init__(env)
        everybody = list(env.possible_agents)
        self.possible_agents = _players(everybody, agents)
        names = [name for name in everybody if name not in self.possible_agents]
        policies = others if isinstance(others, Mapping) else dict.fromkeys(names, others)
        self._frozen = FrozenAgents(
            env,
            self.possible_agents,
            {name: _policy(env, name, policy) for name, policy in policies.items()},
            sampling,
        )
        self._numbers = {name: number for number, name in enumerate(everybody)}
        for spaces in (self.observation_spaces, self.action_spaces):
            for name in names:
                del spaces[name]
        self.agents: list[str] = []
        self._seed: int | None = None
        self._episode = self._turn = 0
        self._seen: tuple[Mapping[str, Any], Infos] = ({}, {})

    @override
    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Start an episode.

        Args:
            seed: of the environment, and of the others' random numbers.
            options: as the environment takes them.

        Raises:
            ValueError: when none of the players is there.
        """
        if seed is not None:
            self._seed, self._episode = seed, 0
        elif self._seed is None:
            self._seed = int(np.random.default_rng().integers(2**31))
        else:
            self._episode += 1
        self._turn = 0
        self._seen = super().reset(seed, options)
        self.agents = self._live()
        if not self.agents:
            raise ValueError(
                f"{self.env} began an episode without any of {', '.join(self.possible_agents)}; "
                "choose agents that are there from the beginning"
            )
        return self._of_players(self._seen[0]), self._infos()

    @override
    def step(self, actions: Mapping[str, Any]) -> StepResult:
        self.check_actions(actions)
        players = self.agents
        joint = {**self._others_actions(), **actions}
        # In the order of the environment's agents: some walk through the dictionary.
        result = self.step_inside({agent: joint[agent] for agent in self.env.agents})
        self._seen = (result.observations, result.infos)
        self._turn += 1
        self.agents = [
            agent
            for agent in self._live()
            if not result.terminations.get(agent) and not result.truncations.get(agent)
        ]
        return StepResult(
            self._of_players(result.observations),
            self._of_players(result.rewards),
            {agent: bool(result.terminations.get(agent, False)) for agent in players},
            {agent: bool(result.truncations.get(agent, False)) for agent in players},
            self._infos(),
        )

    def _live(self) -> list[str]:
        live = set(self.env.agents)
        return [agent for agent in self.possible_agents if agent in live]

    def _of_players(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: values[agent] for agent in self.possible_agents if agent in values}

    def _infos(self) -> Infos:
        """The players' infos, and what is about no agent."""
        hidden = self._frozen.names
        return {key: info for key, info in self._seen[1].items() if key not in hidden}

    def _others_actions(self) -> dict[str, Any]:
        shown, infos = self._seen
        idle, asked = {}, []
        for name in self.env.agents:
            if name not in self._frozen.names:
                continue
            info = infos.get(name, {})
            if waits(info):
                idle[name] = idle_action(self.env.action_space(name), info)
                continue
            if name not in shown:
                raise ValueError(f"{self.env} shows {name} nothing, but wants it to act")
            assert self._seed is not None
            stream = (self._seed, self._episode, self._turn, self._numbers[name])
            asked.append(Asked(name, shown[name], info, stream))
        answers = self._frozen.answer(asked)
        return {**idle, **{one.agent: act for one, act in zip(asked, answers, strict=True)}}


class UniformPolicy:
    """Any action that the space, and the `action_mask` in the info, allow; all equally likely.

    Raises:
        TypeError: when the space is neither `Discrete` nor a bounded `Box`.
    """

    def __init__(self, space: Space[Any]) -> None:
        if not isinstance(space, Discrete) and not (isinstance(space, Box) and space.is_bounded()):
            raise TypeError(
                f"a random policy needs a Discrete or a bounded Box action space, not {space}; "
                "give a function from observation to action instead"
            )
        self.space = space

    def __call__(
        self, observation: Any, *, info: Mapping[str, Any], rng: np.random.Generator
    ) -> Any:
        """An action; `observation` is not looked at."""
        space = self.space
        if isinstance(space, Discrete):
            allowed = np.flatnonzero(info.get(ACTION_MASK, np.ones(int(space.n))))
            return space.start + space.dtype.type(rng.choice(allowed))
        assert isinstance(space, Box)
        return rng.uniform(space.low, space.high).astype(space.dtype)


def _players(everybody: list[str], agents: str | Sequence[str]) -> list[str]:
    if isinstance(agents, str):
        players = [name for name in everybody if fnmatchcase(name, agents)]
    else:
        players = [name for name in everybody if name in agents]
    unknown = [] if isinstance(agents, str) else [name for name in agents if name not in everybody]
    if unknown or not players:
        raise ValueError(f"agents ({agents!r}) must be some of {', '.join(everybody)}")
    return players


def _policy(env: ParallelEnv, name: str, policy: Any) -> Any:
    if isinstance(policy, str) and policy == RANDOM and name in env.possible_agents:
        return UniformPolicy(env.action_space(name))
    return policy
