"""AgileRL: vectorisation, IPPO that learns, MADDPG by masks, the harness for language models."""

import functools

import numpy as np
import pytest

from marlogue.envs import coordination_v0
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
from tests.support.strangers import EchoGame

torch = needs("torch")
needs("agilerl")
from agilerl.algorithms import IPPO, MADDPG  # noqa: E402

from marlogue.wrappers.agilerl import GroupIPPO, apart, check_spaces, vector_env  # noqa: E402

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

WORDS = list(coordination_v0.ANSWERS.values())
NETWORKS = {
    "latent_dim": 32,
    "encoder_config": {"hidden_size": [32]},
    "head_config": {"hidden_size": [32]},
}


def team(**kwargs):
    texts = coordination_v0.parallel_env(**kwargs)
    return EmbedObservations(CandidateActions(texts, WORDS), HashedNgrams(64))


@pytest.fixture
def vectorised():
    """Makes vectorised environments, and closes them."""
    made = []

    def make(*args, **kwargs):
        made.append(vector_env(*args, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


def spaces(env):
    return (
        [env.single_observation_space(agent) for agent in env.agents],
        [env.single_action_space(agent) for agent in env.agents],
    )


def mean_rewards(learner, env, updates, steps=32):
    """Train by PPO on `steps` turns of every copy; returns the mean reward of each round."""
    means = []
    shown, infos = env.reset()
    done = {agent: np.zeros(env.num_envs) for agent in env.agents}
    for _ in range(updates):
        kept = [{agent: [] for agent in env.agents} for _ in range(6)]
        for _ in range(steps):
            actions, log_probs, _, values = learner.get_action(obs=shown, infos=infos)
            following, rewards, terminated, truncated, infos = env.step(actions)
            for held, by_agent in zip(
                kept, (shown, actions, log_probs, rewards, done, values), strict=True
            ):
                for agent in env.agents:
                    held[agent].append(by_agent[agent])
            done = {a: (terminated[a] | truncated[a]).astype(float) for a in env.agents}
            shown = following
        learner.learn((*kept, shown, done))
        means.append(float(np.mean([kept[3][agent] for agent in env.agents])))
    return means


def ippo(kind, env, gamma):
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    settings = {"learn_step": 256, "batch_size": 128, "lr": 3e-3, "update_epochs": 8}
    return kind(
        *spaces(env),
        agent_ids=env.agents,
        net_config=NETWORKS,
        gamma=gamma,
        ent_coef=0.0,
        **settings,
    )


def test_copies_divide_the_rows(vectorised):
    env = vectorised(team, 3, groups=True)
    cues = {HashedNgrams(64)(cue).tobytes(): cue for cue in coordination_v0.ANSWERS}
    played = []
    shown, infos = env.reset()
    for _ in range(4):
        played += [cues[row.tobytes()] for row in shown["agent_0"]]
        shown, _, terminated, *_ = env.step({a: np.zeros(3, int) for a in env.agents})
        assert terminated["agent_1"].all()
    assert played == [*coordination_v0.ANSWERS] * 3
    assert infos["agent_0"] == {}  # AgileRL stacks what is there, and would fail on texts


def test_rewards_are_those_of_the_actions(vectorised):
    env = vectorised(team(), 2)
    assert env.agents == ["agent-0", "agent-1"]  # or AgileRL would make one group of them
    env.reset()  # dawn: red, noon: gold
    right = {"agent-0": np.array([0, 1]), "agent-1": np.array([0, 0])}
    _, rewards, *_ = env.step(right)
    assert rewards["agent-0"].tolist() == [1.0, 0.25]


def words_env(length):
    words = Words(coordination_v0.VOCABULARY)
    written = TokenActions(coordination_v0.parallel_env(), words, length=length)
    return TokenObservations(written, words, length=3)


def test_token_ids_and_several_tokens_per_action(vectorised):
    env = vectorised(words_env(2), 2)
    assert np.isfinite(mean_rewards(ippo(IPPO, env, 0.0), env, updates=1, steps=4)).all()
    with pytest.raises(TypeError, match=r"action space of agent_0 is MultiDiscrete\(.*length=2"):
        vector_env(words_env(1))


def test_ippo_learns_by_the_loop_of_agilerl():
    before, after = returns_of(ROOT / "examples" / "plugging_in" / "agilerl_ippo.py")
    assert before < 0.45  # greedy, by chance one word of four; random: 0.16
    assert after > 0.8


@pytest.mark.parametrize(("kind", "groups"), [(IPPO, False), (GroupIPPO, True)])
def test_ippo_learns_to_coordinate(kind, groups, vectorised):
    env = vectorised(team(), 8, groups=groups)
    learner = ippo(kind, env, 0.0)
    assert len(learner.actors) == (1 if groups else 2)
    means = mean_rewards(learner, env, updates=9)
    assert means[0] < 0.3
    assert means[-1] > 0.8


def test_group_ippo_credits_over_turns(vectorised):
    """In two turns, of which only the last one is rewarded here, who began well must be told."""
    env = vectorised(team(num_turns=2), 8, groups=True)
    means = mean_rewards(ippo(GroupIPPO, env, 1.0), env, updates=11)
    assert means[0] < 0.3
    assert means[-1] > 0.8


def test_groups_are_joined_in_the_order_of_steps(vectorised):
    """The mistake of IPPO that `GroupIPPO` mends: two orders of samples in one update."""
    env = vectorised(team(), 2, groups=True)
    learner = ippo(GroupIPPO, env, 0.0)
    over_time = {
        a: [np.array([10 * t + k, 10 * t + k + 5]) for t in range(3)]
        for k, a in enumerate(env.agents)
    }
    joined = learner.assemble_shared_inputs(over_time)["agent"]["agent"]
    assert joined.tolist() == [[0, 5, 1, 6], [10, 15, 11, 16], [20, 25, 21, 26]]
    last = learner.assemble_shared_inputs(
        {a: np.array([k, k + 5]) for k, a in enumerate(env.agents)}
    )
    assert last["agent"]["agent"].tolist() == [0, 5, 1, 6]


def test_maddpg_chooses_by_masks(vectorised):
    texts = coordination_v0.parallel_env()
    few = CandidateActions(texts, lambda prompt: ["red", "gold"], num_candidates=6)
    env = vectorised(EmbedObservations(few, HashedNgrams(64)), 2, masks=True)
    learner = MADDPG(*spaces(env), agent_ids=env.agents, net_config=NETWORKS)
    shown, infos = env.reset()
    for _ in range(20):  # a masked action would be an error
        actions, _ = learner.get_action(obs=shown, infos=infos)
        shown, *_, infos = env.step(actions)


def test_an_early_leaver_is_refused_and_uniform_end_mends_it(vectorised):
    def chosen(env):
        return EmbedObservations(CandidateActions(env, ["a", "b"]), HashedNgrams(8))

    env = vectorised(chosen(LeaverEnv()), 1)
    env.reset()
    with pytest.raises(ValueError, match=r"agent-1 ended before the others.*UniformEnd"):
        env.step({agent: np.zeros(1, int) for agent in env.agents})
    env = vectorised(chosen(UniformEnd(LeaverEnv())), 1)
    env.reset()
    total = np.zeros(1)
    for _ in range(3):
        _, rewards, terminated, *_ = env.step({agent: np.zeros(1, int) for agent in env.agents})
        total += rewards["agent-0"] + rewards["agent-1"]
    assert total.tolist() == [4.0]
    assert terminated["agent-1"].all()


def test_texts_and_masks_in_observations_are_refused():
    with pytest.raises(TypeError, match=r"actions .* agent_0 .*CandidateActions"):
        vector_env(text_env())
    with pytest.raises(TypeError, match=r"observations .* agent_0 .*EmbedObservations"):
        vector_env(CandidateActions(text_env(), ["a"]))
    with pytest.raises(TypeError, match="leave ActionMask out"):
        check_spaces(ActionMask(team()))
    with pytest.raises(ValueError, match="num_envs"):
        vector_env(team(), 0)


def test_masks_that_are_not_there_are_missed_at_once():
    with pytest.raises(ValueError, match=r"masks \(True\) .* agent_0, agent_1 .*CandidateActions"):
        vector_env(words_env(2), masks=True)
    with pytest.raises(TypeError, match=r"masks \('no'\) must be True or False"):
        vector_env(team(), masks="no")


def test_names():
    assert apart(["ann", "bob_1"]) == {"ann": "ann", "bob_1": "bob_1"}
    assert apart(["a_1", "a_2"]) == {"a_1": "a-1", "a_2": "a-2"}
    with pytest.raises(ValueError, match="groups=True"):
        apart(["a_1", "a-1", "a_2"])


def test_a_stranger_keeps_its_names(vectorised):
    made = functools.partial(EchoGame, turns=1)
    env = vectorised(
        lambda: EmbedObservations(CandidateActions(made(), ["ant", "bee"]), HashedNgrams(8)), 2
    )
    assert env.agents == ["ann", "bob"]
    shown, _ = env.reset()
    assert not np.array_equal(shown["ann"][0], shown["ann"][1])  # seeded differently
