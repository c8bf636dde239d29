"""MAAC on PettingZoo environments of texts, written here as by somebody who never heard of us."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Text
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import AgentSelector
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from marlogue import MAACConfig, MAACTrainer, tiny_model
from marlogue.wrappers.turn_based import TurnBased
from tests.support.team import Recorder, weights

COLOURS = ("red", "blue", "green")
LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Relay(AECEnv):
    """The reader is shown a colour and says it on; the writer hears that, and says a colour.

    Both earn 1 when the colour has arrived; the reader earns 1 more for saying it right, which it
    is paid when the writer has spoken. The writer has left when the reader speaks once more.
    """

    metadata = {"render_modes": [], "name": "relay_v0", "is_parallelizable": False}  # noqa: RUF012
    render_mode = None

    def __init__(self):
        self.possible_agents = ["reader", "writer"]

    def observation_space(self, agent):
        return Text(30, min_length=0, charset=LETTERS)

    def action_space(self, agent):
        return Text(30, min_length=0, charset=LETTERS)

    def observe(self, agent):
        return f"read {self.colour}" if agent == "reader" else f"heard {self.said}"

    def reset(self, seed=None, options=None):
        self.np_random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.colour = COLOURS[self.np_random.integers(3)]
        self.said = ""
        self.selector = AgentSelector(self.agents)
        self.agent_selection = self.selector.next()

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        if agent == "writer":
            right = action == self.colour
            self.rewards["writer"] = float(right)
            self.rewards["reader"] = float(right) + (self.said == self.colour)
            self.terminations["writer"] = True
        elif "writer" not in self.agents:
            self.terminations["reader"] = True
        else:
            self.said = action if action in COLOURS else "nothing"
        self._accumulate_rewards()
        self.agent_selection = self.selector.next()
        self._deads_step_first()


class Duet(ParallelEnv):
    """Both singers hear a colour, and earn for each that names it, for two verses."""

    metadata = {"render_modes": [], "name": "duet_v0"}  # noqa: RUF012
    render_mode = None

    def __init__(self):
        self.possible_agents = ["high", "low"]
        self.agents = []

    def observation_space(self, agent):
        return Text(30, min_length=0, charset=LETTERS)

    def action_space(self, agent):
        return Text(30, min_length=0, charset=LETTERS)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.verse = 0
        return self.heard(), {agent: {} for agent in self.agents}

    def heard(self):
        self.colour = COLOURS[self.np_random.integers(3)]
        return dict.fromkeys(self.agents, f"sing {self.colour}")

    def step(self, actions):
        reward = sum(said == self.colour for said in actions.values()) / 2
        self.verse += 1
        over = self.verse == 2
        shown = self.heard()
        singers, self.agents = self.agents, [] if over else self.agents
        return (
            shown,
            dict.fromkeys(singers, reward),
            dict.fromkeys(singers, over),
            dict.fromkeys(singers, False),
            {agent: {} for agent in singers},
        )


def total(samples):
    return {"return": sum(sample.reward for sample in samples)}


def trained(env, turns, max_steps):
    """A trainer, its mean return before and after training, and what it saw."""
    words = [*COLOURS, "read", "heard", "nothing", "sing"]
    models = [tiny_model(words, seed=seed) for seed in range(3)]
    trainer = MAACTrainer(
        agents=[models[0][0], models[1][0]],
        critic_model=models[2][0],
        tokenizer=models[0][1],
        env=env(),
        eval_env=env(),
        args=MAACConfig(
            num_turns=turns,
            max_steps=max_steps,
            rollout_buffer_size=64,
            agent_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            max_new_tokens=1,
            eval_interval=0,
            eval_num_samples=100,
            eval_batch_size=100,
            verbose=False,
        ),
        metrics_callback=total,
        callbacks=[recorder := Recorder()],
    )
    untrained = weights(trainer)
    before = trainer.evaluate()["eval/return"]
    trainer.train()
    after = trainer.evaluate()["eval/return"]
    moved = {n for n, tensor in weights(trainer).items() if not torch.equal(tensor, untrained[n])}
    for part in ("agent 0", "agent 1", "critic 0"):
        assert any(name.startswith(part) for name in moved)
    return before, after, recorder


@pytest.mark.slow
def test_an_environment_in_which_agents_take_turns():
    """A random reader and writer earn about 0.3 together, the best possible is 3."""
    before, after, recorder = trained(lambda: TurnBased(OrderEnforcingWrapper(Relay())), 3, 2200)
    for samples in recorder.items:
        first, second, third = samples
        assert [sample.agent for sample in samples] == ["reader", "writer", "reader"]
        # What the reader is paid when the writer has spoken is for what the reader said before.
        assert first.reward in (0, 1, 2)
        assert first.reward - second.reward in (0, 1)
        assert third.reward == 0
    assert before < 0.8
    assert after > 1.6


@pytest.mark.slow
def test_an_environment_in_which_agents_act_at_once():
    """Two agents, two verses: at most 4 over both agents; saying any of ten words earns 0.4."""
    before, after, recorder = trained(Duet, 2, 600)
    assert all(len(samples) == 4 for samples in recorder.items)
    assert before < 1
    assert after > 3
