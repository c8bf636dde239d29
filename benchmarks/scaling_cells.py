"""One cell of the scaling table: an update, or a critic's step, measured in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from meter import peak_memory, resident_memory
from team_tasks import Noise

from marlogue.agents.attention_critic import AttentionCritic
from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.aac_config import AACConfig
from marlogue.algorithms.aac_losses import critic_loss, taken
from marlogue.algorithms.aac_networks import AACNetworks
from marlogue.algorithms.aac_rows import Preparation
from marlogue.algorithms.aac_update import AACLearner
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.replay_data import Transitions

#: As in simple_spread with three agents.
OBSERVATION_SIZE, NUM_ACTIONS = 18, 5
HIDDEN = 128


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured.

    Attributes:
        work: "update" (critic, actors, target networks), "critic" (forward and backward pass of
            the critic and its optimiser's step), or "peer" (BenchMARL MASAC's own update).
        num_agents: N.
        batch_size: B.
        critic: "attention" or "concat" (as MADDPG's).
        attention: "full" or "linear".
        num_queries: M; None for all.
    """

    work: str
    num_agents: int
    batch_size: int = 256
    critic: str = "attention"
    attention: str = "full"
    num_queries: int | None = None


def measure(cell: Cell, seconds: float) -> dict[str, float]:
    """Median CPU milliseconds of the cell's work, and by how many GB it made the process grow.

    Args:
        cell: the work.
        seconds: about how long, in CPU seconds; at least 5 times.
    """
    make = {"update": _update, "critic": _critic_step, "peer": _peer_update}[cell.work]
    torch.randn(64, 64).requires_grad_().square().sum().backward()  # torch's own start
    before = resident_memory()
    run = make(cell)
    for _ in range(2):
        run()
    taken_ms: list[float] = []
    while len(taken_ms) < 5 or sum(taken_ms) < 1000 * seconds:
        started = time.process_time()
        run()
        taken_ms.append(1000 * (time.process_time() - started))
    return {"ms": median(taken_ms), "gb": peak_memory() - before, "times": len(taken_ms)}


def _update(cell: Cell) -> Callable[[], Any]:
    team = _team(cell)
    args = AACConfig(
        critic_architecture=cell.critic,
        attention=cell.attention,
        num_queries=cell.num_queries,
        hidden_size=HIDDEN,
        actor_hidden_sizes=(HIDDEN, HIDDEN),
        batch_size=cell.batch_size,
        device="cpu",
    )
    learner = AACLearner(args, AACNetworks.build(args, team), Preparation(), seed=0)
    return partial(learner.update, _transitions(cell))


def _critic_step(cell: Cell) -> Callable[[], None]:
    critic = AttentionCritic(_team(cell), hidden_size=HIDDEN, attention=cell.attention)
    steps = Optimizer(critic.parameters(), 1e-3, 10.0)
    batch = _transitions(cell)
    count = cell.num_queries

    def step() -> None:
        queries = None if count is None else critic.random_queries(count, cell.batch_size)
        actions, targets = batch.actions, batch.rewards
        if queries is not None:
            actions, targets = actions.gather(1, queries), targets.gather(1, queries)
        q = critic(batch.observations, batch.actions, queries=queries)
        critic_loss(taken(q, actions), targets).backward()
        steps.step()

    return step


def _peer_update(cell: Cell) -> Callable[[], Any]:
    from benchmarl_side import Settings, make_experiment, update_of

    settings = Settings(
        learner="masac", steps=10_000, batch_size=cell.batch_size, hidden=HIDDEN, collected=1000
    )
    env = partial(Noise, cell.num_agents, OBSERVATION_SIZE, NUM_ACTIONS)
    return update_of(make_experiment(settings, env, 25, seed=0), cell.batch_size)


def _team(cell: Cell) -> TeamSpec:
    return TeamSpec.of(Noise(cell.num_agents, OBSERVATION_SIZE, NUM_ACTIONS))


def _transitions(cell: Cell) -> Transitions:
    """A batch as replay gives it: everybody present, all actions available."""
    B, N = cell.batch_size, cell.num_agents
    source = torch.Generator().manual_seed(0)
    here = torch.ones(B, N, dtype=torch.bool)
    return Transitions(
        observations=torch.randn(B, N, OBSERVATION_SIZE, generator=source),
        actions=torch.randint(NUM_ACTIONS, (B, N), generator=source),
        rewards=torch.randn(B, N, generator=source),
        next_observations=torch.randn(B, N, OBSERVATION_SIZE, generator=source),
        discounts=torch.full((B, N), 0.95),
        present=here,
        next_present=here,
        weights=torch.ones(B),
        serials=np.arange(B),
    )
