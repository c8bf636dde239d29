"""TorchRL: specs, rollouts, collectors and training on text environments seen through views."""

import runpy
from functools import partial

import numpy as np
import pytest

from marlogue.envs import WAITS, UnicodeText, coordination_v0
from marlogue.wrappers import (
    CandidateActions,
    EmbedObservations,
    HashedNgrams,
    NumericState,
    TokenActions,
    TokenByToken,
    TokenObservations,
    UniformEnd,
    Words,
)
from tests.support.command_line import ROOT
from tests.support.envs import LeaverEnv, text_env
from tests.support.libraries import needs
from tests.support.strangers import EchoGame, TakingTurns

torch = needs("torch")
needs("torchrl")
from torchrl.collectors import Collector  # noqa: E402
from torchrl.envs import SerialEnv, check_env_specs  # noqa: E402

from marlogue.wrappers.torchrl import EnvMaker, torchrl_env  # noqa: E402

pytestmark = [
    pytest.mark.optional,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

WORDS = list(coordination_v0.ANSWERS.values())
SIZE = 16


def numeric(env, candidates=WORDS, **kwargs):
    chosen = CandidateActions(env, candidates, **kwargs)
    return NumericState(EmbedObservations(chosen, HashedNgrams(SIZE)))


def coordination(**kwargs):
    return numeric(coordination_v0.parallel_env(**kwargs))


def embedded():
    return EmbedObservations(CandidateActions(coordination_v0.parallel_env(), WORDS), len_of)


def len_of(prompt):
    return [float(len(prompt))]


class Drawn(EchoGame):
    """Draws the words from a generator that a seed begins anew, as foreign environments do."""

    random = None

    def reset(self, seed=None, options=None):
        if seed is not None or self.random is None:
            self.random = np.random.default_rng(seed)
        return super().reset(int(self.random.integers(len(self.WORDS))))


class SilentAtTheEnd(EchoGame):
    """Shows nothing to agents that have ended."""

    def step(self, actions):
        shown, *rest = super().step(actions)
        return ({agent: shown[agent] for agent in self.agents}, *rest)


def leaver(end="terminated"):
    env = LeaverEnv(end)
    # Each agent's observation is the number of the turn, so that a wrong order would be seen.
    env._shown = lambda: dict.fromkeys(env.possible_agents, str(env.turn))
    chosen = CandidateActions(env, ["a", "b"])
    return EmbedObservations(chosen, lambda prompt: [float(prompt.isdigit() and prompt)])


def rows_of(env):
    """The row that each environment of a `SerialEnv` plays."""
    return [each._env.unwrapped._state.origin.row for each in env._envs]


@pytest.mark.parametrize("num_envs", [None, 3])
def test_specs_and_rollouts(num_envs):
    env = torchrl_env(coordination(num_turns=2), num_envs=num_envs, seed=0)
    check_env_specs(env)
    batch = [] if num_envs is None else [num_envs]
    played = env.rollout(2)
    assert list(played.batch_size) == [*batch, 2]
    assert list(played["agents", "observation"].shape) == [*batch, 2, 2, SIZE]
    assert list(played["agents", "action"].shape) == [*batch, 2, 2]
    assert list(played["agents", "action_mask"].shape) == [*batch, 2, 2, len(WORDS)]
    assert list(played["state"].shape) == [*batch, 2, 2 * SIZE]
    assert list(played["next", "agents", "reward"].shape) == [*batch, 2, 2, 1]
    assert played["next", "done"][..., -1, :].all()
    assert not played["next", "done"][..., 0, :].any()
    assert played["next", "agents", "terminated"][..., -1, :, :].all()
    assert "info" not in played["agents"].keys()  # noqa: SIM118


def test_token_views():
    words = Words(coordination_v0.VOCABULARY)
    tokens = TokenActions(coordination_v0.parallel_env(), words, 1)
    env = torchrl_env(TokenObservations(tokens, words, 3))
    check_env_specs(env)
    env.set_seed(0)
    shown = env.reset()
    assert shown["agents", "observation"].dtype == torch.int64
    red = coordination_v0.VOCABULARY.index("red")
    shown["agents", "action"] = torch.tensor([[red], [red]])
    assert env.step(shown)["next", "agents", "reward"].flatten().tolist() == [1.0, 1.0]


def test_token_by_token():
    words = Words(coordination_v0.VOCABULARY, end="<end>")
    tokens = TokenByToken(coordination_v0.parallel_env(), words, 2)
    env = torchrl_env(EmbedObservations(tokens, HashedNgrams(SIZE)))
    check_env_specs(env)
    env.set_seed(0)
    shown = env.reset()
    red = coordination_v0.VOCABULARY.index("red")
    shown["agents", "action"] = torch.tensor([red, red])
    after = env.step(shown)["next"]
    assert not after["done"]
    after["agents", "action"] = torch.tensor([words.end, words.end])
    assert env.step(after)["next", "agents", "reward"].flatten().tolist() == [1.0, 1.0]


def test_one_hot_actions():
    env = torchrl_env(coordination(), categorical_actions=False)
    check_env_specs(env)
    env.set_seed(0)
    shown = env.reset()
    shown["agents", "action"] = torch.tensor([[1, 0, 0, 0]] * 2, dtype=torch.bool)
    assert env.step(shown)["next", "agents", "reward"].flatten().tolist() == [1.0, 1.0]


def test_actions_reach_the_environment_and_rewards_come_back():
    env = torchrl_env(coordination())
    shown = env.reset()
    shown["agents", "action"] = torch.tensor([0, 0])  # "red" is the answer to the first cue
    assert env.step(shown)["next", "agents", "reward"].flatten().tolist() == [1.0, 1.0]
    shown = env.reset()
    shown["agents", "action"] = torch.tensor([1, 0])  # only the first agent is right
    assert env.step(shown)["next", "agents", "reward"].flatten().tolist() == [0.25, 0.25]


def test_the_same_seed_gives_the_same_episodes():
    env = torchrl_env(coordination(shuffle=True))
    env.set_seed(3)
    first = [env.reset()["agents", "observation"] for _ in range(8)]
    env.set_seed(3)
    again = [env.reset()["agents", "observation"] for _ in range(8)]
    env.set_seed(4)
    other = [env.reset()["agents", "observation"] for _ in range(8)]
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert not torch.equal(torch.stack(first), torch.stack(other))
    seeded = torchrl_env(coordination(shuffle=True), seed=3)
    assert torch.equal(seeded.reset()["agents", "observation"], first[0])


def test_several_environments_share_the_rows():
    env = torchrl_env(coordination(), num_envs=3)
    played = []
    for _ in range(4):
        env.reset()
        played += rows_of(env)
    assert played == [0, 1, 2, 3] * 3
    env.set_seed(1)
    env.reset()
    assert rows_of(env) == [0, 1, 2]
    env.set_seed(1)
    env.reset()
    assert rows_of(env) == [0, 1, 2]


@pytest.mark.parametrize("seed", [None, 5])
def test_environments_without_rows_draw_episodes_of_their_own(seed):
    env = torchrl_env(numeric(Drawn(), list(EchoGame.WORDS)), num_envs=3, seed=seed)

    def shown():
        return torch.stack([env.reset()["agents", "observation"] for _ in range(8)])

    first = shown()
    assert not torch.equal(first[:, 0], first[:, 1])
    env.set_seed(7)
    again = shown()
    assert not torch.equal(again[:, 0], again[:, 1])
    env.set_seed(7)
    assert torch.equal(shown(), again)
    env.set_seed(8)
    assert not torch.equal(shown(), again)


def test_a_row_can_be_chosen():
    env = torchrl_env(coordination())
    env.reset(options={"row": 2})
    assert env._env.unwrapped._state.origin.row == 2


def test_masked_actions_are_not_drawn():
    rows = [{"prompt": str(n), "words": WORDS[: n + 1]} for n in range(4)]
    env = torchrl_env(numeric(text_env(dataset=rows), "words", num_candidates=4))
    check_env_specs(env)
    env.set_seed(0)
    for row in [0, 1, 2, 3] * 5:
        played = env.rollout(1)
        assert played["agents", "action_mask"].sum(-1).flatten().tolist() == [row + 1, row + 1]
        assert (played["agents", "action"] <= row).all()


def test_infos_on_demand():
    env = torchrl_env(coordination(num_turns=2), info_keys=["turn", "raw_reward"])
    check_env_specs(env)
    played = env.rollout(2)
    assert played["agents", "info", "turn"].tolist() == [[0, 0], [1, 1]]
    after = played["next", "agents", "info", "raw_reward"]
    assert torch.equal(after, played["next", "agents", "reward"].squeeze(-1))


def test_groups_for_agents_that_differ():
    class Wider(EmbedObservations):
        def __init__(self, env):
            super().__init__(env, lambda prompt: [1.0, 2.0])
            narrow = EmbedObservations(env, lambda prompt: [1.0]).observation_space("agent_0")
            self.observation_spaces["agent_0"] = narrow

        def observe(self, agent, observation, info):
            shown = super().observe(agent, observation, info)
            return shown[:1] if agent == "agent_0" else shown

    env = Wider(CandidateActions(coordination_v0.parallel_env(), WORDS))
    with pytest.raises(ValueError, match=r"one observation_space; in group 'agents' that of agent"):
        torchrl_env(env)
    groups = {"first": ["agent_0"], "second": ["agent_1"]}
    grouped = torchrl_env(env, group_map=groups)
    check_env_specs(grouped)
    played = grouped.rollout(1)
    assert played["first", "observation"].shape[-1] == 1
    assert played["second", "observation"].shape[-1] == 2
    with pytest.raises(ValueError, match="must hold each of the agents"):
        torchrl_env(env, group_map={"first": ["agent_0"]})


def test_agents_that_leave_before_the_others():
    env = torchrl_env(leaver(), use_mask=True)
    check_env_specs(env)
    played = env.rollout(10)
    assert played["next", "done"].flatten().tolist() == [False, False, True]
    assert played["next", "agents", "done"].squeeze(-1).tolist() == [
        [False, True],
        [False, True],
        [True, True],
    ]
    assert played["next", "agents", "mask"].tolist()[:2] == [[True, False], [True, False]]
    rewards = played["next", "agents", "reward"].squeeze(-1).tolist()
    assert rewards == [[1.0, 1.0], [0.0, 0.0], [2.0, 0.0]]
    with pytest.raises(ValueError, match=r"agent_1 left an episode.*set use_mask=True"):
        torchrl_env(leaver()).rollout(10)
    together = torchrl_env(UniformEnd(leaver()))
    check_env_specs(together)
    assert together.rollout(10)["next", "agents", "reward"].sum(0).flatten().tolist() == [3.0, 1.0]


def test_the_last_reward_counts_where_nothing_is_shown_at_the_end():
    env = torchrl_env(numeric(SilentAtTheEnd(turns=1), list(EchoGame.WORDS)))
    env.set_seed(0)
    shown = env.reset()  # "ant" and "bee"
    shown["agents", "action"] = torch.tensor([0, 1])
    assert env.step(shown)["next", "agents", "reward"].flatten().tolist() == [1.0, 1.0]


def test_who_waits_has_one_action():
    game = TakingTurns()
    game._actions = dict.fromkeys(game.possible_agents, UnicodeText(6))
    env = torchrl_env(numeric(game, list(EchoGame.WORDS)), info_keys=[WAITS])
    check_env_specs(env)
    played = env.rollout(10)
    waiting = played["agents", "info", WAITS].bool()
    assert waiting.any()
    assert not waiting.all()
    assert (played["agents", "action_mask"].sum(-1) == 1)[waiting].all()
    assert (played["agents", "action"][waiting] == 0).all()


def test_the_users_environment_is_left_alone():
    env = coordination()
    env.reset(seed=0)
    before = env.unwrapped._state
    torchrl_env(env, num_envs=2).rollout(1)
    assert env.unwrapped._state is before


def test_collector_and_torchrls_own_vectorisation():
    make = EnvMaker(partial(coordination, shuffle=True))
    collector = Collector(SerialEnv(2, make), frames_per_batch=8, total_frames=16)
    batches = list(collector)
    assert [batch.numel() for batch in batches] == [8, 8]
    assert all(batch["next", "done"].all() for batch in batches)
    collector.shutdown()


@pytest.mark.parametrize(
    ("env", "settings", "error", "message"),
    [
        (coordination_v0.parallel_env, {}, TypeError, "observation_space of agent_0.*holds text"),
        (
            lambda: EmbedObservations(coordination_v0.parallel_env(), HashedNgrams(4)),
            {},
            TypeError,
            "action_space of agent_0.*holds text.*CandidateActions",
        ),
        (embedded, {"info_keys": ["item"]}, TypeError, "'item'.*must be a number.*info_keys"),
        (coordination, {"info_keys": "turn"}, TypeError, r"info_keys \('turn'\) must be a list"),
        (coordination, {"num_envs": 0}, ValueError, r"num_envs \(0\) must be 1 or more"),
        (coordination, {"num_envs": 2.5}, TypeError, r"num_envs \(2.5\) must be an integer"),
        (coordination, {"seed": "a"}, TypeError, r"seed \('a'\) must be an integer"),
        (coordination, {"group_map": ["a"]}, TypeError, r"group_map \(\['a'\]\) must be a dict"),
        (embedded, {"return_state": True}, TypeError, "numeric state.*NumericState"),
        (coordination_v0.env(), {}, TypeError, "AEC environment"),
    ],
)
def test_bad_input(env, settings, error, message):
    with pytest.raises(error, match=message):
        torchrl_env(env, **settings)


def test_ends_that_differ_are_an_error():
    class HalfTruncated(LeaverEnv):
        def step(self, actions):
            shown, rewards, ended, _, infos = super().step(actions)
            truncated = {agent: agent == "agent_0" for agent in ended}
            ended = {agent: not truncated[agent] for agent in ended}
            return shown, rewards, ended, truncated, infos

        def _shown(self):
            return dict.fromkeys(self.possible_agents, "x")

    env = HalfTruncated()
    env.REWARDS = (1.0,)
    made = torchrl_env(numeric(env, ["a", "b"]))
    with pytest.raises(ValueError, match="put UniformEnd around"):
        made.rollout(1)
    torchrl_env(UniformEnd(numeric(env, ["a", "b"]))).rollout(1)


def test_mappo_learns(capsys):
    example = runpy.run_path(str(ROOT / "examples/plugging_in/torchrl_mappo.py"))
    returns = example["main"](seed=0)
    assert returns[0] < 0.3
    assert returns[-1] > 0.8
    assert "mean return of an episode before" in capsys.readouterr().out
