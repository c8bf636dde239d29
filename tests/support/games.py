"""Small PettingZoo games with numeric observations, whose best return is known."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

CUES = 3


class Game(ParallelEnv):
    """Steps of a fixed number; a subclass shows and scores."""

    metadata = {"name": "game_v0"}  # noqa: RUF012
    length = 1

    def __init__(self, agents, observation_spaces, action_spaces) -> None:
        self.possible_agents = list(agents)
        self._observation_spaces = dict(observation_spaces)
        self._action_spaces = dict(action_spaces)

    def observation_space(self, agent):
        return self._observation_spaces[agent]

    def action_space(self, agent):
        return self._action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.time = 0
        self.begin()
        return self.shown(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        rewards = self.scored(actions)
        self.time += 1
        over = self.time >= self.length
        acted = list(self.agents)
        shown = self.shown()
        if over:
            self.agents = []
        ends, going = dict.fromkeys(acted, over), dict.fromkeys(acted, False)
        return shown, rewards, ends, going, {agent: {} for agent in acted}


class Cues(Game):
    """Each agent sees a cue of its own and ought to answer with its number; the team is paid the
    share of right answers, less 1 when all did the same. Random: about 0.33 - 0.11; best: 1 unless
    all cues are the same."""

    def __init__(self, num_agents=3, length=1, own=False) -> None:
        names = [f"agent_{i}" for i in range(num_agents)]
        self.length, self.own = length, own
        seen, done = Box(-1.0, 1.0, (CUES,), np.float32), Discrete(CUES)
        super().__init__(names, dict.fromkeys(names, seen), dict.fromkeys(names, done))

    def begin(self):
        self.cues = self.random.integers(CUES, size=len(self.possible_agents))

    def shown(self):
        return {
            agent: np.eye(CUES, dtype=np.float32)[self.cues[i]]
            for i, agent in enumerate(self.possible_agents)
        }

    def scored(self, actions):
        right = [actions[agent] == self.cues[i] for i, agent in enumerate(self.possible_agents)]
        if self.own:
            rewards = {agent: float(right[i]) for i, agent in enumerate(self.possible_agents)}
        else:
            rewards = dict.fromkeys(self.possible_agents, float(np.mean(right)))
        self.begin()
        return rewards

    def guidance(self, state, actions, infos):
        """The share of right answers that each action adds."""
        return np.eye(CUES)[self.cues] / len(self.cues)

    def state(self):
        return self.cues.astype(np.float32)


class Targets(Game):
    """Each agent sees a number in [-1, 1] and ought to do half of it, in an action space of its
    own scale; the team is paid minus the mean squared error. Best: 0."""

    def __init__(self, num_agents=2) -> None:
        names = [f"agent_{i}" for i in range(num_agents)]
        seen = Box(-1.0, 1.0, (1,), np.float32)
        done = {name: Box(-2.0, 2.0, (1,), np.float32) for name in names}
        super().__init__(names, dict.fromkeys(names, seen), done)

    def begin(self):
        self.wanted = self.random.uniform(-1, 1, len(self.possible_agents)).astype(np.float32)

    def shown(self):
        return {agent: self.wanted[[i]] for i, agent in enumerate(self.possible_agents)}

    def scored(self, actions):
        done = np.array([actions[agent][0] for agent in self.possible_agents])
        reward = -float(np.mean((done - self.wanted / 2) ** 2))
        return dict.fromkeys(self.possible_agents, reward)


class Memory(Game):
    """Each agent sees a cue in the first step only and is paid for its number in the last of
    four. Without memory: 1/2."""

    length = 4

    def __init__(self, num_agents=2) -> None:
        names = [f"agent_{i}" for i in range(num_agents)]
        seen, done = Box(-1.0, 1.0, (3,), np.float32), Discrete(2)
        super().__init__(names, dict.fromkeys(names, seen), dict.fromkeys(names, done))

    def begin(self):
        self.cues = self.random.integers(2, size=len(self.possible_agents))

    def shown(self):
        seen = np.zeros((len(self.possible_agents), 3), np.float32)
        if self.time == 0:
            seen[np.arange(len(self.cues)), self.cues] = 1.0
        seen[:, 2] = self.time == self.length - 1
        return dict(zip(self.possible_agents, seen, strict=True))

    def scored(self, actions):
        if self.time < self.length - 1:
            return dict.fromkeys(self.possible_agents, 0.0)
        return {
            agent: float(actions[agent] == self.cues[i])
            for i, agent in enumerate(self.possible_agents)
        }


class Idler(Cues):
    """Two types of agents: two answer to cues, and one with other spaces does something of no
    consequence."""

    def __init__(self) -> None:
        super().__init__(2)
        self.possible_agents.append("idler")
        self._observation_spaces["idler"] = Box(-1.0, 1.0, (1,), np.float32)
        self._action_spaces["idler"] = Discrete(2)

    def begin(self):
        self.cues = self.random.integers(CUES, size=2)

    def shown(self):
        seen = [*np.eye(CUES, dtype=np.float32)[self.cues], np.ones(1, np.float32)]
        return dict(zip(self.possible_agents, seen, strict=True))

    def scored(self, actions):
        right = np.mean([actions[f"agent_{i}"] == self.cues[i] for i in range(2)])
        self.begin()
        return dict.fromkeys(self.possible_agents, float(right))


class Leavers(Cues):
    """Three steps; agent i leaves after step i + 1."""

    def __init__(self, num_agents=3) -> None:
        super().__init__(num_agents, length=num_agents)

    def scored(self, actions):
        rewards = {
            agent: float(actions[agent] == self.cues[self.possible_agents.index(agent)])
            for agent in self.agents
        }
        self.begin()
        return rewards

    def step(self, actions):
        assert set(actions) == set(self.agents)
        rewards = self.scored(actions)
        self.time += 1
        acted = list(self.agents)
        self.agents = self.possible_agents[self.time :]
        seen = self.shown()
        over = {agent: agent not in self.agents for agent in acted}
        shown = {agent: seen[agent] for agent in acted}
        return shown, rewards, over, dict.fromkeys(acted, False), {agent: {} for agent in acted}
