"""Other people's environments of vectors, played as teams: mpe2, SISL, magent2, and ours."""

import warnings

import numpy as np
import pytest

from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.streams import TRAIN, derived_seed
from marlogue.algorithms.team_tape import Tape
from marlogue.algorithms.team_vector import make_team_vector
from marlogue.envs import pursuit_v0, spread_v0
from marlogue.wrappers import Subteam
from tests.support.libraries import needs
from tests.support.team_envs import assert_equal

# Module, what its environment is made with, and the expected team: N, D, A, number of types.
SPREAD = ("mpe2.simple_spread_v3", {"N": 2, "max_cycles": 6}, (2, 12, 5, 1))
ADVERSARY = ("mpe2.simple_adversary_v3", {"max_cycles": 6}, (3, 10, 5, 2))
TAG = ("mpe2.simple_tag_v3", {"continuous_actions": True, "max_cycles": 6}, (4, 16, 5, 2))
PURSUIT = ("pettingzoo.sisl.pursuit_v5", {"n_evaders": 2, "max_cycles": 9}, (8, 147, 5, 1))
# A walker that falls leaves, and the others go on.
WALKERS = (
    "pettingzoo.sisl.multiwalker_v9",
    {"terminate_on_fall": False, "remove_on_fall": True, "max_cycles": 90},
    (3, 31, 4, 1),
)
BATTLE = ("magent2.environments.battle_v4", {"map_size": 12, "max_cycles": 8}, (4, 845, 21, 1))
# Soldiers of two kinds; some die on the way.
ARMS = (
    "magent2.environments.combined_arms_v6",
    {"map_size": 16, "max_cycles": 60},
    (12, 1521, 25, 2),
)
ELSEWHERE = [SPREAD, ADVERSARY, TAG, PURSUIT, WALKERS, BATTLE, ARMS]
LEAVE_EARLY = [WALKERS, ARMS]


def maker(module, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the module that holds the factory
        found = needs(module)
    return lambda: found.parallel_env(**settings)


def random_actions(team, rng):
    if team.discrete:
        return rng.integers(team.action_sizes, size=(1, team.num_agents))
    return rng.uniform(-1, 1, (1, team.num_agents, team.action_size))


@pytest.mark.filterwarnings("ignore")  # gymnasium's and the libraries' own
@pytest.mark.parametrize("given", ELSEWHERE, ids=lambda given: given[0].rpartition(".")[2])
def test_is_played_as_it_is(given):
    """Two episodes and the same ones stepped by hand: what is shown, earned, who is there, ends."""
    module, settings, sizes = given
    make = maker(module, settings)
    vector, env, rng = make_team_vector(make, seed=1), make(), np.random.default_rng(0)
    team = vector.team
    assert (team.num_agents, team.observation_size, team.action_size, len(team.kinds)) == sizes
    view, left = vector.reset(), 0
    for episode in range(2):
        shown, _ = env.reset(seed=derived_seed(1, TRAIN, 0, episode))
        returns, over = dict.fromkeys(team.agents, 0.0), False
        while not over:
            present = [agent in env.agents for agent in team.agents]
            left += not all(present)
            assert view.present[0].tolist() == present
            rows, _ = team.observe({agent: shown[agent] for agent in env.agents})
            np.testing.assert_array_equal(view.observations[0], rows)
            actions = random_actions(team, rng)
            step, (shown, rewards, ended, cut, _) = (
                vector.step(actions),
                env.step(team.environment_actions(actions[0], env.agents)),
            )
            for i, agent in enumerate(team.agents):
                assert step.rewards[0, i] == pytest.approx(rewards.get(agent, 0.0), abs=1e-5)
                assert step.terminated[0, i] == bool(ended.get(agent, False))
                assert step.truncated[0, i] == bool(cut.get(agent, False) and not ended[agent])
                returns[agent] += rewards.get(agent, 0.0)
            over = not env.agents
            assert step.over[0] == over
            view = step.view
        (end,) = step.episodes
        assert end.returns.tolist() == pytest.approx(list(returns.values()), abs=1e-4)
    assert (left > 0) == (given in LEAVE_EARLY)
    env.close()
    vector.close()


@pytest.mark.filterwarnings("ignore")
def test_one_side_of_a_battle():
    team = TeamSpec.of(Subteam(maker(*BATTLE[:2])(), "red_*"))
    assert team.agents == ("red_0", "red_1")
    with make_team_vector(lambda: Subteam(maker(*BATTLE[:2])(), "red_*"), seed=0) as vector:
        vector.reset()
        rng = np.random.default_rng(0)
        ends = [end for _ in range(20) for end in vector.step(random_actions(team, rng)).episodes]
    assert [end.length for end in ends] == [8, 8]


@pytest.mark.parametrize(
    ("module", "crowded", "size"),
    [
        (spread_v0, {"observe": "nearest", "half_width": None}, 14),
        (pursuit_v0, {"num_evaders": None, "size": None}, 149),
    ],
)
def test_ours_of_10_and_of_30_show_the_same_networks_the_same(module, crowded, size):
    for num_agents in (10, 30):
        settings = {"num_agents": num_agents, **crowded}
        with make_team_vector(module.parallel_env, env_kwargs=settings) as vector:
            seen = vector.reset().observations[0]
        assert seen.shape == (num_agents, size)
        positions = seen[:, list(module.POSITION)]
        assert len(np.unique(positions, axis=0)) == num_agents
        assert np.ptp(positions, axis=0).min() > 0.5
        assert np.abs(positions).max() <= 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", ELSEWHERE, ids=lambda given: given[0].rpartition(".")[2])
def test_an_episode_under_way_is_played_again(given):
    """In another environment, from its seed and actions: as a checkpoint of AAC has it."""
    module, settings, _ = given
    make, rng = maker(module, settings), np.random.default_rng(0)
    with make_team_vector(make, seed=1) as vector, make_team_vector(make, seed=1) as other:
        tape, view = Tape(1, vector.team.num_agents), vector.reset()
        for _ in range(4):
            actions = random_actions(vector.team, rng)
            step = vector.step(actions)
            tape.add(actions, step)
            view = step.view
        saved = tape.running([number - 1 for number in vector.next_episodes], view)
        assert saved[0].length == 4
        _, lost = other.resume(saved)
        assert not lost.any()
        assert_equal(other.step(actions), vector.step(actions))
