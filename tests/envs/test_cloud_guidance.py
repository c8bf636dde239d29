"""Guidance of the cluster: against finite differences, dense tensors and what it is good for."""

import numpy as np
import pytest
import torch

from marlogue.algorithms.guidance import distance_values, influence_values
from marlogue.envs.cloud_guidance import mistaken
from marlogue.envs.cloud_scheduling_v0 import best_fit, parallel_env, random_choice


def begun(**settings):
    env = parallel_env(**{"num_agents": 7, "num_candidates": 3, **settings})
    env.reset(seed=3)
    generator = np.random.default_rng(3)
    for _ in range(30):
        env.step(random_choice(env, generator))
    assert env.jobs.any()
    return env, random_choice(env, generator)


def scale(env):
    return env.cluster.capacities * len(env.cluster.capacities) / env.cluster.capacities.sum(0)


def distance(env, load):
    """``|x - x_ref|^2 / 2``."""
    return float((scale(env) * (load - env.reference) ** 2).sum() / 2)


def influence(env):
    """z [N, A, N, R] as a dense tensor."""
    cluster = env.cluster
    count, choices = cluster.candidates.shape
    dense = np.zeros((count, choices, count, 2))
    for i in range(count):
        for a in range(choices):
            server = cluster.candidates[i, a]
            dense[i, a, server] = env.jobs[i] / cluster.capacities[server]
    return dense


def after(env, actions, without=None):
    """x with the jobs of all agents, or of all but one."""
    dense, load = influence(env), env.load.astype(np.float32).astype(np.float64)
    for i, agent in enumerate(env.possible_agents):
        if i != without:
            load = load + dense[i, actions[agent]]
    return load


def test_linear_part_against_finite_differences():
    env, actions = begun(exact_guidance=False)
    values, dense = env.guidance(env.state(), actions, {}), influence(env)
    x, little = after(env, actions), 1e-4
    for i in range(7):
        for a in range(3):
            up = distance(env, x + little * dense[i, a])
            down = distance(env, x - little * dense[i, a])
            assert values[i, a] == pytest.approx(-(up - down) / (2 * little), abs=1e-7)


def test_exact_distance():
    env, actions = begun()
    values, dense = env.guidance(env.state(), actions, {}), influence(env)
    for i in range(7):
        others = after(env, actions, without=i)
        for a in range(3):
            change = distance(env, others + dense[i, a]) - distance(env, others)
            assert values[i, a] == pytest.approx(-change, abs=1e-9)


def test_dense_tensors_of_the_algorithms_agree():
    env, actions = begun(exact_guidance=False)
    exact, _ = begun()
    root = np.sqrt(scale(env)).ravel()
    dense = torch.tensor(influence(env).reshape(1, 7, 3, 14) * root)
    state = torch.tensor(after(env, actions).reshape(1, 14) * root)
    reference = torch.tensor(env.reference.reshape(14) * root)
    linear = influence_values(state, reference, dense)[0].numpy()
    np.testing.assert_allclose(env.guidance(env.state(), actions, {}), linear, atol=1e-9)
    taken = torch.tensor([[actions[agent] for agent in env.possible_agents]])
    whole = distance_values(state, reference, dense, taken)[0].numpy()
    ours = exact.guidance(exact.state(), actions, {})
    # They differ by what is the same for all actions of an agent.
    np.testing.assert_allclose(ours - ours[:, :1], whole - whole[:, :1], atol=1e-9)


def test_agents_that_are_left_out_send_nothing():
    env, _ = begun()
    values, dense = env.guidance(env.state(), {}), influence(env)
    load = env.load.astype(np.float32).astype(np.float64)
    change = distance(env, load + dense[2, 1]) - distance(env, load)
    assert values[2, 1] == pytest.approx(-change, abs=1e-9)


def test_only_neighbours_matter():
    env, actions = begun(num_agents=12)
    values = env.guidance(env.state(), actions)
    moved = {**actions, "scheduler_0": (actions["scheduler_0"] + 1) % 3}
    changed = env.guidance(env.state(), moved)
    # Scheduler 0 reaches the servers 0 to 2; those that reach one of them are 10, 11 and 0 to 2.
    np.testing.assert_array_equal(values[3:10], changed[3:10])
    assert (values != changed).any()


def test_no_job_no_preference():
    env, actions = begun()
    idle = ~env.jobs.any(1)
    assert idle.any()
    assert (env.guidance(env.state(), actions)[idle] == 0).all()


class TestWrongReference:
    def test_every_server_is_taken_for_another(self):
        capacities = np.arange(1.0, 21.0).reshape(10, 2)
        wrong = mistaken(capacities, 1.0)
        assert sorted(wrong[:, 0]) == sorted(capacities[:, 0])
        assert (wrong != capacities).all()
        np.testing.assert_array_equal(mistaken(capacities, 0.0), capacities)
        np.testing.assert_allclose(mistaken(capacities, 0.5), np.sqrt(wrong * capacities))

    def test_costs_are_true_and_guidance_is_not(self):
        right, actions = begun()
        wrong, _ = begun(reference_error=1.0)
        np.testing.assert_array_equal(right.load, wrong.load)
        np.testing.assert_array_equal(right.reference, wrong.reference)
        assert right.step(actions)[1] == wrong.step(actions)[1]
        values = right.guidance(right.state(), actions)
        assert not np.allclose(values, wrong.guidance(wrong.state(), actions))

    def test_following_it(self):
        """Greedy choice by the guidance: near best-fit when it is right, far when it is wrong."""

        def greedy(env):
            choices = env.guidance(env.state(), {}).argmax(1).tolist()
            return dict(zip(env.possible_agents, choices, strict=True))

        def cost(env, policy):
            env.reset(seed=0)
            total = 0.0
            while env.agents:
                env.step(policy(env))
                total += env.cost
            return total

        right, wrong = parallel_env(50), parallel_env(50, reference_error=1.0)
        best = cost(right, best_fit)
        assert cost(right, greedy) < 1.25 * best
        assert cost(wrong, greedy) > 2 * best
