"""What a pass takes in memory: the estimate against measurements, and what happens above it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from marlogue.agents import AttentionCritic, Nearest
from marlogue.agents.attention_memory import CriticMemory, available_memory, memory_plan
from tests.support.teams import batch_of, seeded, team_of

CPU = torch.device("cpu")
CASES = [
    (3, 256, "full", None),
    (30, 64, "full", None),
    (30, 64, "full", 8),
    (300, 8, "full", None),
    (100, 32, "linear", None),
    (100, 32, "linear", 16),
    (30, 32, "linear", None),
    (100, 32, "mean", None),
    (100, 32, "local", None),
    (600, 4, "local", None),
]


def critic_of(num_agents, attention="full", **arguments):
    near = Nearest(8, [0, 1]) if attention == "local" else None
    return AttentionCritic(
        team_of([18] * num_agents, [5] * num_agents),
        attention=attention,
        neighbourhood=near,
        generator=seeded(0),
        **arguments,
    )


def measured(run):
    """The most bytes that a function's tensors had at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    now = most = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@pytest.mark.parametrize(("num_agents", "batch_size", "attention", "num_queries"), CASES)
def test_estimate_against_measurement(num_agents, batch_size, attention, num_queries):
    critic = critic_of(num_agents, attention)
    seen, done = batch_of(critic.team, batch_size)
    seen = seen.float()
    present = torch.rand(batch_size, num_agents, generator=seeded(1)) < 0.9
    queries = None
    if num_queries is not None:
        queries = critic.random_queries(num_queries, batch_size, generator=seeded(2))

    def train():
        critic.zero_grad()
        critic(seen, done, present, queries).square().sum().backward()

    @torch.no_grad()
    def judge():
        critic(seen, done, present, queries)

    train()  # from here on there are gradients, which do not count
    for run, training in ((train, True), (judge, False)):
        need = critic.memory(batch_size, num_queries=num_queries, training=training)
        gradients = sum(p.nbytes for p in critic.parameters()) if training else 0
        share = need.total / (measured(run) - gradients)
        assert 0.75 < share < 1.5, f"training={training}: {share:.2f}"


def test_estimate_grows_as_it_should():
    def need(n, kind="full", m=None, b=1):
        return CriticMemory.of(
            batch_size=b,
            num_agents=n,
            num_queries=m,
            observation_size=18,
            action_size=5,
            attention=kind,
            num_neighbours=8,
        )

    assert need(4000).attention > 3.5 * need(2000).attention
    assert need(4000, "linear").total < 2.1 * need(2000, "linear").total
    assert need(4000, m=16).total < 2.1 * need(2000, m=16).total
    assert need(100, b=64).total == 64 * need(100).total


def test_recomputing_in_parts_gives_the_same_numbers():
    """Of a batch of 7, in parts of unequal size, with every optional input."""
    results = []
    for parts in (1, 3):
        critic = critic_of(6, overflow="recompute").double()
        critic.memory_limit = math.ceil(critic.memory(7, num_queries=3).total / parts)
        seen, done = batch_of(critic.team, 7)
        seen.requires_grad_()
        present = torch.rand(7, 6, generator=seeded(1)) < 0.8
        queries = critic.random_queries(3, 7, generator=seeded(2))
        values = critic(seen, done, present, queries)
        values.square().sum().backward()
        grads = [p.grad for p in critic.parameters() if p.numel()]
        with torch.no_grad():
            silent = critic(seen, done, present, queries)
        results.append([values.detach(), silent, seen.grad, *grads])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_recomputing_takes_less_memory():
    plain, thrifty = critic_of(30), critic_of(30, overflow="recompute")
    thrifty.memory_limit = plain.memory(64).total // 4
    seen, done = batch_of(plain.team, 64)
    seen = seen.float()
    peaks = [measured(lambda c=c: c(seen, done).sum().backward()) for c in (plain, thrifty)]
    assert peaks[1] < 0.5 * peaks[0]


def test_error_before_it_runs():
    critic = critic_of(30, memory_limit=2**20)
    seen, done = batch_of(critic.team, 64)
    with pytest.raises(MemoryError, match=r"64 samples would take about \d+ MiB .* limit of 1 MiB"):
        critic(seen.float(), done)
    critic.overflow = "recompute"
    critic.memory_limit = 2**10  # not enough for a single sample
    with pytest.raises(MemoryError, match=r"Set fewer query agents .*attention='linear'"):
        critic(seen.float(), done)


def test_plan_by_hand():
    need = CriticMemory(batch_size=10, tokens=600, attention=300, transient=100)
    assert need.total == 1000
    assert memory_plan(need, CPU, 1000, "error") == 1
    assert memory_plan(need, CPU, 999, "recompute") == 2
    assert memory_plan(need, CPU, 100, "recompute") == 10
    for limit, overflow in ((999, "error"), (99, "recompute")):
        with pytest.raises(MemoryError):
            memory_plan(need, CPU, limit, overflow)


def test_more_than_the_machine_has():
    """Without a limit of one's own: a pass that no machine holds is refused at once."""
    free = available_memory(CPU)
    assert free is not None
    assert 2**20 < free < 2**50
    need = CriticMemory(batch_size=1, tokens=0, attention=2 * free, transient=0)
    with pytest.raises(MemoryError, match="would take about"):
        memory_plan(need, CPU, None, "error")
    assert memory_plan(replace(need, attention=free // 4), CPU, None, "error") == 1
