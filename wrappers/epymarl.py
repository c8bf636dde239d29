"""Text environments as the joint Gymnasium environments that EPyMARL trains on.

EPyMARL is not a package but a repository that is cloned, so nothing of it is imported here. It
reads environments by a Gymnasium id through its wrapper for them (`env-config=gymma`), and imports
the module before the colon first. With this in a module `my_environments`, on the Python path:

    from marlogue.wrappers.epymarl import register_joint

    register_joint("my/coordination-v0", make_env)  # make_env() returns a numeric view

an experiment of EPyMARL is, in its folder:

    python src/main.py --config=qmix --env-config=gymma with \\
        env_args.key="my_environments:my/coordination-v0" env_args.time_limit=10 \\
        reward_scalarisation=mean

By default EPyMARL adds the agents' rewards up, which counts a team reward once for each agent;
`reward_scalarisation=mean` does not. It reads no action masks: set `fill` of `CandidateActions`
where candidates may be missing or agents wait, `ignore_masked` of `TokenByToken`. Its time limit
must not be shorter than an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Tuple
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.callbacks import kind_of
from marlogue.envs.task import whole_number
from marlogue.wrappers.numeric_spaces import is_number, is_numeric
from marlogue.wrappers.view import parallel, require_all


class JointEnv(gymnasium.Env[tuple[Any, ...], Sequence[int]]):
    """A numeric view of a text environment, in which all agents are one.

    Observations and actions are tuples with one entry per agent, in the order of `possible_agents`.
    A step returns a list of N rewards (floats), and the last one of an episode returns the rewards
    and observations of its last turn, too; EPyMARL's own wrapper of PettingZoo environments gives
    zeros there. Infos are flat numbers, `AGENT_KEY`, of which EPyMARL logs the means over episodes:
    those of the agents' infos that are numbers, and `episode_limit` (True) when an episode was
    truncated, so that its last value is bootstrapped.

    Agents may differ in the length of their observations and the number of their actions (EPyMARL
    pads them), but must stay until all have ended, in one way: see `UniformEnd`.

    Args:
        env: the environment with its views: observations that Gymnasium can flatten, `Discrete`
            actions.

    Attributes:
        n_agents: N.
        env: the parallel environment.

    Raises:
        TypeError: when `env` is not a `ParallelEnv`, or its spaces are not of these kinds.
        ValueError: from `step`, when there are not N actions, or an agent leaves before the others;
            from `reset`, when an agent is missing.
    """

    def __init__(self, env: ParallelEnv) -> None:
        self.env = parallel(env)
        self.names = list(env.possible_agents)
        self.n_agents = len(self.names)
        for agent in self.names:
            _check_spaces(env, agent)
        self.observation_space = Tuple([env.observation_space(agent) for agent in self.names])
        self.action_space = Tuple([env.action_space(agent) for agent in self.names])
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)
        self._last: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Start an episode; seed and options are those of the environment inside."""
        super().reset(seed=seed)
        shown, infos = self.env.reset(seed=seed, options=options)
        require_all(self.env, shown, "JointEnv")
        self._last = dict(shown)
        return self._joint(), self._flat(infos)

    def step(  # type: ignore[override]
        self, action: Sequence[int]
    ) -> tuple[tuple[Any, ...], list[float], bool, bool, dict[str, Any]]:
        """Play one turn.

        Args:
            action: for each agent its action (an integer, of Python or of numpy).

        Returns:
            Observations, rewards (one float per agent), terminated, truncated, infos.

        Raises:
            TypeError: when an action is no integer.
            ValueError: see above.
        """
        if len(action) != self.n_agents:
            raise ValueError(
                f"the action ({action!r}) must have one entry for each of the {self.n_agents} "
                f"agents ({', '.join(self.names)})"
            )
        chosen = {
            agent: whole_number(f"the action of {agent}", one, 0)
            for agent, one in zip(self.names, action, strict=True)
        }
        shown, rewards, terminations, truncations, infos = self.env.step(chosen)
        terminated, truncated = self._ends(terminations, truncations)
        # Environments may show nothing to agents that have ended.
        self._last.update(shown)
        flat = self._flat(infos)
        if truncated:
            flat["episode_limit"] = True
        return (
            self._joint(),
            [float(rewards[agent]) for agent in self.names],
            terminated,
            truncated,
            flat,
        )

    def render(self) -> Any:
        """What the environment inside renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment inside."""
        self.env.close()

    def _joint(self) -> tuple[Any, ...]:
        return tuple(self._last[agent] for agent in self.names)

    def _ends(
        self, terminations: Mapping[str, bool], truncations: Mapping[str, bool]
    ) -> tuple[bool, bool]:
        ends = {(bool(terminations[agent]), bool(truncations[agent])) for agent in self.names}
        (one, *others) = ends
        if others or any(one) == bool(self.env.agents):
            raise ValueError(
                f"agents of {self.env} ended apart from each other, or in different ways "
                f"(terminated: {dict(terminations)}, truncated: {dict(truncations)}), and a joint "
                "environment has one end; put UniformEnd around the environment"
            )
        return one

    def _flat(self, infos: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {
            f"{agent}_{key}": value
            for agent in self.names
            for key, value in infos.get(agent, {}).items()
            if is_number(value)
        }


def register_joint(gym_id: str, make_env: Callable[..., ParallelEnv], **kwargs: Any) -> None:
    """Give `JointEnv(make_env(**kwargs))` a Gymnasium id, by which EPyMARL finds it.

    Args:
        gym_id: the id, such as `"my/coordination-v0"`.
        make_env: makes the environment with its views, a new one in each call.
        kwargs: its arguments. Those of `gymnasium.make` (EPyMARL: `env_args.NAME=...`) go before.

    Raises:
        TypeError: when `make_env` is not callable; when the environment is made, see `JointEnv`.
    """
    if isinstance(make_env, ParallelEnv) or not callable(make_env):
        raise TypeError(
            f"make_env ({kind_of(make_env)}) must be a function that returns the environment"
        )

    def entry_point(**given: Any) -> JointEnv:
        return JointEnv(make_env(**given))

    # Gymnasium's checker would complain about rewards that are lists.
    gymnasium.register(gym_id, entry_point, kwargs=kwargs, disable_env_checker=True)


def _check_spaces(env: ParallelEnv, agent: str) -> None:
    shown, action = env.observation_space(agent), env.action_space(agent)
    if not is_numeric(shown) or not shown.is_np_flattenable:
        raise TypeError(
            f"EPyMARL needs numbers as observations; the observation space of {agent} is {shown}. "
            "Put EmbedObservations or TokenObservations around the environment"
        )
    if not isinstance(action, Discrete) or action.start != 0:
        raise TypeError(
            f"EPyMARL needs Discrete actions counted from 0; the action space of {agent} is "
            f"{action}. Put CandidateActions or TokenByToken around the environment"
        )
