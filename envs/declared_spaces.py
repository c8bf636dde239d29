"""What an environment says of its spaces, where they are in dictionaries."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space


class DeclaredSpaces:
    """PettingZoo's two methods, for a class that keeps its spaces by agent.

    Attributes:
        observation_spaces, action_spaces: agent to space.
    """

    observation_spaces: dict[str, Space[Any]]
    action_spaces: dict[str, Space[Any]]

    def observation_space(self, agent: str) -> Space[Any]:
        """The space of what an agent is shown; the same object at every call."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """The space of what an agent may do; the same object at every call."""
        return self.action_spaces[agent]
