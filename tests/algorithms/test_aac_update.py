"""An update of actor-attention-critic against the same numbers computed apart, agent by agent."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from marlogue.algorithms.aac_config import AACConfig
from marlogue.algorithms.aac_memory import share_rewards
from marlogue.algorithms.aac_networks import AACNetworks
from marlogue.algorithms.aac_rows import Preparation, rows_of_sequences
from marlogue.algorithms.aac_update import AACLearner
from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import ReplayLayout, TeamStep, Transitions
from marlogue.algorithms.sequence_replay import SequenceReplay
from tests.support.teams import seeded, team_of

N, B = 3, 6


def config(**changes) -> AACConfig:
    return AACConfig(
        **{
            "hidden_size": 8,
            "num_heads": 2,
            "actor_hidden_sizes": (8,),
            "temperature": 0.1,
            "tau": 0.25,
            "max_grad_norm": None,
            "scale_rewards": False,
            **changes,
        }
    )


def made(args, discrete=True):
    team = team_of([4, 3, 4], [3, 2, 3] if discrete else [2, 1, 2], discrete)
    networks = AACNetworks.build(args, team, generator=seeded(0))
    with torch.no_grad():  # the slow copies differ from the fast ones
        for module in (networks.target_actors, networks.target_critic):
            for parameter in module.parameters():
                parameter.mul_(0.8)
    return team, networks


def transitions(team, *, leaver=True, guidance=None) -> Transitions:
    random = np.random.default_rng(0)
    sizes = np.array(team.observation_sizes)
    there = np.arange(team.observation_size) < sizes[:, None]

    def seen():
        return torch.from_numpy((random.normal(size=(B, N, 4)) * there).astype(np.float32))

    present = torch.ones(B, N, dtype=torch.bool)
    if leaver:
        present[1, 2] = False
    discounts = torch.full((B, N), 0.9)
    discounts[0] = 0.0  # terminated
    exists = team.action_mask()
    if team.discrete:
        actions = torch.from_numpy(random.integers(2, size=(B, N)))
        available = exists.expand(B, N, 3).clone()
        available[2, 0, 1] = False
    else:
        actions = torch.from_numpy(random.uniform(-1, 1, (B, N, 2)).astype(np.float32)) * exists
        available = None
    first, then = seen(), seen()
    first[~present] = 0
    return Transitions(
        observations=first,
        actions=actions,
        rewards=torch.from_numpy(random.normal(size=(B, N)).astype(np.float32)),
        next_observations=then,
        discounts=torch.where(present, discounts, 0.0),
        present=present,
        next_present=present.clone(),
        weights=torch.linspace(0.5, 1.0, B),
        serials=np.arange(B),
        available=available,
        next_available=available,
        guidance=guidance,
    )


def expected_losses(args, networks, batch, seed):
    """Critic and actor loss, one agent and sample at a time."""
    team, alpha = networks.team, args.temperature
    generator = seeded(seed)
    with torch.no_grad():
        policy, _ = networks.target_actors(batch.next_observations, available=batch.next_available)
        next_actions, next_logs = policy.sample(generator)
        slow = networks.target_critic(batch.next_observations, next_actions, batch.next_present)
        q = networks.critic(batch.observations, batch.actions, batch.present)
    critic = []
    for b in range(B):
        for i in range(N):
            if not batch.present[b, i]:
                continue
            if team.discrete:
                probs, logs = policy.probs[b, i], policy.log_probs[b, i]
                value = sum(
                    float(probs[a]) * (float(slow[b, i, a]) - alpha * float(logs[a]))
                    for a in range(3)
                    if probs[a] > 0
                )
                taken = float(q[b, i, batch.actions[b, i]])
            else:
                value = float(slow[b, i]) - alpha * float(next_logs[b, i])
                taken = float(q[b, i])
            target = float(batch.rewards[b, i]) + float(batch.discounts[b, i]) * value
            critic.append(float(batch.weights[b]) * (taken - target) ** 2)
    return sum(critic) / len(critic), generator


def actor_loss(args, networks, batch, generator):
    """Of the critic after its step; expected form, or pathwise for individual rewards."""
    alpha, losses = args.temperature, []
    with torch.no_grad():
        policy, _ = networks.actors(batch.observations, available=batch.available)
        actions, logs = policy.sample(generator)
        q = networks.critic(batch.observations, actions, batch.present)
    for b in range(B):
        for i in range(N):
            if not batch.present[b, i]:
                continue
            if not networks.team.discrete:
                losses.append(alpha * float(logs[b, i]) - float(q[b, i]))
                continue
            for a in range(3):
                p = float(policy.probs[b, i, a])
                if p > 0:
                    log = float(policy.log_probs[b, i, a])
                    losses.append(p * (alpha * log - float(q[b, i, a])))
    count = int(batch.present.sum())
    return sum(losses) / count


@pytest.mark.parametrize("discrete", [True, False])
def test_losses_and_slow_copies(discrete):
    args = config()
    team, networks = made(args, discrete)
    batch = transitions(team)
    old = copy.deepcopy(networks)
    learner = AACLearner(args, networks, Preparation(), seed=5)
    updated = learner.update(batch)
    critic, generator = expected_losses(args, old, batch, 5)
    assert updated.figures["critic/loss"] == pytest.approx(critic, rel=1e-4)
    # The actors' loss is of the critic after its step and of the actors before theirs.
    mixed = copy.deepcopy(networks)
    mixed.actors.load_state_dict(old.actors.state_dict())
    assert updated.figures["actor/loss"] == pytest.approx(
        actor_loss(args, mixed, batch, generator), rel=1e-4
    )
    for fast, slow, before in (
        (networks.critic, networks.target_critic, old.target_critic),
        (networks.actors, networks.target_actors, old.target_actors),
    ):
        for new, moved, was in zip(
            fast.parameters(), slow.parameters(), before.parameters(), strict=True
        ):
            torch.testing.assert_close(moved, 0.25 * new + 0.75 * was)


def test_actors_learn_nothing_into_the_critic_and_the_other_way_round():
    args = config(agent_learning_rate=0.0, critic_learning_rate=1e-3)
    team, networks = made(args)
    old = copy.deepcopy(networks)
    AACLearner(args, networks, Preparation(), seed=5).update(transitions(team))
    for new, was in zip(networks.actors.parameters(), old.actors.parameters(), strict=True):
        assert torch.equal(new, was)
    moved = [
        not torch.equal(new, was)
        for new, was in zip(networks.critic.parameters(), old.critic.parameters(), strict=True)
    ]
    assert any(moved)
    args = config(critic_learning_rate=0.0)
    team, networks = made(args, discrete=False)
    old = copy.deepcopy(networks)
    AACLearner(args, networks, Preparation(), seed=5).update(transitions(team))
    for new, was in zip(networks.critic.parameters(), old.critic.parameters(), strict=True):
        assert torch.equal(new, was)


def test_absent_agents_change_nothing():
    """Whatever stands at an agent that is not there, even a NaN in its reward."""
    args = config()
    team, networks = made(args)
    batch = transitions(team)
    twin = copy.deepcopy(networks)
    rewards = batch.rewards.clone()
    rewards[1, 2] = torch.nan
    first = AACLearner(args, networks, Preparation(), seed=5).update(batch)
    second = AACLearner(args, twin, Preparation(), seed=5).update(batch._replace(rewards=rewards))
    assert first.figures == second.figures
    assert torch.equal(first.errors, second.errors)
    for one, other in zip(networks.actors.parameters(), twin.actors.parameters(), strict=True):
        assert torch.equal(one, other)


def test_queries_are_a_sample_of_the_losses():
    """The mean over many draws of query agents is the loss over all."""
    team, networks = made(config())
    batch = transitions(team, leaver=False)._replace(weights=torch.ones(B))
    found = {}
    for count in (None, 2):
        args = config(num_queries=count, agent_learning_rate=0.0, critic_learning_rate=0.0)
        learner = AACLearner(args, networks, Preparation(), seed=5)
        losses = []
        for _ in range(300):
            losses.append(learner.update(batch).figures["critic/loss"])
            networks.critic.level.zero_()  # nothing is learnt in between
            networks.target_critic.level.zero_()
        found[count] = np.mean(losses), np.std(losses) / math.sqrt(len(losses))
    assert found[2][0] == pytest.approx(found[None][0], abs=5 * found[2][1])


@pytest.mark.parametrize("discrete", [True, False])
def test_the_level_of_values_goes_where_rewards_put_it(discrete):
    """Without a step of the networks: 5 of 6 samples go on with 0.9, so that a reward of -6 makes
    values of -6 / (1 - 0.75), and what tells actions apart is as it was."""
    args = config(agent_learning_rate=0.0, critic_learning_rate=0.0, temperature=1e-6)
    team, networks = made(args, discrete)
    batch = transitions(team, leaver=False)
    batch = batch._replace(rewards=torch.full((B, N), -6.0), weights=torch.ones(B))
    seen = batch.observations, batch.actions
    before = networks.critic(*seen).detach()
    learner = AACLearner(args, networks, Preparation(), seed=5)
    for _ in range(100):
        learner.update(batch)
    level = networks.critic.level
    assert torch.equal(level, networks.target_critic.level)
    assert float(level) == pytest.approx(-24.0, abs=1.5)  # the networks' own level is not 0
    after = networks.critic(*seen).detach()
    exists = team.action_mask().expand_as(after) if discrete else torch.ones_like(after).bool()
    torch.testing.assert_close((after - before)[exists], level.expand(int(exists.sum())))
    assert (after[~exists] == 0).all()


def test_the_level_counts_what_is_drawn_too_often_for_less():
    """Importance weights of prioritised replay: a sample of weight 0 is not there."""
    levels = []
    for reward in (0.0, 100.0):
        args = config()
        team, networks = made(args)
        batch = transitions(team)
        rewards, weights = batch.rewards.clone(), torch.tensor([0.0, 1.0, 0.5, 1.0, 1.0, 1.0])
        rewards[0] = reward
        batch = batch._replace(rewards=rewards, weights=weights)
        AACLearner(args, networks, Preparation(), seed=5).update(batch)
        levels.append(float(networks.critic.level))
    assert levels[0] == levels[1] != 0.0


def test_guidance_alone_pulls_along_its_slope():
    """With w = 1 and equal critics the policies move to the guidance's best actions."""
    args = config(agent_learning_rate=0.05, critic_learning_rate=0.0, temperature=1e-3)
    team, networks = made(args)
    guidance = torch.zeros(B, N, 3)
    guidance[..., 1] = 1.0
    batch = transitions(team, guidance=guidance)
    learner = AACLearner(args, networks, Preparation(), seed=5)
    for _ in range(60):
        learner.update(batch, guidance_weight=1.0)
    policy, _ = networks.actors(batch.observations, available=batch.available)
    best = policy.probs[..., 1]
    best[2, 0] = 1.0  # not available there
    assert (best[batch.present] > 0.9).all()
    told = [learner.update(batch, 1.0).figures for _ in range(10)]  # every tenth tells all
    assert sum("guidance/cosine" in figures for figures in told) == 1


def test_the_level_rests_where_the_loss_does():
    """One reward of 30 among zeros that nothing tells apart: the mean is 5, but the loss beyond
    ``huber`` is linear. A level that went for the mean would rise for good, and the networks sink.
    """
    args = config(huber=1.0, agent_learning_rate=0.0, critic_learning_rate=1e-3)
    team, networks = made(args)
    batch = transitions(team, leaver=False)
    alike = {
        name: getattr(batch, name)[:1].expand_as(getattr(batch, name))
        for name in ("observations", "actions", "available")
    }
    rewards = torch.zeros(B, N)
    rewards[-1] = 30.0
    batch = batch._replace(
        rewards=rewards, discounts=torch.zeros(B, N), weights=torch.ones(B), **alike
    )
    learner = AACLearner(args, networks, Preparation(), seed=5)
    for _ in range(201):
        updated = learner.update(batch)
    assert abs(float(networks.critic.level)) < 2
    assert updated.figures["critic/q_mean"] == pytest.approx(0.2, abs=0.1)  # 5 q = 1


def test_recurrent_rows_are_what_play_reaches():
    """Policies and what the critic reads, step by step from the start of the episode."""
    args = config(actor_trunk="gru", n_step=2)
    team, networks = made(args)
    random = np.random.default_rng(0)
    layout = ReplayLayout.of(team, hidden_size=8, availability=True)
    buffer = ReplayBuffer(50, layout, discount=0.9)
    exists = np.broadcast_to(team.action_mask().numpy(), (1, N, 3))
    there = np.arange(4) < np.array(team.observation_sizes)[:, None]
    seen = [(random.normal(size=(1, N, 4)) * there).astype(np.float32) for _ in range(6)]
    states, policies = [networks.actors.initial_state(1)], []
    everyone = np.ones((1, N), bool)
    rewards = random.normal(size=(5, 1, N)).astype(np.float32)
    for t in range(5):
        policy, after = networks.actors(torch.from_numpy(seen[t]), states[-1])
        policies.append(policy.log_probs.detach())
        ended = everyone & (t == 4)
        buffer.add(
            TeamStep(
                seen[t], np.zeros((1, N), int), rewards[t], seen[t + 1], ended, ~everyone,
                everyone, exists, exists, hidden=states[-1].detach().numpy(),
            )
        )  # fmt: skip
        states.append(after.detach())
    batch = SequenceReplay(buffer, length=5, burn_in=2).sample(32)
    rows = rows_of_sequences(networks, batch, Preparation(), n_step=2)
    starts = batch.trained.float().argmax(1)  # place of the first trained step
    logs = rows.policy(None).log_probs
    row = 0
    for b in range(32):
        offset = next(t for t in range(5) if torch.equal(
            torch.from_numpy(seen[t][0]), batch.observations[b, 0]
        ))  # fmt: skip
        for place in range(int(starts[b]), int(batch.filled[b].sum())):
            torch.testing.assert_close(logs[row], policies[offset + place][0])
            memory = rows.seen[row][:, 4:]
            torch.testing.assert_close(memory, states[offset + place + 1][0])
            row += 1
    assert row == len(rows.seen)


def test_shared_rewards():
    rewards = np.array([[1.0, 2.0, 6.0], [1.0, 2.0, 6.0]], np.float32)
    present = np.array([[True, True, True], [True, False, True]])
    assert share_rewards(rewards, present, "own") is rewards
    assert share_rewards(rewards, present, "mean").tolist() == [[3, 3, 3], [3.5, 0, 3.5]]
    assert share_rewards(rewards, present, "sum").tolist() == [[9, 9, 9], [7, 0, 7]]
