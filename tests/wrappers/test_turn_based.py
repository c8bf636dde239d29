"""Games in which one agent moves at a time, as parallel environments."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from gymnasium.spaces import Discrete, Text
from pettingzoo import AECEnv
from pettingzoo.test import parallel_api_test
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from marlogue.envs import WAITS, BatchRunner, Start, UnicodeText, check_text_env, coordination_v0
from marlogue.wrappers.turn_based import Turn, TurnBased


class Counting:
    """Players in turn say how much to add; who passes `goal` loses 1, the others win 1."""

    def __init__(self, goal: int = 5, players: tuple[str, ...] = ("ann", "bob")) -> None:
        self.possible_agents = list(players)
        self.goal = goal

    def reset(self, seed, options):
        self.total = (seed or 0) % 3
        self.turn = 0
        return self.shown()

    def step(self, text):
        self.total += int(text) if text.isdigit() else 1
        mover = self.mover
        self.turn += 1
        if self.total < self.goal:
            return self.shown()
        rewards = {a: -1.0 if a == mover else 1.0 for a in self.possible_agents}
        final = dict.fromkeys(self.possible_agents, f"{mover} lost")
        return Turn(None, final, rewards, infos={mover: {"lost": True}})

    @property
    def mover(self):
        return self.possible_agents[self.turn % len(self.possible_agents)]

    def shown(self):
        return Turn(self.mover, {self.mover: f"the total is {self.total}"})


class Auction(AECEnv):
    """A stranger's AEC environment: who says "out" leaves with 1; everybody earns 0.5 a turn.

    The seller speaks twice, and is paid 2 by a bid of "high", whoever bids; the game ends with it.
    """

    metadata = {"name": "auction_v0", "render_modes": ["ansi"]}  # noqa: RUF012
    render_mode = "ansi"

    def __init__(self, last_turn="terminated"):
        self.possible_agents = ["seller", "first", "second"]
        self.last_turn = last_turn
        self.space = UnicodeText(50, min_length=1)

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return self.space

    def observe(self, agent):
        return f"{agent} hears: {self.said}"

    def reset(self, seed=None, options=None):
        self.said = f"seed {seed} {sorted(options or {})}"
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"past": []} for agent in self.agents}
        self.agent_selection = self.agents[0]
        self.rounds = 0

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        self.said = action
        self.infos[agent]["past"].append(action)
        self.rewards[agent] = 0.5
        if action == "high":
            self.rewards["seller"] += 2
        if agent == "seller":
            self.rounds += 1
            if self.rounds == 2:
                flags = getattr(self, "terminations" if self.last_turn != "cut" else "truncations")
                flags.update(dict.fromkeys(self.agents, True))
        elif action == "out":
            self.rewards[agent] = 1
            self.terminations[agent] = True
        self._accumulate_rewards()
        after = self.agents[self.agents.index(agent) + 1 :] + self.agents
        self.agent_selection = next(a for a in after if action != "out" or a != agent)
        self._deads_step_first()

    def render(self):
        return self.said


def play(env, texts, seed=0):
    """The steps of one episode, in which movers say the texts one after the other."""
    env.reset(seed=seed)
    steps = []
    for text in texts:
        steps.append(env.step(dict.fromkeys(env.agents, text)))
    return steps


def test_a_game_conforms():
    env = TurnBased(Counting())
    check_text_env(env)
    parallel_api_test(env, num_cycles=30)
    assert str(env) == "TurnBased<Counting>"
    assert env.observation_space("ann") == UnicodeText(1_000_000)
    assert TurnBased(Counting(), max_prompt_chars=99, name="mine").metadata["name"] == "mine"


def test_who_waits_and_what_is_seen():
    env = TurnBased(Counting())
    shown, infos = env.reset(seed=1)
    assert shown == {"ann": "the total is 1", "bob": ""}
    assert infos == {"ann": {WAITS: False, "turn": 0}, "bob": {WAITS: True, "turn": 0}}
    step = env.step({"ann": "2", "bob": "this is ignored"})
    assert step.observations == {"ann": "the total is 1", "bob": "the total is 3"}
    assert [step.infos[a][WAITS] for a in env.agents] == [True, False]
    assert step.rewards == {"ann": 0.0, "bob": 0.0}
    step = env.step({"ann": "99", "bob": "1"})
    assert step.observations["ann"] == "the total is 4"
    step = env.step({"ann": "1", "bob": ""})
    assert step.observations == dict.fromkeys(("ann", "bob"), "ann lost")
    assert step.rewards == {"ann": -1.0, "bob": 1.0}
    assert step.terminations == {"ann": True, "bob": True}
    assert step.truncations == {"ann": False, "bob": False}
    assert step.infos["ann"] == {"lost": True, WAITS: False, "turn": 3}
    assert env.agents == []
    with pytest.raises(RuntimeError, match="without a running game; call reset first"):
        env.step({"ann": "1", "bob": "1"})


def test_truncation():
    env = TurnBased(Counting(100), truncate_after=2)
    steps = play(env, ["1", "1"])
    assert steps[0].truncations == {"ann": False, "bob": False}
    assert steps[1].truncations == {"ann": True, "bob": True}
    assert steps[1].terminations == {"ann": False, "bob": False}
    assert steps[1].observations["ann"] == "the total is 2"
    assert env.agents == []
    # A game that ends with its last turn is over, not cut off.
    (step,) = play(TurnBased(Counting(1), truncate_after=1), ["1"])
    assert step.terminations["ann"]
    assert not step.truncations["ann"]


def test_bad_actions_leave_the_game_alone():
    env = TurnBased(Counting(), max_completion_chars=5)
    env.reset(seed=0)
    for actions, match in (
        ({"ann": "1"}, "lack bob"),
        ({"ann": "123456", "bob": ""}, r"the action of ann \('123456'\) must be in its action"),
        ({"ann": 1, "bob": ""}, r"the action of ann \(1\)"),
        ({"ann": "9" * 999, "bob": ""}, r"the action of ann \('9{79}\.\.\.\)"),
    ):
        with pytest.raises(ValueError, match=match):
            env.step(actions)
    assert env.step({"ann": "1", "bob": "too long, but ignored"}).observations["bob"] == (
        "the total is 1"
    )


@pytest.mark.parametrize(
    ("turn", "match"),
    [
        (Turn("eve", {}), "the turn of 'eve', which must be one of the agents that are left"),
        (Turn("ann", {"ann": "x"}, terminated=["ann"]), "the turn of 'ann'"),
        (Turn("bob", {"eve": "x"}), r"names \['eve'\]"),
        (Turn("bob", {"bob": 3}), r"shows bob 3, which must be in its observation space"),
        (Turn("bob", {"bob": "x" * 31}), "raise max_prompt_chars"),
        (Turn("bob", {"bob": "y" * 999}), r"shows bob 'y{79}\.\.\., which must be"),
        (Turn("bob", {}, {"bob": float("nan")}), "rewards must be finite"),
    ],
)
def test_games_that_break_their_word(turn, match):
    game = Counting()
    env = TurnBased(game, max_prompt_chars=30)
    env.reset(seed=0)
    game.step = lambda text: turn
    with pytest.raises(ValueError, match=match) as caught:
        env.step({"ann": "1", "bob": ""})
    assert caught.value.__notes__ == ["while ann moves in TurnBased<Counting>, after 0 moves"]


def test_a_game_without_a_turn():
    game = Counting()
    env = TurnBased(game)
    env.reset(seed=0)
    game.step = lambda text: 5
    with pytest.raises(TypeError, match=r"returned an int, but its reset and step must return a"):
        env.step({"ann": "1", "bob": ""})
    game.reset = lambda seed, options: ("ann", {})
    with pytest.raises(TypeError, match="returned a tuple"):
        env.reset(seed=0)


def test_rewards_before_the_first_move():
    game = Counting()
    game.reset = lambda seed, options: Turn("ann", {}, {"bob": 1.0})
    with pytest.raises(ValueError, match=r"rewards \(\{'bob': 1.0\}\) before the first move"):
        TurnBased(game).reset(seed=0)
    game.reset = lambda seed, options: Turn("ann", {}, {"bob": 0.0})
    TurnBased(game).reset(seed=0)


def test_a_game_that_is_over_at_once():
    game = Counting()
    game.reset = lambda seed, options: Turn(None)
    with pytest.raises(ValueError, match="was over before the first move; give it another seed"):
        TurnBased(game).reset(seed=0)


def test_bad_arguments():
    with pytest.raises(TypeError, match="must have possible_agents, reset and step"):
        TurnBased(coordination_v0.parallel_env)
    with pytest.raises(ValueError, match=r"truncate_after \(0\) must be 1 or more"):
        TurnBased(Counting(), truncate_after=0)
    with pytest.raises(ValueError, match=r"possible_agents \(\['ann', 'ann'\]\) of Counting must"):
        TurnBased(Counting(players=("ann", "ann")))
    with pytest.raises(ValueError, match="which brings its own spaces"):
        TurnBased(Auction(), max_prompt_chars=3)
    auction = Auction()
    auction.space = Discrete(3)
    with pytest.raises(TypeError, match=r"observation space of seller in .*Discrete\(3\)"):
        TurnBased(auction)
    env = TurnBased(Counting())
    with pytest.raises(NotImplementedError, match="no render method"):
        env.render()


def test_an_aec_environment_conforms():
    env = TurnBased(Auction())
    check_text_env(env)
    parallel_api_test(env, num_cycles=30)
    check_text_env(TurnBased(OrderEnforcingWrapper(Auction("cut"))), skip=["copies"])
    assert env.metadata["name"] == "auction_v0"
    assert env.action_space("first") == UnicodeText(50)  # "" is what an agent says that waits
    assert env.observation_space("first") == UnicodeText(50, min_length=1)
    assert env.render() == env.game.env.said


def aec_loop(env, texts, seed=0):
    """Agent to all that an ordinary loop over an AEC environment sees it earn."""
    texts = iter(texts)
    earned: dict[str, float] = {}
    env.reset(seed=seed)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        earned[agent] = earned.get(agent, 0.0) + reward
        env.step(None if terminated or truncated else next(texts))
    return earned


@pytest.mark.parametrize("ending", ["terminated", "cut"])
@pytest.mark.parametrize(
    "texts",
    [
        ["lots", "high", "low", "sold"],
        ["lots", "out", "high", "sold"],
        ["lots", "high", "out", "sold"],
        ["lots", "out", "out", "sold"],
        ["high", "high", "high", "high"],
    ],
)
def test_no_reward_of_an_aec_environment_is_lost(texts, ending):
    env = TurnBased(Auction(ending))
    steps = play(env, texts)
    assert env.agents == []
    earned: dict[str, float] = {}
    for step in steps:
        for agent, reward in step.rewards.items():
            earned[agent] = earned.get(agent, 0.0) + reward
    assert earned == aec_loop(Auction(ending), texts)
    assert len(steps) == len(texts)
    last = steps[-1].truncations if ending == "cut" else steps[-1].terminations
    assert all(last.values())


def test_agents_that_leave():
    env = TurnBased(Auction())
    shown, infos = env.reset(seed=3, options={"room": 1})
    assert shown["second"] == "second hears: seed 3 ['room']"
    assert [agent for agent in env.agents if not infos[agent][WAITS]] == ["seller"]
    env.step({"seller": "lots", "first": "", "second": ""})
    step = env.step({"seller": "", "first": "out", "second": ""})
    assert step.terminations == {"seller": False, "first": True, "second": False}
    assert step.rewards == {"seller": 0.0, "first": 1.0, "second": 0.0}
    assert step.observations["first"] == "first hears: out"
    assert step.infos["first"] == {"past": ["out"], WAITS: False, "turn": 2}
    assert env.agents == ["seller", "second"]
    step = env.step({"seller": "", "second": "high"})
    assert step.rewards == {"seller": 2.0, "second": 0.5}
    with pytest.raises(ValueError, match="unknown or finished first"):
        env.step({"seller": "sold", "first": "", "second": ""})


def test_infos_do_not_change_later():
    steps = play(TurnBased(Auction()), ["lots", "high", "low", "sold"])
    assert steps[0].infos["seller"]["past"] == ["lots"]
    assert steps[-1].infos["seller"]["past"] == ["lots", "sold"]


class Forgetful(Auction):
    """Never adds its rewards up, so that an ordinary loop would see none."""

    def _accumulate_rewards(self):
        pass


def test_an_aec_environment_whose_rewards_do_not_add_up():
    env = TurnBased(Forgetful())
    with pytest.raises(ValueError, match=r"seller earned 0 since it acted, but its `rewards`"):
        play(env, ["lots", "high", "low", "sold"])
    assert env.game.env.said == "low"  # noticed before the seller's next move is played


class Inheritance(Auction):
    """Pays those who stay when one lets go of an agent that has left."""

    def _was_dead_step(self, action):
        super()._was_dead_step(action)
        self.rewards = dict.fromkeys(self.agents, 0.25)
        self._accumulate_rewards()


def test_rewards_that_come_when_an_agent_is_let_go():
    texts = ["lots", "out", "high", "sold"]
    steps = play(TurnBased(Inheritance()), texts)
    assert steps[1].rewards == {"seller": 0.25, "first": 1.0, "second": 0.25}
    earned = {a: sum(step.rewards.get(a, 0) for step in steps) for a in ("seller", "second")}
    expected = aec_loop(Inheritance(), texts)
    assert earned == {agent: expected[agent] for agent in earned}


def test_stock_text_spaces():
    auction = Auction()
    auction.space = Text(50, charset="abc")
    env = TurnBased(auction)
    assert env.action_space("first").contains("")
    assert not env.action_space("first").contains("dear")
    auction.space = Text(50, min_length=0, charset="abc")
    assert TurnBased(auction).action_space("first") is auction.space


def test_an_aec_form_of_a_text_env():
    """Agents that would act at once act one after the other; the rewards are the same."""
    env = TurnBased(coordination_v0.env())
    check_text_env(env, skip=["seeding"])  # our own task keeps its order of rows
    twin = coordination_v0.parallel_env()
    shown, _ = env.reset(seed=0)
    expected, _ = twin.reset(seed=0)
    assert shown == expected
    texts = dict(zip(env.possible_agents, ("red", "gold"), strict=True))
    assert sum(env.step(texts).rewards.values()) == 0
    assert env.step(texts).rewards == twin.step(texts).rewards


@pytest.mark.parametrize("make", [lambda: TurnBased(Counting()), lambda: TurnBased(Auction())])
def test_copies_play_apart(make):
    env = make()
    env.reset(seed=0)
    twins: list[Any] = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    actions = dict.fromkeys(env.agents, "2")
    step = env.step(actions)
    for twin in twins:
        assert twin.step(actions) == step


def test_a_batch_of_games():
    runner = BatchRunner(TurnBased(Counting()))
    episodes = runner.reset([Start(seed=0), Start(seed=1)])
    assert [episode.observations["ann"] for episode in episodes] == [
        "the total is 0",
        "the total is 1",
    ]
    runner.step(episodes, [{"ann": "1", "bob": ""}] * 2)
    assert [episode.observations["bob"] for episode in episodes] == [
        "the total is 1",
        "the total is 2",
    ]
