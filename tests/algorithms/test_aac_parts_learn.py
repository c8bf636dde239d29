"""Actors, attention critic, replay and losses together, on one-step games with known optima."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from marlogue.agents.attention_critic import AttentionCritic
from marlogue.agents.teams import TeamSpec
from marlogue.agents.vector_actors import VectorActors
from marlogue.algorithms import aac_losses as losses
from marlogue.algorithms.aac_targets import priorities, soft_td_targets
from marlogue.algorithms.guidance import mixed_values, unit_spread
from marlogue.algorithms.prioritized_replay import PrioritizedReplayBuffer
from marlogue.algorithms.replay_data import ReplayLayout, TeamStep

N, CUES, E, ALPHA = 3, 3, 32, 0.02


def team(action_space) -> TeamSpec:
    names = [f"agent_{i}" for i in range(N)]
    space = Box(-1.0, 1.0, (CUES,), np.float32)
    return TeamSpec.of_spaces(dict.fromkeys(names, space), dict.fromkeys(names, action_space))


def discrete_rewards(cues, actions):
    """1 for each agent that does what its cue names, less 2 when all three do the same."""
    right = (actions == cues).astype(np.float32)
    same = (actions[:, 1] == actions[:, 0]) & (actions[:, 2] == actions[:, 0])
    return np.repeat(right.sum(1, keepdims=True) - 2 * same[:, None], N, 1)


def continuous_rewards(cues, actions):
    """The team's sum ought to be the number of agents whose cue is 0, less 1.5; at best 0."""
    wanted = (cues == 0).sum(1) - 1.5
    return np.repeat(-((actions[..., 0].sum(1) - wanted) ** 2)[:, None], N, 1)


class Loop:
    """Collect one batch of games, update once, again and again."""

    def __init__(self, action_space, rewards) -> None:
        generator = torch.Generator().manual_seed(0)
        self.team = team(action_space)
        self.actors = VectorActors(
            self.team, hidden_sizes=(32,), id_embedding=4, generator=generator
        )
        self.critic = AttentionCritic(
            self.team, hidden_size=32, num_heads=2, id_embedding=4, generator=generator
        )
        self.replay = PrioritizedReplayBuffer(8000, ReplayLayout.of(self.team), num_envs=E)
        self.rewards = rewards
        self.random = np.random.default_rng(0)
        self.generator = torch.Generator().manual_seed(1)
        self.actor_steps = torch.optim.Adam(self.actors.parameters(), 5e-3)
        self.critic_steps = torch.optim.Adam(self.critic.parameters(), 5e-3)

    def play(self, count):
        cues = self.random.integers(CUES, size=(count, N))
        observations = np.eye(CUES, dtype=np.float32)[cues]
        with torch.no_grad():
            chosen, _ = self.actors(torch.from_numpy(observations))
            actions = chosen.sample(self.generator)[0].numpy()
        return cues, observations, actions, self.rewards(cues, actions)

    def collect(self):
        _, observations, actions, rewards = self.play(E)
        ends = np.ones((E, N), bool)
        self.replay.add(
            TeamStep(observations, actions, rewards, 0 * observations, ends, ~ends, ends)
        )

    def update_critic(self, batch):
        q = self.critic(batch.observations, batch.actions, batch.present)
        if self.team.discrete:
            q = losses.taken(q, batch.actions)
        # Games of one step: what follows counts for nothing.
        targets = soft_td_targets(batch.rewards, batch.discounts, torch.zeros_like(batch.rewards))
        self.critic_steps.zero_grad()
        losses.critic_loss(q, targets, batch.present, batch.weights).backward()
        self.critic_steps.step()
        errors = priorities(q, targets, batch.present)
        self.replay.update_priorities(batch.serials, errors.numpy())

    def update_actors(self, name, batch, guidance=None):
        policy, _ = self.actors(batch.observations)
        actions, log_probs = policy.sample(self.generator)
        present = batch.present
        if name.startswith("pathwise"):
            own, others = losses.own_and_others(actions, name == "pathwise, team")
            q = self.critic(batch.observations, others, present, own_actions=own)
            if name == "pathwise, team":
                loss = losses.team_pathwise_actor_loss(q.mean(-1), log_probs, ALPHA, present)
            else:
                loss = losses.pathwise_actor_loss(q, log_probs, ALPHA, present)
        else:
            with torch.no_grad():
                q = self.critic(batch.observations, actions, present)
            if guidance is not None:
                q = mixed_values(q, unit_spread(guidance(batch)), 0.9)
            if name == "expected":
                loss = losses.expected_actor_loss(policy.log_probs, q, ALPHA, present)
            elif name == "counterfactual":
                table = policy.log_probs
                loss = losses.counterfactual_actor_loss(table, actions, q, ALPHA, present)
            else:
                value = losses.taken(q, actions).mean(-1)
                loss = losses.shared_value_actor_loss(log_probs, value, ALPHA, present)
        gradients = torch.autograd.grad(loss, list(self.actors.parameters()))
        for parameter, gradient in zip(self.actors.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.actor_steps.step()

    def level(self):
        return float(self.play(2000)[3][:, 0].mean())

    def train(self, name, updates, guidance=None):
        for _ in range(updates):
            self.collect()
            batch = self.replay.sample(128)
            self.update_critic(batch)
            self.update_actors(name, batch, guidance)
        return self.level()


@pytest.mark.parametrize("name", ["expected", "counterfactual", "shared_value"])
def test_discrete_actors_come_close_to_the_optimum(name):
    """Random: 1 - 2/9 = 0.78. Doing what the cues say: 3 - 2/9 = 2.78."""
    loop = Loop(Discrete(CUES), discrete_rewards)
    assert loop.level() == pytest.approx(0.78, abs=0.15)
    assert loop.train(name, 200) > 2.6


@pytest.mark.parametrize("name", ["pathwise", "pathwise, team"])
def test_continuous_actors_come_close_to_the_optimum(name):
    """With actions 0.5 at cue 0 and -0.5 otherwise the sum is right: 0 less what noise costs."""
    loop = Loop(Box(-1.0, 1.0, (1,), np.float32), continuous_rewards)
    before = loop.level()
    after = loop.train(name, 450)
    assert before < -1.5
    assert after > -0.12


def test_right_guidance_needs_fewer_updates():
    """After 40 updates; guidance is 1 for the action that the cue names."""
    guided, alone = (Loop(Discrete(CUES), discrete_rewards) for _ in range(2))
    assert guided.train("expected", 40, lambda batch: batch.observations) > 1.8
    assert alone.train("expected", 40) < 1.3
