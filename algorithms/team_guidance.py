"""What is known about a system, asked beside its environment before each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.guidance import Influence, checked_guidance, guided_values
from marlogue.envs.callbacks import callback_name, require_callable, require_result

Guidance = Callable[[Any, dict[str, Any], Mapping[str, Any]], Any]


class Guide:
    """Calls a guidance and makes one array of what it gives.

    Args:
        guidance: called with (state, actions, infos): the state of the environment, or the agents'
            observations where it has none; the actions of the agents that act, as the environment
            gets them; and the infos shown with the observations acted from. It gives, for every
            agent, the advantage of its action or the values of all its actions (continuous: the
            gradient by the numbers in its action, in the environment's units), the higher the
            better, as an array, a sequence or a mapping from agents; or an `Influence`.
        team: the agents.
    """

    def __init__(self, guidance: Guidance, team: TeamSpec) -> None:
        require_callable(guidance, "guidance")
        self.guidance = guidance
        self.team = team
        self._scale = None if team.discrete else _half_ranges(team)

    def __call__(
        self,
        state: Any,
        given: dict[str, Any],
        infos: Mapping[str, Any],
        actions: NDArray[Any],
        present: NDArray[np.bool_],
        env: int,
    ) -> NDArray[np.float32]:
        """The guidance of one environment.

        Args:
            state: as for the guidance; so for the next two.
            given: actions.
            infos: infos.
            actions: [N] or [N, A], as networks give them.
            present: [N], agents that act.
            env: number of the environment, for messages.

        Returns:
            [N] or [N, A], zeros for absent agents; gradients by the numbers in [-1, 1].

        Raises:
            ValueError: when the guidance gave what it must not.
        """
        found = self.guidance(state, given, infos)
        require_result(found, "guidance", self.guidance)
        if isinstance(found, Influence):
            found = guided_values(found, None if self._scale is not None else actions)
        values = self._array(found)
        names, A = list(self.team.agents), self.team.action_size
        values = checked_guidance(values, names, A, first_env=env)[0]
        if values.ndim == 2 and self._scale is not None:
            values *= self._scale
        values[~present] = 0.0
        return values

    def _array(self, found: Any) -> Any:
        """Rows in the order of the agents, padded where they have fewer actions than others."""
        if isinstance(found, np.ndarray):
            return found.copy()  # it is scaled and masked in place
        agents = self.team.agents
        if isinstance(found, Mapping):
            strangers = set(found) - set(agents)
            if strangers:
                raise ValueError(
                    f"guidance ({callback_name(self.guidance)}) gave values for "
                    f"{sorted(map(str, strangers))}, who are not of the team {list(agents)}."
                )
            nothing = np.zeros(1 if any(map(np.ndim, found.values())) else (), np.float32)
            rows = [np.asarray(found.get(agent, nothing), np.float32) for agent in agents]
        else:
            rows = [np.asarray(row, np.float32) for row in found]
        if not rows or {row.ndim for row in rows} != {1}:
            return np.array(rows, np.float32)
        A = self.team.action_size
        return np.stack([np.pad(row, (0, max(A - len(row), 0))) for row in rows])


def own_guidance(env: Any) -> Guidance:
    """The method `guidance` of an environment, or of one that it wraps.

    Raises:
        ValueError: when there is none.
    """
    inner = env
    while inner is not None:
        found = getattr(inner, "guidance", None)
        if callable(found):
            return found
        wrapped = [getattr(inner, name, None) for name in ("env", "aec_env", "par_env")]
        inner = next((one for one in wrapped if one is not None), None)
    raise ValueError(
        f"guidance (True) must be found in the environment, but {env} has no method "
        "guidance(state, actions, infos); write one, or pass a function."
    )


def state_or(env: Any, shown: Mapping[str, Any]) -> Any:
    """The state of an environment; what it shows its agents, where it has none."""
    try:
        return env.state()
    except NotImplementedError:
        return shown


def _half_ranges(team: TeamSpec) -> NDArray[np.float32]:
    """[N, A], units of the environment for one of the networks; zeros where there is no number."""
    scale = np.zeros((team.num_agents, team.action_size), np.float32)
    for row, space in zip(scale, team.action_spaces, strict=True):
        assert isinstance(space, Box)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        row[: low.size] = ((high - low) / 2).reshape(-1)
    return scale
