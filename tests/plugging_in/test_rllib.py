"""RLlib, new API stack: spaces, ends, waiting agents, masks, the text preprocessor, training."""

import os
import re

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from pettingzoo import ParallelEnv

from marlogue.envs import WAITS, coordination_v0
from marlogue.wrappers import (
    ActionMask,
    CandidateActions,
    EmbedObservations,
    HashedNgrams,
    UniformEnd,
)
from marlogue.wrappers.tokens import TokenActions, TokenObservations
from marlogue.wrappers.vocabulary import Words
from tests.support.command_line import ROOT
from tests.support.envs import LeaverEnv, text_env
from tests.support.example_runs import returns_of
from tests.support.libraries import needs
from tests.support.strangers import EchoGame, TakingTurns
from tests.support.turns import Alternating

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = needs("ray")
needs("ray.rllib")
from ray.rllib.algorithms.appo import APPOConfig  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner  # noqa: E402

from marlogue.wrappers.rllib import (  # noqa: E402
    EmbedTexts,
    MultiAgentView,
    register,
    use_environment,
)

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

WORDS = list(coordination_v0.ANSWERS.values())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


def chosen(**kwargs):
    return CandidateActions(coordination_v0.parallel_env(**kwargs), WORDS)


def embedded(env):
    return EmbedObservations(env, HashedNgrams(64))


def small(config, runners=0, envs=4):
    """A configuration in which an iteration is 256 turns, and takes a second."""
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=envs)
    config.rl_module(model_config={"fcnet_hiddens": [32], "head_fcnet_hiddens": []})
    config.training(
        train_batch_size_per_learner=256, minibatch_size=128, num_epochs=8, lr=5e-3, gamma=1.0
    )
    return config.debugging(seed=1, log_level="ERROR")


class Ending(ParallelEnv):
    """Two agents see numbers for two steps; then each ends as it is told."""

    metadata = {"name": "ending_v0"}  # noqa: RUF012

    def __init__(self, *ends):
        self.possible_agents = ["ann", "bob"]
        self.agents = []
        self.ends = dict(zip(self.possible_agents, ends, strict=True))
        self.space, self.choices = Box(0, 9, (1,), np.float32), Discrete(2)

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return self.choices

    def reset(self, seed=None, options=None):
        self.agents, self.turn = list(self.possible_agents), 0
        return self.shown(), {}

    def step(self, actions):
        acting, self.turn = self.agents, self.turn + 1
        over = self.turn == 2
        flags = [
            {agent: over and self.ends[agent] == end for agent in acting}
            for end in ("terminated", "truncated")
        ]
        shown = self.shown()
        self.agents = [] if over else acting
        infos = {"ann": {"turn": self.turn}, "__common__": {"a": 1}, "referee": {"b": 2}}
        return shown, dict.fromkeys(acting, 1.0), *flags, infos

    def shown(self):
        return {agent: np.array([self.turn], np.float32) for agent in self.agents}


@pytest.mark.parametrize(
    ("ends", "terminated"),
    [
        (("terminated", "terminated"), True),
        (("truncated", "truncated"), False),
        (("terminated", "truncated"), True),
    ],
)
def test_a_team_ends_as_a_whole(ends, terminated):
    view = MultiAgentView(Ending(*ends))
    view.reset(seed=0)
    acts = {"ann": 0, "bob": 1}
    assert view.step(acts)[2:4] == (
        {"ann": False, "bob": False, "__all__": False},
        {"ann": False, "bob": False, "__all__": False},
    )
    *_, terminations, truncations, infos = view.step(acts)
    assert (terminations["__all__"], truncations["__all__"]) == (terminated, not terminated)
    assert set(infos) == {"ann", "__common__"}  # RLlib refuses any other key


@pytest.mark.parametrize("ends", [("truncated", "truncated"), ("terminated", "truncated")])
def test_rllib_takes_the_end_as_it_is_meant(cluster, ends):
    config = small(use_environment(PPOConfig(), "ending", Ending(*ends)), envs=1)
    runner = MultiAgentEnvRunner(config=config, worker_index=0)
    episodes = runner.sample(num_episodes=3)  # one of each kind would hang without the view
    assert [len(episode) for episode in episodes] == [2, 2, 2]
    truncated = ends[0] == "truncated"
    for episode in episodes:
        assert (episode.is_terminated, episode.is_truncated) == (not truncated, truncated)
    runner.stop()


def test_who_waits_is_shown_nothing_and_need_not_act():
    env = Alternating(moves=3)
    view = MultiAgentView(CandidateActions(env, ["a", "bcd"]), texts=True)
    shown, infos = view.reset()
    assert list(shown) == ["agent_0"]
    assert infos["agent_1"][WAITS] is True
    shown, rewards, *_ = view.step({"agent_0": np.int64(1)})
    assert list(shown) == ["agent_1"]
    assert rewards == {"agent_0": 3.0, "agent_1": 3.0}
    assert env.said == ["bcd"]
    assert env.ignored == [""]
    view.step({"agent_1": 0})
    shown, _, terminations, *_ = view.step({"agent_0": 0})
    assert env.said == ["bcd", "a", "a"]
    assert terminations["__all__"]


def test_who_leaves_before_the_other_has_moved_does_not_end_the_episode():
    class GoingOn(TakingTurns):
        """Who is left moves in every turn."""

        def _waiting(self):
            mover = self.agents[self.turn % len(self.agents)] if self.agents else None
            return {agent: {WAITS: agent != mover} for agent in self.agents}

    view = MultiAgentView(CandidateActions(GoingOn(), ["quit", "bee"]), texts=True)
    view.reset(seed=0)
    shown, _, terminations, *_ = view.step({"ann": 0})
    assert list(shown) == ["bob"]  # of whom RLlib did not know
    assert not any(terminations.values())
    shown, rewards, terminations, *_ = view.step({"bob": 1})
    assert set(shown) == {"ann", "bob"}
    assert terminations == {"ann": True, "bob": False, "__all__": False}
    assert set(rewards) == {"bob"}
    assert view.step({"bob": 0})[2] == {"bob": False, "__all__": True}


class Dealt(EchoGame):
    """All agents wait in every other turn, the first one among them; each turn earns 1.0."""

    def reset(self, seed=None, options=None):
        shown, _ = super().reset(seed, options)
        return shown, self._waiting()

    def step(self, actions):
        acting = list(self.agents)
        shown, _, *flags, _ = super().step(actions)
        return shown, dict.fromkeys(acting, 1.0), *flags, self._waiting()

    def _waiting(self):
        return {agent: {WAITS: self.turn % 2 == 0} for agent in self.agents}


def test_the_episode_goes_on_while_all_wait(cluster):
    env = CandidateActions(Dealt(turns=4), list(EchoGame.WORDS))
    view = MultiAgentView(env, texts=True)
    assert view.reset(seed=0)[0] == {"ann": "bee", "bob": "cat"}  # those of the second turn
    shown, rewards, *_ = view.step({"ann": 0, "bob": 0})
    assert shown == {"ann": "dog", "bob": "ant"}
    assert rewards == {"ann": 3.0, "bob": 3.0}
    _, rewards, terminations, *_ = view.step({"ann": 0, "bob": 0})
    assert rewards == {"ann": 1.0, "bob": 1.0}
    assert terminations["__all__"]

    config = small(use_environment(PPOConfig(), "dealt", embedded(env)), envs=1)
    runner = MultiAgentEnvRunner(config=config, worker_index=0)
    episodes = runner.sample(num_episodes=2)
    assert [(len(episode), episode.get_return()) for episode in episodes] == [(2, 8.0)] * 2
    runner.stop()

    nobody = MultiAgentView(CandidateActions(Dealt(turns=1), ["ant"]), texts=True)
    with pytest.raises(ValueError, match=r"ended before any agent had to act.*'waits'"):
        nobody.reset()


class PaidLater(LeaverEnv):
    """Goes on to name the agent that has left in its rewards."""

    def __init__(self, paid):
        super().__init__()
        self.paid = paid

    def step(self, actions):
        shown, rewards, *rest = super().step(actions)
        return shown, {"agent_1": self.paid, **rewards}, *rest


def test_who_has_left_earns_nothing(cluster):
    view = MultiAgentView(CandidateActions(PaidLater(0.5), ["a"]), texts=True)
    view.reset()
    view.step({"agent_0": 0, "agent_1": 0})
    with pytest.raises(ValueError, match=r"gave agent_1 the reward 0\.5 after .*UniformEnd"):
        view.step({"agent_0": 0})

    def returns(name, env):
        env = embedded(CandidateActions(env, ["a"]))
        config = small(use_environment(PPOConfig(), name, env), envs=1)
        runner = MultiAgentEnvRunner(config=config, worker_index=0)
        played = [episode.get_return() for episode in runner.sample(num_episodes=2)]
        runner.stop()
        return played

    assert returns("nothing", PaidLater(0.0)) == [4.0, 4.0]  # RLlib refuses a reward of 0, too
    assert returns("together", UniformEnd(PaidLater(0.5))) == [5.0, 5.0]


def test_rllib_trains_on_a_game_of_turns_with_masks(cluster):
    """A choice that is masked would be an error, as would be the wrong order of rewards."""
    env = CandidateActions(
        TakingTurns(), lambda prompt: ["ant", "bee", "quit"][: len(prompt)], num_candidates=5
    )
    masked = ActionMask(embedded(env), key="observations")
    algo = small(use_environment(PPOConfig(), "turns", masked)).build_algo()
    learned = algo.train()
    algo.stop()
    figures = learned["env_runners"]
    assert figures["num_env_steps_sampled"] >= 256
    assert figures["episode_len_mean"] <= 3
    taken = sum(figures["num_agent_steps_sampled"].values())
    assert taken < 2 * figures["num_env_steps_sampled"]  # who waits gives no sample


def test_rllib_trains_on_token_ids(cluster):
    words = Words(coordination_v0.VOCABULARY)
    tokens = TokenObservations(
        TokenActions(coordination_v0.parallel_env(), words, length=2), words, length=3
    )
    assert isinstance(tokens.action_space("agent_0"), MultiDiscrete)
    algo = small(use_environment(PPOConfig(), "tokens", tokens)).build_algo()
    returns = [algo.train()["env_runners"]["episode_return_mean"] / 2 for _ in range(9)]
    algo.stop()
    assert returns[0] < 0.15
    assert returns[-1] > 0.5


def test_remote_runners_divide_the_rows(cluster):
    """Two processes with two copies each play every row equally often."""
    seen = small(use_environment(PPOConfig(), "remote", embedded(chosen())), runners=2, envs=2)
    algo = seen.build_algo()
    per_runner = algo.env_runner_group.foreach_env_runner(
        lambda runner: [
            infos["row"]
            for episode in runner.sample(num_timesteps=20)
            for infos in episode.agent_episodes["agent_0"].get_infos()[:1]
        ],
        local_env_runner=False,
    )
    algo.stop()
    assert {frozenset(rows) for rows in per_runner} == {frozenset({0, 2}), frozenset({1, 3})}


def test_agents_may_have_modules_of_their_own(cluster):
    env = embedded(chosen(agents=["ann", "bob"]))
    config = use_environment(PPOConfig(), "apart", env, shared=False)
    config.env_runners(num_env_runners=0)
    runner = MultiAgentEnvRunner(config=config, worker_index=0)
    assert set(runner.module.keys()) == {"ann", "bob"}
    runner.stop()


def test_ppo_learns_from_texts():
    before, after = returns_of(ROOT / "examples" / "plugging_in" / "rllib_ppo.py")
    assert before < 0.3  # random: 0.16
    assert after > 0.8


def test_texts_are_embedded_and_their_neighbours_kept():
    calls = []

    def embed(text):
        calls.append(text)
        return [len(text), 0.5]

    space = Dict({"observations": text_env().observation_space("agent_0"), "x": Discrete(3)})
    piece = EmbedTexts(Dict({"agent_0": space}), Dict({"agent_0": Discrete(2)}), embed=embed)
    seen = piece.observation_space["agent_0"]
    assert seen["observations"] == Box(-np.inf, np.inf, (2,), np.float32)
    assert seen["x"] == Discrete(3)
    assert calls == ["text"]
    nested = Tuple([space, Discrete(2)])
    piece = EmbedTexts(Dict({"agent_0": nested}), Dict({"agent_0": Discrete(2)}), embed=embed)
    assert piece.observation_space["agent_0"] == Tuple([seen, Discrete(2)])
    shown = ({"observations": "abc", "x": 1}, 0)
    within, y = piece._embedded(shown, {})
    text, x = within.values()
    assert (text.tolist(), x, y) == ([3.0, 0.5], 1, 0)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], "must return a vector"),
        ([[1.0]], "vector"),
        ([float("nan")], "finite"),
        (3.0, "vector"),
    ],
)
def test_an_embedding_must_be_a_vector(returned, message):
    with pytest.raises(ValueError, match=re.escape("embed (")) as caught:
        EmbedTexts(embed=lambda text: returned)
    assert message in str(caught.value)


def test_texts_are_refused_with_the_views_that_help():
    with pytest.raises(TypeError, match=r"writes texts.* agent_0 .*CandidateActions"):
        register("texts", coordination_v0.parallel_env())
    with pytest.raises(TypeError, match=r"reads texts.* agent_0 .*embed=HashedNgrams"):
        use_environment(PPOConfig(), "texts", chosen())


def test_texts_are_found_in_tuples():
    class Pairs(EchoGame):
        def observation_space(self, agent):
            return Tuple([Discrete(2), super().observation_space(agent)])

        def action_space(self, agent):
            return Discrete(2)

    with pytest.raises(TypeError, match=r"reads texts.* ann is Tuple"):
        MultiAgentView(Pairs())


def test_bad_input():
    with pytest.raises(TypeError, match=r"config \(5\) must be an AlgorithmConfig"):
        use_environment(5, "five", embedded(chosen()))
    with pytest.raises(TypeError, match=r"name \(5\) must be a text"):
        use_environment(PPOConfig(), 5, embedded(chosen()))


def test_masks_must_be_as_rllib_has_them():
    masked = ActionMask(embedded(chosen()))
    with pytest.raises(TypeError, match=r"ActionMask\(EmbedObservations.*key='observations'"):
        use_environment(PPOConfig(), "masks", masked)
    masked = ActionMask(embedded(chosen()), key="observations")
    with pytest.raises(TypeError, match=r"config \(APPOConfig\) must be a PPOConfig"):
        use_environment(APPOConfig(), "masks", masked)


def test_agents_that_share_a_module_must_be_alike():
    class Unlike(EchoGame):
        def action_space(self, agent):
            return Discrete(2 if agent == "ann" else 3)

    with pytest.raises(ValueError, match=r"shared=True.* ann .* bob "):
        use_environment(PPOConfig(), "unlike", embedded(Unlike()))
