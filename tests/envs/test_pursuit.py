"""pursuit_v0: step by step the game that SISL's pursuit plays, and hand-computed situations."""

import copy
import pickle

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from marlogue.envs import pursuit_v0
from tests.support.libraries import needs

LEFT, RIGHT, UP, DOWN, STAY = range(5)


class Replays:
    """Moves SISL's evaders as ours will move, drawn from a copy of our generator."""

    def __init__(self):
        self.moves = iter(())

    def follow(self, ours, theirs):
        self.rng, self.theirs = copy.deepcopy(ours.rng), theirs
        self.moves = iter(())

    def act(self, state):
        move = next(self.moves, None)
        if move is None:
            self.moves = iter(self.rng.integers(5, size=self.theirs.evader_layer.n_agents()))
            move = next(self.moves)
        return move


def put(theirs, ours):
    """Give SISL's environment our positions."""
    game = theirs.unwrapped.env
    for layer, places in ((game.pursuer_layer, ours.pursuers), (game.evader_layer, ours.evaders)):
        for i, (x, y) in enumerate(places):
            layer.set_position(i, x, y)
    game.model_state[1] = game.pursuer_layer.get_state_matrix()
    game.model_state[2] = game.evader_layer.get_state_matrix()
    return game


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shared_reward": False, "obs_range": 5},
        {"surround": False, "shared_reward": False},
        {"freeze_evaders": True, "shared_reward": False},
    ],
)
def test_plays_as_sisl(settings):
    sisl = needs("pettingzoo.sisl.pursuit_v5")
    common = {"max_cycles": 50, "tag_reward": 0.0, **settings}
    replays = {} if settings.get("freeze_evaders") else {"evader_controller": Replays()}
    theirs = sisl.parallel_env(
        n_pursuers=16, n_evaders=12, x_size=12, y_size=14, **common, **replays
    )
    ours = pursuit_v0.parallel_env(
        num_agents=16, num_evaders=12, size=(12, 14), position=False, **common
    )
    assert ours.possible_agents == theirs.possible_agents
    agent = ours.possible_agents[0]
    assert ours.observation_space(agent) == theirs.observation_space(agent)
    ours.action_space(agent).seed(1)  # one space for all
    game = theirs.unwrapped.env
    np.testing.assert_array_equal(ours.walls, game.map_matrix == -1)
    theirs.reset(seed=0)
    # All in a corner, so that some are caught. SISL itself never begins so crowded.
    rng = np.random.default_rng(0)
    crowd = {"pursuers": rng.integers(4, size=(16, 2)), "evaders": rng.integers(3, size=(12, 2))}
    ours.reset(seed=0, options=crowd)
    game = put(theirs, ours)
    for controller in replays.values():
        controller.follow(ours, game)
    rewards = set()
    while ours.agents:
        actions = {agent: int(ours.action_space(agent).sample()) for agent in ours.agents}
        expected = theirs.step(actions)
        seen = ours.step(actions)
        rewards |= {round(reward, 6) for reward in seen.rewards.values()}
        assert seen.rewards == pytest.approx(expected[1])
        assert seen[2:4] == tuple(map(dict, expected[2:4]))
        for agent in ours.possible_agents:
            np.testing.assert_array_equal(seen.observations[agent], expected[0][agent])
    assert theirs.agents == []
    assert len(rewards) > 1, "nobody was caught, so this has shown little"


def situation(pursuers, evaders, **settings):
    env = pursuit_v0.parallel_env(
        num_agents=len(pursuers),
        num_evaders=len(evaders),
        **{"size": (10, 10), "freeze_evaders": True, "shared_reward": False, **settings},
    )
    env.reset(seed=0, options={"pursuers": pursuers, "evaders": evaders})
    return env


class TestByHand:
    """On 10 x 10 the wall covers x of 4 to 6 and y of 3 to 7."""

    def test_walls_and_borders_stop(self):
        env = situation([[0, 0], [3, 5], [2, 2], [9, 9]], [[9, 0]])
        env.step(dict(zip(env.agents, (LEFT, RIGHT, UP, DOWN), strict=True)))
        assert env.pursuers.tolist() == [[0, 0], [3, 5], [2, 3], [9, 8]]

    def test_tags(self):
        """The first is beside two evaders, the second on one, the third far away."""
        env = situation([[1, 0], [2, 1], [8, 8]], [[1, 1], [2, 1], [3, 0]])
        result = env.step(dict(zip(env.agents, (RIGHT, STAY, STAY), strict=True)))
        # At (2, 0): beside (2, 1) and (3, 0). At (2, 1): beside (1, 1).
        assert list(result.rewards.values()) == pytest.approx([-0.08, -0.09, -0.1])

    def test_a_catch_in_the_corner(self):
        """Two open cells beside (0, 0); the third pursuer comes to one of them as well."""
        env = situation([[1, 0], [0, 1], [2, 0], [5, 0]], [[0, 0], [9, 9]])
        result = env.step(dict(zip(env.agents, (STAY, STAY, LEFT, STAY), strict=True)))
        assert list(result.rewards.values()) == pytest.approx([4.91, 4.91, 4.91, -0.1])
        assert env.state()[8:].tolist() == pytest.approx([-1, -1, 0.9, 0.9])
        assert not any(result.terminations.values())

    def test_a_catch_at_the_wall_ends_the_game(self):
        """(3, 5) has the wall to its right; everybody gets the mean."""
        env = situation([[2, 5], [3, 6], [2, 4], [9, 9]], [[3, 5]], shared_reward=True)
        result = env.step(dict(zip(env.agents, (STAY, STAY, RIGHT, STAY), strict=True)))
        assert list(result.rewards.values()) == pytest.approx([(3 * 5.01) / 4 - 0.1] * 4)
        assert all(result.terminations.values())
        assert not any(result.truncations.values())
        assert env.agents == []

    def test_a_catch_in_the_very_last_step_is_the_end_all_the_same(self):
        env = situation([[1, 0], [0, 1]], [[0, 0]], max_cycles=1)
        result = env.step(dict.fromkeys(env.agents, STAY))
        assert all(result.terminations.values())
        assert not any(result.truncations.values())

    def test_a_gap_lets_it_go(self):
        env = situation([[2, 5], [3, 6]], [[3, 5]])
        result = env.step(dict.fromkeys(env.agents, STAY))
        assert list(result.rewards.values()) == pytest.approx([-0.09, -0.09])

    def test_a_catch_by_number(self):
        env = situation([[1, 1], [1, 2], [8, 8]], [[1, 1], [8, 8]], surround=False)
        result = env.step(dict(zip(env.agents, (STAY, DOWN, STAY), strict=True)))
        assert list(result.rewards.values()) == pytest.approx([4.9, 4.9, -0.1])

    def test_what_is_seen(self):
        env = situation([[1, 0], [2, 1], [2, 1], [3, 4]], [[0, 1], [9, 9]], obs_range=3)
        seen, _ = env.reset(options={"pursuers": env.pursuers, "evaders": env.evaders})
        np.testing.assert_allclose(seen["pursuer_0"][:2], [0.1, 0])
        window = seen["pursuer_0"][2:].reshape(3, 3, 3)  # rows are y = -1, 0, 1
        assert window[:, :, 0].tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]
        assert window[:, :, 1].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 2]]
        assert window[:, :, 2].tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
        window = seen["pursuer_3"][2:].reshape(3, 3, 3)
        assert window[:, :, 0].tolist() == [[0, 0, 1]] * 3

    def test_evaders_walk_alike_often_in_all_directions(self):
        """2,000 moves; 5 deviations of a count are 90."""
        env = situation([[0, 0]], [[2, 1]] * 2000, freeze_evaders=False)
        env.step({"pursuer_0": STAY})
        moves, counts = np.unique(env.evaders - [2, 1], axis=0, return_counts=True)
        assert moves.tolist() == [[-1, 0], [0, -1], [0, 0], [0, 1], [1, 0]]
        assert (np.abs(counts - 400) < 90).all()


def test_everybody_begins_on_a_cell_of_their_own_outside_the_wall():
    env = pursuit_v0.parallel_env(num_agents=100, num_evaders=None, size=None)
    assert (env.size, env.num_evaders) == ((57, 57), 375)
    env.reset(seed=0)
    for places in (env.pursuers, env.evaders):
        assert len(np.unique(places, axis=0)) == len(places)
        assert not env.walls[tuple(places.T)].any()
        assert np.ptp(places, axis=0).tolist() == pytest.approx([56, 56], abs=3)


def test_the_size_of_an_observation_does_not_depend_on_the_team():
    sizes = [
        pursuit_v0.parallel_env(num_agents=n, num_evaders=None, size=None)
        .observation_space("pursuer_0")
        .shape
        for n in (1, 10, 300)
    ]
    assert sizes == [(149,)] * 3


@pytest.mark.parametrize("settings", [{}, {"num_agents": 1, "position": False, "max_cycles": 9}])
class TestConformance:
    def test_parallel_api(self, settings):
        parallel_api_test(pursuit_v0.parallel_env(**settings), num_cycles=30)

    def test_seeds(self, settings):
        parallel_seed_test(lambda: pursuit_v0.parallel_env(**settings), num_cycles=30)

    def test_copies_go_on_alike(self, settings):
        env = pursuit_v0.parallel_env(**settings, render_mode="rgb_array")
        env.reset(seed=3)
        twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
        results = [one.step(dict.fromkeys(env.agents, UP)) for one in (env, *twins)]
        assert results[0].rewards == results[1].rewards == results[2].rewards
        assert np.array_equal(env.state(), twins[0].state())
        assert env.state_space.contains(env.state())
        assert env.render().shape == (128, 128, 3)


class TestFaults:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"num_agents": 0}, r"num_agents \(0\)"),
            ({"num_evaders": 0}, r"num_evaders \(0\)"),
            ({"obs_range": 4}, r"obs_range \(4\) must be odd"),
            ({"n_catch": 0}, r"n_catch \(0\)"),
            ({"size": (0, 5)}, r"size \(\(0, 5\)\)"),
        ],
    )
    def test_arguments(self, settings, message):
        with pytest.raises(ValueError, match=message):
            pursuit_v0.parallel_env(**settings)

    @pytest.mark.parametrize("place", [[5, 5], [10, 0], [-1, 0], [0.5, 0]])
    def test_places(self, place):
        with pytest.raises(ValueError, match="options\\['evaders'\\]"):
            situation([[0, 0]], [place])
