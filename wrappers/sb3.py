"""Stable-Baselines3: a team as a `VecEnv`, one policy for all agents of all episodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from stable_baselines3.common.vec_env import VecEnv
from typing_extensions import override

from marlogue.envs.callbacks import noted
from marlogue.envs.copies import Copies
from marlogue.envs.task import whole_number
from marlogue.wrappers.openings import Opening, openings
from marlogue.wrappers.view import ACTION_MASK, alike

Arrays = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]

MASKS = "action_masks"
"""The method by which `sb3_contrib.MaskablePPO` asks for masks."""

TAKEN = (Box, Discrete, MultiDiscrete, MultiBinary)

ADVICE = {
    "observation": "EmbedObservations (Box of float32) or TokenObservations (Box of int64)",
    "action": "CandidateActions or TokenByToken (Discrete) or TokenActions (MultiDiscrete)",
}


class TeamVecEnv(VecEnv):
    """All agents of `num_episodes` episodes, side by side, for one shared policy.

    Environment `e * N + k` is agent k of the N agents in episode e. Episodes have copies of `env`
    that together go through the rows of a `TextEnv`. An episode that is over begins anew at once,
    as Stable-Baselines3 has it: the info of its last step holds `terminal_observation`, and
    `TimeLimit.truncated` says whether it was cut off (truncated and not terminated). Statistics
    of episodes are left to `VecMonitor`, around this.

    `env_method("action_masks")` gives the `action_mask` of each agent's info, which
    `CandidateActions` and `TokenByToken` put there, so that `sb3_contrib.MaskablePPO` trains on it
    as it is. PPO knows no masks and needs all actions to be allowed (`CandidateActions(fill=...)`).

    Args:
        env: a parallel environment whose agents are alike and end together, with spaces of numbers;
            or a function that makes it.
        num_episodes: how many episodes are played side by side.

    Attributes:
        agents: the agents' names.

    Raises:
        TypeError: when it is not a `ParallelEnv`, or a space is none that Stable-Baselines3 takes;
            says which views to use.
        ValueError: when agents have different spaces. At a reset or step, when not the whole team
            is there until the end.
    """

    def __init__(self, env: ParallelEnv | Callable[[], ParallelEnv], num_episodes: int = 1) -> None:
        self.num_episodes = whole_number("num_episodes", num_episodes)
        self._copies = Copies(env)
        self._copies.grow(self.num_episodes)
        self.agents = list(self._copies.possible_agents)
        first = self._copies[0]
        for agent in self.agents:
            require_numbers(first.observation_space(agent), "observation", agent)
            require_numbers(first.action_space(agent), "action", agent)
        self._seed: int | None = None
        self._shown: list[Mapping[str, Any]] = [{} for _ in range(self.num_episodes)]
        self._infos: list[Mapping[str, Any]] = [{} for _ in range(self.num_episodes)]
        self._actions: npt.NDArray[Any] | None = None
        super().__init__(self.num_episodes * len(self.agents), *alike(first, "TeamVecEnv"))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the next reset: the rows begin anew, and episode e is seeded with `seed + e`.

        Returns:
            The seed of each environment; agents of one episode share theirs.
        """
        self._seed = None if seed is None else int(seed)
        episodes = range(self.num_episodes)
        self._seeds = [
            None if seed is None else int(seed) + e for e in episodes for _ in self.agents
        ]
        return self._seeds

    def reset(self) -> Any:
        """Begin all episodes; returns the observations of all agents, [num_envs, ...]."""
        self._actions = None
        plan = openings(self._copies, range(self.num_episodes), self._seed, self._episode_options())
        for opening in plan:
            self._start(opening)
        self._seed = None
        self._reset_seeds()
        self._reset_options()
        return self._observations()

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Keep the actions, [num_envs, ...], for `step_wait`."""
        if not self._shown[0]:
            raise RuntimeError("step was called before reset; call reset first")
        if len(actions) != self.num_envs:
            raise ValueError(
                f"actions ({len(actions)}) must be as many as environments ({self.num_envs})"
            )
        if not isinstance(self.action_space, Box) and np.asarray(actions).dtype.kind not in "iub":
            raise ValueError(
                f"actions (of dtype {np.asarray(actions).dtype}) must be whole numbers, as the "
                f"action space is {self.action_space}"
            )
        self._actions = actions

    def step_wait(self) -> Any:
        """Play a turn of every episode, and begin those anew that are over.

        Returns:
            Observations, rewards (float32 [num_envs]), dones (bool [num_envs]) and infos.
        """
        if self._actions is None:
            raise RuntimeError("step_wait was called without actions; call step_async first")
        actions, self._actions = self._actions, None
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        dones = np.zeros(self.num_envs, dtype=np.bool_)
        infos: list[dict[str, Any]] = []
        ended = []
        for episode in range(self.num_episodes):
            mine = slice(episode * len(self.agents), (episode + 1) * len(self.agents))
            earned, over, told = self._step_one(episode, actions[mine])
            rewards[mine], dones[mine] = earned, over
            infos += told
            if over:
                ended.append(episode)
        for opening in openings(self._copies, ended, None):
            self._start(opening)
        return self._observations(), rewards, dones, infos

    def _step_one(
        self, episode: int, actions: npt.NDArray[Any]
    ) -> tuple[list[float], bool, list[dict[str, Any]]]:
        env = self._copies[episode]
        joint = {
            agent: self._action(action) for agent, action in zip(self.agents, actions, strict=True)
        }
        with noted(f"stepping episode {episode} of {env}"):
            shown, rewards, terminations, truncations, infos = env.step(joint)
        over = self._over(env, terminations, truncations)
        for part, what in ((shown, "observation"), (rewards, "reward")):
            self._require_team(part, f"the step of episode {episode} of {env} gave no {what} to")
        self._shown[episode], self._infos[episode] = shown, infos
        told = []
        for agent in self.agents:
            info = dict(infos.get(agent, {}))
            terminated = bool(terminations.get(agent, False))
            info["TimeLimit.truncated"] = over and not terminated
            if over:
                info["terminal_observation"] = shown[agent]
            told.append(info)
        return [float(rewards[agent]) for agent in self.agents], over, told

    def _over(
        self, env: ParallelEnv, terminations: Mapping[str, Any], truncations: Mapping[str, Any]
    ) -> bool:
        """Whether the episode is over, for all of the team at once."""
        flags = {
            agent: bool(terminations.get(agent) or truncations.get(agent)) for agent in self.agents
        }
        live = [agent for agent in self.agents if agent in env.agents and not flags[agent]]
        if live and len(live) < len(self.agents):
            gone = [agent for agent in self.agents if agent not in live]
            raise ValueError(
                f"{', '.join(gone)} ended before {', '.join(live)} in {env}; agents that share a "
                "policy have to end together: wrap the environment in "
                "marlogue.wrappers.uniform_end.UniformEnd"
            )
        return not live

    def _start(self, opening: Opening) -> None:
        episode, env = opening.copy, self._copies[opening.copy]
        shown, infos = self._copies.reset(*opening)
        self._require_team(env.agents, f"after the reset of {env} these agents are not live:")
        self._require_team(shown, f"the reset of {env} gave no observation to")
        self._shown[episode], self._infos[episode] = shown, infos
        for place, agent in enumerate(self.agents):
            self.reset_infos[episode * len(self.agents) + place] = dict(infos.get(agent, {}))

    def _require_team(self, given: Any, problem: str) -> None:
        missing = [agent for agent in self.agents if agent not in given]
        if missing:
            raise ValueError(
                f"{problem} {', '.join(missing)}; agents that share a policy have to be there all "
                "the time: wrap the environment in marlogue.wrappers.uniform_end.UniformEnd"
            )

    def _action(self, action: Any) -> Any:
        if isinstance(self.action_space, Discrete):
            return int(action)
        return np.asarray(action, dtype=self.action_space.dtype)

    def _observations(self) -> Arrays:
        space = self.observation_space
        rows = [shown[agent] for shown in self._shown for agent in self.agents]
        if isinstance(space, Dict):
            return {
                key: np.array([row[key] for row in rows], dtype=part.dtype)
                for key, part in space.spaces.items()
            }
        return np.array(rows, dtype=space.dtype)

    def _episode_options(self) -> list[dict[str, Any] | None]:
        """The options of each episode; Stable-Baselines3 has them per environment."""
        size = len(self.agents)
        teams = [self._options[start : start + size] for start in range(0, self.num_envs, size)]
        for episode, team in enumerate(teams):
            if any(options != team[0] for options in team):
                raise ValueError(
                    f"options of episode {episode} ({team}) must be the same for all its agents"
                )
        return [team[0] or None for team in teams]

    def _mask(self, index: int) -> npt.NDArray[np.bool_]:
        """The action mask of an agent, bool [K]."""
        episode, place = divmod(index, len(self.agents))
        if not self._infos[episode]:
            raise RuntimeError("action_masks was called before reset; call reset first")
        return np.asarray(self._infos[episode][self.agents[place]][ACTION_MASK]).astype(np.bool_)

    def _masks(self) -> bool:
        """Whether the environment gives masks; asked before the first reset, it is tried out."""
        infos = self._infos[0]
        if not infos:
            _, infos = self._copies.reset(0, 0, None)
        return all(ACTION_MASK in infos.get(agent, {}) for agent in self.agents)

    @override
    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        chosen = self._get_indices(indices)
        if attr_name == MASKS and self._masks():
            return [functools.partial(self._mask, index) for index in chosen]
        envs = [self._copies[index // len(self.agents)] for index in chosen]
        if attr_name == "render_mode":
            return [getattr(env, attr_name, None) for env in envs]
        return [getattr(env, attr_name) for env in envs]

    @override
    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        for episode in sorted({index // len(self.agents) for index in self._get_indices(indices)}):
            setattr(self._copies[episode], attr_name, value)

    @override
    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        methods = self.get_attr(method_name, indices)
        return [method(*method_args, **method_kwargs) for method in methods]

    @override
    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [
            _is_wrapped(self._copies[index // len(self.agents)], wrapper_class)
            for index in self._get_indices(indices)
        ]

    def render(self, mode: str | None = None) -> Any:
        """Render every episode once; transcripts (`"ansi"`) are returned, one after the other."""
        if self.render_mode is None or mode not in (None, self.render_mode):
            return super().render(mode)  # which warns
        shown = [self._copies[episode].render() for episode in range(self.num_episodes)]
        return "\n\n".join(shown) if all(isinstance(text, str) for text in shown) else None

    def close(self) -> None:
        """Close the copies."""
        self._copies.close()


def require_numbers(space: Space[Any], kind: str, agent: str) -> None:
    """Refuse a space that Stable-Baselines3 does not take.

    Args:
        space: the space of an agent.
        kind: "observation" or "action".
        agent: its name.

    Raises:
        TypeError: says which views to use.
    """
    parts = space.spaces.values() if isinstance(space, Dict) and kind == "observation" else [space]
    for part in parts:
        if not isinstance(part, TAKEN):
            also = ", and Dict of them" if kind == "observation" else ""
            raise TypeError(
                f"the {kind} space of {agent} is {space}; Stable-Baselines3 takes "
                f"{', '.join(taken.__name__ for taken in TAKEN)}{also}. Put one of these views "
                f"around the environment: {ADVICE[kind]}"
            )
        if isinstance(part, Discrete) and part.start != 0:
            raise TypeError(
                f"the {kind} space of {agent} is {space}; Stable-Baselines3 counts from 0: set "
                "start=0"
            )


def _is_wrapped(env: Any, kind: type[Any]) -> bool:
    while True:
        if isinstance(env, kind):
            return True
        if "env" not in vars(env):
            return False
        env = env.env
