"""The cluster, its costs and its fluid reference, against numbers worked out by hand and loops."""

import copy
import math
import pickle

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from marlogue.envs import cloud_scheduling_v0
from marlogue.envs.cloud_cluster import (
    Cluster,
    draw_jobs,
    fluid_reference,
    on_simplex,
    weights,
)
from marlogue.envs.cloud_scheduling_v0 import (
    best_fit,
    parallel_env,
    random_choice,
    shortest_queue,
)

VARIANTS = [
    {"num_agents": 5},
    {"num_agents": 2, "max_steps": 7},
    {"num_agents": 9, "reward": "own", "num_candidates": 3},
    {"num_agents": 6, "cluster_seed": None},
]


def pair(**settings):
    """Two schedulers and two servers, the first server twice the second; both see both."""
    cluster = Cluster(
        capacities=np.array([[2.0, 4.0], [1.0, 2.0]]),
        candidates=np.array([[0, 1], [1, 0]]),
        rates=np.array([0.5, 0.5]),
        demands=np.array([[0.2, 0.1], [0.1, 0.4]]),
    )
    env = parallel_env(cluster=cluster, job_length=10.0, **settings)
    env.reset(seed=0, options={"load": [[0.5, 0.5], [0.9, 0.2]]})
    env.jobs = np.array([[1.0, 0.4], [0.2, 0.2]])
    return env


def acting(env, choices):
    return dict(zip(env.possible_agents, choices, strict=True))


def cost_of(env, policy, seed=0):
    """Mean cost of a step over an episode."""
    env.reset(seed=seed)
    costs = []
    while env.agents:
        env.step(policy(env))
        costs.append(env.cost)
    return sum(costs) / len(costs)


@pytest.mark.parametrize("settings", VARIANTS)
class TestConformance:
    def test_parallel_api(self, settings):
        parallel_api_test(parallel_env(**settings), num_cycles=100)

    def test_parallel_seed(self, settings):
        parallel_seed_test(lambda: parallel_env(**settings), num_cycles=50)

    def test_spaces_and_truncation(self, settings):
        env = parallel_env(**settings)
        generator = np.random.default_rng(0)
        env.reset(seed=3)
        for step in range(env.settings.max_steps):
            assert env.state_space.contains(env.state())
            seen, rewards, terminated, truncated, _ = env.step(random_choice(env, generator))
            over = step == env.settings.max_steps - 1
            assert all(env.observation_space(agent).contains(seen[agent]) for agent in seen)
            assert set(terminated.values()) == {False}
            assert set(truncated.values()) == {over}
            assert list(rewards) == env.possible_agents
        assert env.agents == []

    def test_copies_go_on_alike(self, settings):
        env = parallel_env(**settings)
        env.reset(seed=1)
        for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
            mine, its = copy.deepcopy(env), other
            for _ in range(5):
                actions = acting(env, [1] * len(env.agents))
                assert mine.step(actions)[1] == its.step(actions)[1]


class TestStep:
    def test_two_servers_by_hand(self):
        env = pair()
        rewards = env.step(acting(env, [0, 0]))[1]  # each to the server of its own number
        # Loads with the jobs: (0.5 + 1/2, 0.5 + 0.4/4) and (0.9 + 0.2/1, 0.2 + 0.2/2). The second
        # server's cpu lacks 0.1, and it is a third of the cluster.
        assert env.cost == pytest.approx(0.1 / 3)
        assert rewards == pytest.approx(acting(env, [-0.1 / 3] * 2))
        # A tenth of the jobs end; on the second server a tenth of 1 / 1.1.
        right = [[0.9, 0.54], [1.1 * (1 - 1 / 11), 0.3 * (1 - 1 / 11)]]
        np.testing.assert_allclose(env.load, right)
        np.testing.assert_allclose(env.state(), np.ravel(right), rtol=1e-6)

    def test_the_other_way_round(self):
        env = pair()
        env.step(acting(env, [1, 1]))
        # cpu: 0.5 + 0.2/2 and 0.9 + 1/1; memory: 0.5 + 0.2/4 and 0.2 + 0.4/2.
        assert env.cost == pytest.approx(0.9 / 3)
        np.testing.assert_allclose(env.load[0], [0.54, 0.495])
        np.testing.assert_allclose(env.load[1], [1.9 - 0.1, 0.4 * (1 - 1 / 19)])

    def test_whole_episode_in_loops_and_no_work_is_lost(self):
        env = parallel_env(6, num_candidates=3, max_steps=60, load=1.0)
        generator = np.random.default_rng(5)
        env.reset(seed=2)
        cluster = env.cluster
        load = env.load.tolist()
        begun = (env.load * cluster.capacities).sum(0)
        arrived, ended = np.zeros(2), np.zeros(2)
        waited = 0.0
        while env.agents:
            actions = random_choice(env, generator)
            for i, agent in enumerate(env.possible_agents):
                server = cluster.candidates[i][actions[agent]]
                for r in range(2):
                    load[server][r] += env.jobs[i, r] / cluster.capacities[server, r]
                    arrived[r] += env.jobs[i, r]
            env.step(actions)
            cost = 0.0
            for server in range(6):
                share = sum(cluster.capacities[server] / cluster.capacities.sum(0)) / 2
                worst = max(load[server])
                cost += share * max(worst - 1, 0)
                for r in range(2):
                    gone = load[server][r] / 20 / max(worst, 1)
                    load[server][r] -= gone
                    ended[r] += gone * cluster.capacities[server, r]
            assert env.cost == pytest.approx(cost)
            np.testing.assert_allclose(env.load, load)
            waited += cost
        assert waited > 0
        here = (env.load * cluster.capacities).sum(0)
        np.testing.assert_allclose(begun + arrived, here + ended)

    def test_own_rewards_have_the_team_reward_as_their_mean(self):
        generator = np.random.default_rng(0)
        team, own = (
            parallel_env(9, num_candidates=4, reward=reward, load=1.2) for reward in ("team", "own")
        )
        team.reset(seed=0)
        own.reset(seed=0)
        for _ in range(50):
            actions = random_choice(team, generator)
            shared, each = team.step(actions)[1], own.step(actions)[1]
            assert set(shared.values()) == {-team.cost}
            assert np.mean(list(each.values())) == pytest.approx(-team.cost)
        assert len(set(each.values())) > 1

    def test_jobs_do_not_depend_on_what_is_done(self):
        first, second = parallel_env(5), parallel_env(5)
        first.reset(seed=4)
        second.reset(seed=4)
        for _ in range(20):
            np.testing.assert_array_equal(first.jobs, second.jobs)
            first.step(acting(first, [0] * 5))
            second.step(acting(second, [1] * 5))
        assert not np.allclose(first.load, second.load)

    def test_jobs_are_as_large_as_the_streams_say(self):
        cluster, generator = parallel_env(5).cluster, np.random.default_rng(0)
        drawn = np.array([draw_jobs(cluster, 1.3, generator) for _ in range(20_000)])
        shares = (drawn > 0).all(2).mean(0)
        np.testing.assert_allclose(shares, cluster.rates, atol=0.015)
        asked = 1.3 * cluster.rates[:, None] * cluster.demands
        np.testing.assert_allclose(drawn.mean(0), asked, rtol=0.06)
        assert (np.quantile(drawn[..., 0], 0.999, 0) > 4 * 1.3 * cluster.demands[:, 0]).all()

    def test_observations_by_hand(self):
        env = pair(period=4)
        env._phase = 0.25
        seen = env._observations()["scheduler_1"]
        right = [
            *(0.9, 0.2, 0.5, 0.5),  # its candidates: the second server, the first
            *(0.2, 0.1, 0.1, 0.05),
            *(math.log(2 / 3), math.log(2 / 3), math.log(4 / 3), math.log(4 / 3)),
            *(0.4 / 3, 0.4 / 6, 1.0),
            *((2 * 0.5 + 0.9) / 3, (2 * 0.5 + 0.2) / 3, 0.0, 1.0, 0.0),
        ]
        np.testing.assert_allclose(seen, right, atol=1e-6)
        env.load = np.array([[math.e, 0.5], [0.5, 0.5]])
        seen = env._observations()["scheduler_0"]
        assert seen[0] == pytest.approx(2.0)
        assert seen[17] == pytest.approx(1 + math.log(2 * (math.e - 1) / 3), abs=1e-6)


class TestReference:
    def test_equal_shapes_are_balanced(self):
        cluster = pair().cluster
        even = Cluster(cluster.capacities, cluster.candidates, cluster.rates, np.full((2, 2), 0.3))
        # Each resource: 10 * 0.5 * 0.6 asked, of capacities 3 and 6.
        np.testing.assert_allclose(fluid_reference(even, 10.0), [[1.0, 0.5]] * 2, rtol=1e-3)

    def test_a_grid_of_all_splits(self):
        generator = np.random.default_rng(3)
        cluster = Cluster(
            generator.uniform(1, 3, (2, 2)),
            np.array([[0, 1], [0, 1]]),
            np.array([0.4, 0.6]),
            generator.uniform(0.1, 0.9, (2, 2)),
        )
        p, q = np.meshgrid(*[np.linspace(0, 1, 1001)] * 2, indexing="ij")
        flows = 8.0 * cluster.rates[:, None] * cluster.demands
        first, second = p[..., None], q[..., None]
        sent = [
            first * flows[0] + second * flows[1],
            (1 - first) * flows[0] + (1 - second) * flows[1],
        ]
        loads = np.stack(sent, 2) / cluster.capacities
        costs = (2 * cluster.capacities / cluster.capacities.sum(0) * loads**2).sum((2, 3)) / 2
        best = loads[np.unravel_index(costs.argmin(), costs.shape)]
        np.testing.assert_allclose(fluid_reference(cluster, 8.0), best, atol=3e-3)

    @pytest.mark.parametrize("seed", range(3))
    def test_no_split_is_better(self, seed):
        env = parallel_env(40, cluster_seed=seed)
        cluster, x = env.cluster, env.reference
        flows = 20.0 * cluster.rates[:, None] * cluster.demands
        np.testing.assert_allclose((x * cluster.capacities).sum(0), flows.sum(0))
        # A convex cost: its slope at x bounds what any other split could save.
        scale = cluster.capacities * 40 / cluster.capacities.sum(0)
        least = 0.0
        for i in range(40):
            least += min(
                sum(scale[s, r] * x[s, r] * flows[i, r] / cluster.capacities[s, r] for r in (0, 1))
                for s in cluster.candidates[i]
            )
        cost = (scale * x**2).sum() / 2
        assert -1e-9 <= (2 * cost - least) / cost <= 1e-5
        even = np.zeros_like(x)
        for i in range(40):
            even[cluster.candidates[i]] += flows[i] / 5 / cluster.capacities[cluster.candidates[i]]
        assert cost < 0.95 * (scale * even**2).sum() / 2

    def test_load_is_the_mean_utilisation(self):
        env = parallel_env(12, load=0.6)
        used = (env.reference * env.cluster.capacities).sum(0)
        np.testing.assert_allclose(used / env.cluster.capacities.sum(0), 0.6)

    def test_on_simplex(self):
        points = np.array([[0.2, 0.2, 0.2], [3.0, 0.0, 0.0], [0.5, 0.9, -1.0]])
        right = [[1 / 3] * 3, [1.0, 0.0, 0.0], [0.3, 0.7, 0.0]]
        np.testing.assert_allclose(on_simplex(points), right)

    def test_weights(self):
        right = [[4 / 3, 4 / 3], [2 / 3, 2 / 3]]
        np.testing.assert_allclose(weights(pair().cluster.capacities), right)


class TestPolicies:
    def test_best_fit_by_hand(self):
        env = pair()
        env.load = np.array([[0.1, 0.1], [0.5, 0.5]])
        env.jobs = np.array([[0.4, 0.4], [0.2, 0.2]])
        # The first job leaves less of the small server: 0.1 of cpu and 0.3 of memory. The second
        # (0.2 of cpu there) then fits on the large one only, its candidate 1.
        assert best_fit(env) == {"scheduler_0": 1, "scheduler_1": 1}
        env.jobs = np.array([[0.4, 0.4], [0.0, 0.0]])
        assert best_fit(env) == {"scheduler_0": 1, "scheduler_1": 0}

    def test_best_fit_where_nothing_fits(self):
        env = pair()
        env.load = np.array([[1.0, 0.1], [0.8, 0.5]])
        env.jobs = np.array([[0.4, 0.4], [0.0, 0.0]])  # to loads of 1.2 and of 1.2 + 0.1
        env.load[1, 0] = 0.9
        assert best_fit(env)["scheduler_0"] == 0
        env.load[0, 0] = 1.2
        assert best_fit(env)["scheduler_0"] == 1

    def test_shortest_queue(self):
        env = pair()
        # (1.0, 0.6) and (1.9, 0.4); (1.1, 0.3) and (0.6, 0.55)
        assert shortest_queue(env) == {"scheduler_0": 0, "scheduler_1": 1}

    @pytest.mark.parametrize("num_agents", [5, 20, 50])
    def test_order_of_the_policies(self, num_agents):
        env, generator = parallel_env(num_agents), np.random.default_rng(0)
        packed, short = cost_of(env, best_fit), cost_of(env, shortest_queue)
        assert packed > 0.01
        assert cost_of(env, lambda env: random_choice(env, generator)) > 3 * packed
        assert 0.8 * short < packed < 1.1 * short


class TestSeeds:
    def test_clusters(self):
        fixed, fresh = parallel_env(5), parallel_env(5, cluster_seed=None)
        assert not np.allclose(fixed.cluster.capacities, fresh.cluster.capacities)
        before = fixed.cluster
        fixed.reset(seed=1)
        assert fixed.cluster is before
        drawn = []
        for seed in (1, 2, 1):
            fresh.reset(seed=seed)
            drawn.append(fresh.cluster.capacities)
        np.testing.assert_array_equal(drawn[0], drawn[2])
        assert not np.allclose(drawn[0], drawn[1])

    def test_episodes_go_on_without_a_seed(self):
        first, second = parallel_env(5), parallel_env(5)
        first.reset(seed=1)
        second.reset(seed=1)
        began = first.jobs
        first.reset()
        second.reset()
        np.testing.assert_array_equal(first.jobs, second.jobs)
        assert not np.allclose(began, first.jobs)


class TestErrors:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"num_agents": 1}, r"num_agents \(1\) must be at least 2"),
            ({"num_candidates": 1}, r"num_candidates \(1\)"),
            ({"load": 0.0}, r"load \(0.0\) must be above 0"),
            ({"swing": 1.5}, r"swing \(1.5\) must be between 0 and 1"),
            ({"reference_error": -1}, r"reference_error \(-1\)"),
            ({"reward": "mine"}, r"reward \('mine'\) must be 'team' or 'own'"),
            ({"max_steps": 0}, r"max_steps \(0\)"),
        ],
    )
    def test_settings(self, settings, message):
        with pytest.raises(ValueError, match=message):
            parallel_env(**settings)

    @pytest.mark.parametrize(
        ("part", "value", "message"),
        [
            ("capacities", np.array([[1.0, 0.0], [1.0, 1.0]]), "capacities .* above 0"),
            ("candidates", np.array([[0, 0], [1, 0]]), "candidates .* different servers"),
            ("candidates", np.array([[0, 2], [1, 0]]), "between 0 and 1"),
            ("rates", np.array([0.5, 1.5]), "rates"),
            ("rates", np.array([0.5]), r"rates \(of shape \(1,\)\) must be of shape \(2,\)"),
            ("demands", np.array([[0.1, -1.0]] * 2), "demands"),
        ],
    )
    def test_clusters(self, part, value, message):
        parts = {**vars(pair().cluster), part: value}
        with pytest.raises(ValueError, match=message):
            Cluster(**parts)

    def test_actions(self):
        env = pair()
        with pytest.raises(ValueError, match="must have one for scheduler_1"):
            env.step({"scheduler_0": 0})
        with pytest.raises(ValueError, match=r"scheduler_1 \(2\) must be the index"):
            env.step(acting(env, [0, 2]))
        with pytest.raises(ValueError, match=r"scheduler_0 \(-1\)"):
            env.step(acting(env, [-1, 0]))

    def test_over(self):
        env = pair(max_steps=1)
        env.step(acting(env, [0, 0]))
        with pytest.raises(RuntimeError, match="call reset"):
            env.step(acting(env, [0, 0]))

    @pytest.mark.parametrize("load", [[1.0], [[-0.1, 0], [0, 0]], [[math.nan, 0], [0, 0]]])
    def test_loads(self, load):
        with pytest.raises(ValueError, match="share of each server"):
            pair().reset(options={"load": load})


def test_metadata():
    env = cloud_scheduling_v0.parallel_env(5)
    assert env.metadata["name"] == "cloud_scheduling_v0"
    assert env.render_mode is None
