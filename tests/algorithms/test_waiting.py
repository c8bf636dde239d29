"""Learners on environments in which agents take turns: who waits has `infos[agent]["waits"]`."""

from __future__ import annotations

import pytest
import torch
from gymnasium.spaces import Text
from pettingzoo import ParallelEnv

from marlogue.envs import WAITS, UnicodeText, check_text_env
from tests.support.team import KINDS, make_trainer, weights

BOTH = pytest.mark.parametrize("critic_type", ["v", "q"])
WORDS = "vwxyz"
SHORT = Text(6)  # at least one character


class TakesTurnsEnv(ParallelEnv):
    """agent_0 acts in turns 0 and 2, agent_1 in turns 1 and 3; both are rewarded in each."""

    metadata = {"name": "takes_turns_v0"}  # noqa: RUF012
    REWARDS = ((0.0, 0.25), (0.5, 1.0), (0.0, 3.0), (2.0, 4.0))

    def __init__(self, ends: str = "terminated", nobody_before: int = 0) -> None:
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents: list[str] = []
        self.space = UnicodeText(200)
        self.ends = ends
        self.nobody_before = nobody_before
        self.turn = 0
        self.strict = True

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return self.space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.turn = 0
        return self._shown(), self._infos()

    def step(self, actions):
        acting = self.agents
        mover = self._mover()
        if self.strict:
            assert all(text == "" for agent, text in actions.items() if agent != mover)
        rewards = dict(zip(acting, self.REWARDS[self.turn], strict=True))
        self.turn += 1
        over = dict.fromkeys(acting, self.turn == len(self.REWARDS))
        never = dict.fromkeys(acting, False)
        self.agents = [] if self.turn == len(self.REWARDS) else acting
        flags = (over, never) if self.ends == "terminated" else (never, over)
        return self._shown(), rewards, *flags, self._infos()

    def _mover(self):
        return None if self.turn < self.nobody_before else f"agent_{self.turn % 2}"

    def _shown(self):
        return {agent: f"{WORDS[self.turn]} {agent[-1]}" for agent in self.possible_agents}

    def _infos(self):
        return {agent: {WAITS: agent != self._mover()} for agent in self.possible_agents}


def play(kind: str, env, **settings):
    """Train on one episode; returns its samples by agent and turn, and whose weights moved."""
    samples: list = []
    trainer = make_trainer(
        kind,
        env=env,
        max_steps=1,
        num_turns=4,
        metrics_callback=lambda s: samples.extend(s) or {},
        **settings,
    )
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    moved = {
        name.split()[1]
        for name in after
        if "agent" in name and not torch.equal(before[name], after[name])
    }
    return {(s.agent_idx, s.turn_idx): s for s in samples}, moved


@BOTH
@pytest.mark.parametrize("kind", KINDS)
class TestTakingTurns:
    def test_only_who_acts_is_asked_and_learns_from_it(self, kind, critic_type):
        samples, moved = play(kind, TakesTurnsEnv(), critic_type=critic_type)
        assert sorted(samples) == [(0, 0), (0, 2), (1, 1), (1, 3)]
        assert moved == {"0", "1"}

    def test_what_comes_in_while_waiting_is_credited_to_the_last_action(self, kind, critic_type):
        """Rewards before an agent's first action (0.25 of agent_1) are no consequence of any."""
        samples, _ = play(kind, TakesTurnsEnv(), critic_type=critic_type)
        rewards = {key: sample.reward for key, sample in samples.items()}
        assert rewards == {(0, 0): 0.0 + 0.5, (0, 2): 0.0 + 2.0, (1, 1): 1.0 + 3.0, (1, 3): 4.0}
        assert samples[0, 0].return_ == 2.5
        assert samples[1, 1].return_ == 8.0

    def test_targets_bootstrap_from_the_agents_own_next_action(self, kind, critic_type):
        samples, _ = play(kind, TakesTurnsEnv(), critic_type=critic_type, discount=0.5)
        assert samples[0, 0].next is samples[0, 2]
        assert samples[0, 0].target == pytest.approx(0.5 + 0.5 * samples[0, 2].value)
        assert samples[1, 1].target == pytest.approx(4.0 + 0.5 * samples[1, 3].value)
        assert samples[0, 2].target == 2.0
        assert samples[1, 3].target == 4.0

    def test_a_cut_bootstraps_for_who_waited_too(self, kind, critic_type):
        env = TakesTurnsEnv("truncated")
        samples, _ = play(kind, env, critic_type=critic_type, discount=0.5)
        for key, reward in (((0, 2), 2.0), ((1, 3), 4.0)):
            following = samples[key].next
            assert following.is_final_observation
            assert following.prompt == f"z {key[0]}"
            assert samples[key].target == pytest.approx(reward + 0.5 * following.value)

    def test_an_agent_that_never_acts_leaves_no_sample(self, kind, critic_type):
        samples, _ = play(kind, TakesTurnsEnv(nobody_before=3), critic_type=critic_type)
        assert sorted(samples) == [(1, 3)]
        assert samples[1, 3].target == 4.0


def test_the_team_sees_who_waits() -> None:
    samples, _ = play("maac", TakesTurnsEnv())
    assert samples[1, 1].joint.prompts == ("w 0", "w 1")
    assert samples[1, 1].joint.completions[0] == ""


def test_who_waits_says_as_little_as_its_space_allows() -> None:
    """A stock text space does not contain the empty text."""
    heard: list[str] = []

    class Listening(TakesTurnsEnv):
        def action_space(self, agent):
            return SHORT

        def step(self, actions):
            heard.extend(text for agent, text in actions.items() if agent != self._mover())
            self.strict = False
            return super().step(actions)

    play("maac", Listening())
    assert heard
    assert all(SHORT.contains(text) for text in heard)


def test_it_is_a_proper_text_environment() -> None:
    env = TakesTurnsEnv()
    env.strict = False  # sampled actions speak out of turn
    check_text_env(env)
