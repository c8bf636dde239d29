"""Small environments and callbacks for tests; at module level, so that they can be pickled."""

from __future__ import annotations

import copy
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs import TextEnv, UnicodeText

ROWS = [{"prompt": "x", "id": 0}, {"prompt": "y", "id": 1}, {"prompt": "z", "id": 2}]


def length_reward(*completions):
    """Team reward: how many characters the team wrote."""
    return [float(sum(map(len, joint))) for joint in zip(*completions, strict=True)]


def echo(agent_completions, prompt_history_per_agent, turn_idx, **_):
    """Each agent is shown its own prompt and answer of the turn before."""
    shown = [history[-1] for history in prompt_history_per_agent]
    pairs = zip(shown, agent_completions, strict=True)
    return [f"{turn_idx}|{prompt}|{completion}" for prompt, completion in pairs]


def text_env(**kwargs: Any) -> TextEnv:
    """A two-agent environment over `ROWS`; any argument can be replaced."""
    settings = {
        "dataset": copy.deepcopy(ROWS),
        "reward_func": length_reward,
        "external_transition": echo,
    }
    return TextEnv(**{**settings, **kwargs})


def actions(*texts: str) -> dict[str, str]:
    return {f"agent_{index}": text for index, text in enumerate(texts)}


class LeaverEnv(ParallelEnv):
    """agent_0 earns 1, 0, 2 in three turns; agent_1 earns 1 and leaves after the first (C59)."""

    metadata = {"name": "leaver_v0"}  # noqa: RUF012
    REWARDS = (1.0, 0.0, 2.0)

    def __init__(self, end: str = "terminated") -> None:
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents: list[str] = []
        self.end = end
        self.turn = 0
        self.seed: int | None = None
        self.num_resets = 0
        self.space = UnicodeText(100)

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return self.space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.turn = 0
        self.seed = seed
        self.num_resets += 1
        return self._shown(), {agent: {"seed": seed} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        acting = self.agents
        last = self.turn == len(self.REWARDS) - 1
        rewards = dict.fromkeys(acting, self.REWARDS[self.turn])
        ended = {agent: last or agent == "agent_1" for agent in acting}
        shown = self._shown()
        self.turn += 1
        self.agents = [agent for agent in acting if not ended[agent]]
        never = dict.fromkeys(acting, False)
        flags = (ended, never) if self.end == "terminated" else (never, ended)
        return shown, rewards, *flags, {agent: {} for agent in acting}

    def _shown(self):
        return dict.fromkeys(self.agents, f"seed {self.seed}, turn {self.turn}")
