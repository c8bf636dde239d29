"""A game in which two agents move in turns, small enough to follow on paper."""

from pettingzoo import ParallelEnv

from marlogue.envs import WAITS, UnicodeText


class Alternating(ParallelEnv):
    """agent_0 and agent_1 move alternately, `moves` times; both earn the length of what was said.

    The first to move is `first`. Who waits says nothing, and says so by "". An episode is
    terminated, or truncated if `cut`.
    """

    metadata = {"name": "alternating_v0"}  # noqa: RUF012

    def __init__(self, moves=4, first="agent_0", cut=False):
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents = []
        self.moves, self.first, self.cut = moves, first, cut
        self.said = []
        self.ignored = []
        self.space = UnicodeText(50)

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return self.space

    def mover(self):
        start = self.possible_agents.index(self.first)
        return self.possible_agents[(start + len(self.said)) % 2]

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.said, self.ignored = [], []
        return self._shown(), self._infos()

    def step(self, actions):
        mover = self.mover()
        self.ignored += [text for agent, text in actions.items() if agent != mover]
        self.said.append(actions[mover])
        over = len(self.said) == self.moves
        rewards = dict.fromkeys(self.agents, float(len(actions[mover])))
        ended, never = dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, False)
        flags = (never, ended) if self.cut else (ended, never)
        shown, infos = self._shown(), self._infos()
        if over:
            self.agents = []
        return shown, rewards, *flags, infos

    def _shown(self):
        return dict.fromkeys(self.agents, "/".join(self.said))

    def _infos(self):
        return {agent: {WAITS: agent != self.mover()} for agent in self.agents}
