"""Many episodes at once: the same as one environment after the other (C17, C59)."""

import copy

import numpy as np
import pytest
from pettingzoo.utils import BaseParallelWrapper

from marlogue.envs import (
    BatchRunner,
    RewardProcessors,
    Start,
    TextEnv,
    batched_reward,
    coordination_v0,
)
from tests.support.envs import ROWS, LeaverEnv, actions, echo, text_env


class Upper(BaseParallelWrapper):
    """A wrapper that changes what is shown."""

    def reset(self, seed=None, options=None):
        shown, infos = self.env.reset(seed=seed, options=options)
        return {agent: text.upper() for agent, text in shown.items()}, infos


class Counting(TextEnv):
    """A subclass that overrides step: the runner must not go around it."""

    def step(self, actions):
        result = super().step(actions)
        return result._replace(rewards=dict.fromkeys(result.rewards, 100.0))


def len_a(a, b):
    return [float(len(text)) for text in a]


def answers(episode):
    """What the agents say, different for each episode and turn."""
    return {
        agent: f"{agent[-1]}{episode.index}{'!' * episode.turn}{episode.observations[agent]}"
        for agent in episode.agents
    }


def play_all(runner, starts, num_generations=1):
    """All results of all episodes, by episode."""
    episodes = runner.reset(starts, num_generations)
    results = [[(e.observations, e.infos)] for e in episodes]
    while running := [episode for episode in episodes if not episode.over]:
        for episode, result in zip(
            running, runner.step(running, [answers(e) for e in running]), strict=True
        ):
            results[episode.index].append(result)
    return episodes, results


def play_one_by_one(env, starts, num_generations=1):
    """The same with one environment after the other."""
    results = []
    for start in starts:
        shown, infos = env.reset(*start)
        for _ in range(num_generations):
            twin, turn = copy.deepcopy(env), 0
            record = [(shown, infos)]
            while twin.agents:
                texts = {
                    a: f"{a[-1]}{len(results)}{'!' * turn}{shown_[a]}"
                    for a in twin.agents
                    for shown_ in [record[-1][0]]
                }
                record.append(twin.step(texts))
                turn += 1
            results.append(record)
    return results


STARTS = {
    "in order": [Start()] * 5,
    "seeded": [Start(seed=1), Start(seed=2), Start(), Start(seed=2)],
    "rows": [Start(options={"row": 2}), Start(), Start(options={"row": 0})],
    "items": [Start(options={"item": {"prompt": "own"}}), Start()],
    "none": [],
}
KINDS = {
    "plain": {},
    "turns": {"num_turns": 3},
    "shuffled": {"num_turns": 2, "shuffle": True},
    "early": {"num_turns": 4, "early_termination_threshold": 40.0},
    "processed": {"num_turns": 2, "reward_processor": RewardProcessors.scale(0.5)},
    "batched": {
        "num_turns": 2,
        "reward_func": batched_reward(
            lambda a, b, batch_items: [
                [len(x) + item.get("id", 9), None] for x, item in zip(a, batch_items, strict=True)
            ]
        ),
    },
}


@pytest.mark.parametrize("num_generations", [1, 3])
@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_environment_after_the_other(kind, starts, num_generations):
    env = text_env(**KINDS[kind])
    _, together = play_all(BatchRunner(env), starts, num_generations)
    assert together == play_one_by_one(env, starts, num_generations)


def test_episodes_are_item_major():
    runner = BatchRunner(text_env())
    episodes = runner.reset([Start(options={"row": 2}), Start(options={"row": 0})], 3)
    assert [episode.index for episode in episodes] == list(range(6))
    assert [episode.start for episode in episodes] == [0, 0, 0, 1, 1, 1]
    assert [episode.generation for episode in episodes] == [0, 1, 2] * 2
    assert [episode.observations["agent_0"] for episode in episodes] == ["z"] * 3 + ["x"] * 3
    assert [episode.infos["agent_0"]["row"] for episode in episodes] == [2] * 3 + [0] * 3


def test_rewards_stay_with_their_prompt():
    """C17: prompt 0 always earns 1 and prompt 1 always 0, so group-centred advantages are 0."""
    env = TextEnv(
        [{"prompt": "p0", "worth": 1.0}, {"prompt": "p1", "worth": 0.0}],
        lambda a, b, batch_items: [batch_items[0]["worth"]] * len(a),
    )
    runner = BatchRunner(env)
    episodes = runner.reset([Start(), Start()], 3)
    results = runner.step(episodes, [actions("a", "b")] * 6)
    rewards = np.array([result.rewards["agent_0"] for result in results]).reshape(2, 3)
    assert (rewards - rewards.mean(axis=1, keepdims=True) == 0).all()
    assert rewards.tolist() == [[1, 1, 1], [0, 0, 0]]


class TestRewardCalls:
    def seen_calls(self, mark=lambda function: function, **kwargs):
        calls = []

        def reward(a, b, prompts, batch_items):
            calls.append((a, b, prompts, [item["id"] for item in batch_items]))
            return [0.0] * len(a)

        runner = BatchRunner(text_env(reward_func=mark(reward), **kwargs))
        play_all(runner, [Start(), Start()], 2)
        return calls

    def test_one_call_per_row_and_turn(self):
        calls = self.seen_calls()
        assert calls == [
            (["00x", "01x"], ["10x", "11x"], [["x", "x"], ["x", "x"]], [0]),
            (["02y", "03y"], ["12y", "13y"], [["y", "y"], ["y", "y"]], [1]),
        ]
        assert len(self.seen_calls(num_turns=3)) == 2 * 3

    def test_two_episodes_of_the_same_row_are_two_items(self):
        calls = []
        env = text_env(reward_func=lambda a, b: calls.append(a) or [0.0] * len(a))
        play_all(BatchRunner(env), [Start(options={"row": 0})] * 2)
        assert calls == [["00x"], ["01x"]]

    def test_one_call_for_all_when_batched(self):
        calls = self.seen_calls(batched_reward)
        assert [call[3] for call in calls] == [[0, 0, 1, 1]]
        assert len(self.seen_calls(batched_reward, num_turns=3)) == 3

    def test_formatters_run_once_per_start(self):
        seen = []
        env = text_env(formatters=lambda item: seen.append(item["id"]) or "p")
        BatchRunner(env).reset([Start(), Start()], 4)
        assert seen == [0, 0, 1, 1]


def test_some_episodes_may_be_stepped_in_any_order():
    runner = BatchRunner(text_env(num_turns=2))
    first, second, third = runner.reset([Start()] * 3)
    third_result, first_result = runner.step(
        [third, first], [actions("a", "b"), actions("cc", "d")]
    )
    assert (first_result.rewards["agent_0"], third_result.rewards["agent_0"]) == (3, 2)
    assert [first.turn, second.turn, third.turn] == [1, 0, 1]
    runner.step([first, second], [actions("e", "f")] * 2)
    assert [first.over, second.over, third.over] == [True, False, False]


def test_a_failing_reward_leaves_all_episodes_where_they_were():
    def reward(a, b, batch_items):
        if batch_items[0]["id"] == 1 and a == ["bad"]:
            raise ValueError("bad word")
        return [1.0]

    runner = BatchRunner(text_env(reward_func=reward))
    episodes = runner.reset([Start(), Start()])
    with pytest.raises(ValueError, match="bad word") as caught:
        runner.step(episodes, [actions("a", "b"), actions("bad", "b")])
    assert "row 1, turn 0" in caught.value.__notes__[0]
    assert [episode.turn for episode in episodes] == [0, 0]
    assert len(runner.step(episodes, [actions("a", "b")] * 2)) == 2


def test_the_user_s_environment_is_left_alone():
    env = text_env(num_turns=2)
    env.reset()
    before = env.state()
    runner = BatchRunner(env)
    play_all(runner, [Start()] * 2)
    assert env.state() == before
    assert env.agents == ["agent_0", "agent_1"]
    assert env.reset()[1]["agent_0"]["row"] == 1


class TestMistakes:
    def running(self):
        runner = BatchRunner(text_env())
        return runner, runner.reset([Start(), Start()])

    def test_a_finished_episode(self):
        runner, episodes = self.running()
        runner.step(episodes[:1], [actions("a", "b")])
        with pytest.raises(RuntimeError, match="episode 0 is over"):
            runner.step(episodes, [actions("a", "b")] * 2)

    def test_an_episode_of_an_earlier_reset(self):
        runner, episodes = self.running()
        runner.reset([Start()])
        for episode in episodes:
            with pytest.raises(RuntimeError, match="not one of the latest reset"):
                runner.step([episode], [actions("a", "b")])

    def test_the_same_episode_twice(self):
        runner, episodes = self.running()
        with pytest.raises(ValueError, match="different"):
            runner.step([episodes[0]] * 2, [actions("a", "b")] * 2)

    def test_as_many_actions_as_episodes(self):
        runner, episodes = self.running()
        with pytest.raises(ValueError, match=r"actions \(1\) must be as many as episodes \(2\)"):
            runner.step(episodes, [actions("a", "b")])

    @pytest.mark.parametrize("num_generations", [0, -1, True])
    def test_number_of_generations(self, num_generations):
        with pytest.raises(ValueError, match="num_generations"):
            BatchRunner(text_env()).reset([Start()], num_generations)

    def test_what_is_no_parallel_environment(self):
        from marlogue.envs import to_aec

        with pytest.raises(TypeError, match="aec_to_parallel"):
            BatchRunner(to_aec(text_env()))
        with pytest.raises(TypeError, match="must be a PettingZoo ParallelEnv"):
            BatchRunner(3)
        with pytest.raises(TypeError, match="factory returned 3"):
            BatchRunner(lambda: 3)

    def test_a_factory_that_makes_one_environment_only(self):
        env = LeaverEnv()
        for factory in (lambda: env, lambda: BaseParallelWrapper(env)):
            runner = BatchRunner(factory)
            runner.reset([Start()])
            with pytest.raises(ValueError, match=r"a second time.*make a new one at each call"):
                runner.reset([Start(), Start()])

    def test_nothing_to_do(self):
        runner, _ = self.running()
        assert runner.step([], []) == []
        assert runner.reset([]) == []


class TestForeign:
    def test_an_agent_may_leave_early(self):
        """C59: returns [3, 2, 2] of agent_0 and [1] of agent_1, who is gone after its turn."""
        runner = BatchRunner(LeaverEnv())
        episodes, results = play_all(runner, [Start(), Start(seed=7)])
        for record in results:
            steps = record[1:]
            assert [set(step.rewards) for step in steps] == [
                {"agent_0", "agent_1"},
                {"agent_0"},
                {"agent_0"},
            ]
            rewards = np.array([step.rewards["agent_0"] for step in steps])
            assert rewards[::-1].cumsum()[::-1].tolist() == [3, 2, 2]
            assert steps[0].rewards["agent_1"] == 1
            assert steps[0].terminations == {"agent_0": False, "agent_1": True}
        assert all(episode.over and episode.turn == 3 for episode in episodes)

    def test_the_leaver_s_action_is_refused(self):
        runner = BatchRunner(LeaverEnv())
        (episode,) = runner.reset([Start()])
        runner.step([episode], [actions("a", "b")])
        assert episode.agents == ["agent_0"]
        with pytest.raises(ValueError, match="unknown or finished agent_1"):
            runner.step([episode], [actions("a", "b")])

    def test_generations_share_a_seed_and_unseeded_starts_differ(self):
        episodes = BatchRunner(LeaverEnv()).reset([Start(), Start(seed=9), Start()], 2)
        seeds = [episode.infos["agent_0"]["seed"] for episode in episodes]
        assert seeds == [0, 0, 9, 9, 10, 10]

    def test_copies_are_used_again(self):
        made = []

        def factory():
            made.append(LeaverEnv())
            return made[-1]

        runner = BatchRunner(factory)
        assert runner.possible_agents == ["agent_0", "agent_1"]
        for _ in range(3):
            play_all(runner, [Start(), Start()], 2)
        assert len(made) == 4
        assert {env.num_resets for env in made} == {3}

    @pytest.mark.parametrize("make", [lambda: Upper(text_env()), lambda: Counting(ROWS, len_a)])
    def test_wrapped_and_overridden_text_environments_play_the_same_rows(self, make):
        starts = [Start(), Start(), Start(options={"row": 0}), Start()]
        episodes = BatchRunner(make()).reset(starts, 2)
        rows = [episode.infos["agent_0"]["row"] for episode in episodes]
        assert rows == [0, 0, 1, 1, 0, 0, 2, 2]

    def test_wrappers_and_overrides_take_effect(self):
        (episode,) = BatchRunner(Upper(text_env())).reset([Start()])
        assert episode.observations == actions("X", "X")
        runner = BatchRunner(Counting(ROWS, len_a))
        episodes = runner.reset([Start()])
        assert runner.step(episodes, [actions("a", "b")])[0].rewards["agent_0"] == 100.0

    def test_a_wrapped_text_environment_equals_the_bare_one(self):
        starts = [Start()] * 4
        plain = BatchRunner(text_env(num_turns=3, external_transition=echo))
        wrapped = BatchRunner(BaseParallelWrapper(text_env(num_turns=3, external_transition=echo)))
        assert play_all(wrapped, starts, 2)[1] == play_all(plain, starts, 2)[1]

    def test_agents_that_are_flagged_but_not_removed_count_as_ended(self):
        class Keeper(LeaverEnv):
            def step(self, actions):
                acting = self.agents
                returned = super().step(actions)
                self.agents = acting
                return returned

        runner = BatchRunner(Keeper())
        (episode,) = runner.reset([Start()])
        runner.step([episode], [actions("a", "b")])
        assert episode.agents == ["agent_0"]

    @pytest.mark.parametrize(
        ("part", "value", "message"),
        [
            (0, {}, "gave agent_0 no observation"),
            (0, {"agent_0": 3, "agent_1": "x"}, r"observation 3; it must be a prompt"),
            (1, {"agent_0": float("nan"), "agent_1": 0}, "agent_0.*must be finite"),
            (1, {"agent_0": "a", "agent_1": 0}, "agent_0.*must be a number"),
            (1, {"agent_1": 0}, "agent_0.*must be a number"),
        ],
    )
    def test_faults_of_the_environment_are_named(self, part, value, message):
        class Faulty(LeaverEnv):
            def step(self, actions):
                returned = list(super().step(actions))
                returned[part] = value
                return tuple(returned)

        runner = BatchRunner(Faulty())
        episodes = runner.reset([Start(), Start()])
        with pytest.raises(ValueError, match=message) as caught:
            runner.step(episodes[1:], [actions("a", "b")])
        assert "episode 1 of leaver_v0" in str(caught.value)

    def test_an_environment_s_own_error_is_noted(self):
        class Faulty(LeaverEnv):
            def reset(self, seed=None, options=None):
                raise OSError("no board")

        with pytest.raises(OSError, match="no board") as caught:
            BatchRunner(Faulty()).reset([Start(seed=4)])
        assert "episode 0 of leaver_v0 with seed 4" in caught.value.__notes__[0]

    def test_an_environment_that_cannot_be_copied_needs_a_factory(self):
        class Uncopyable(LeaverEnv):
            def __deepcopy__(self, memo):
                raise TypeError("holds a socket")

        with pytest.raises(TypeError, match="holds a socket") as caught:
            BatchRunner(Uncopyable())
        assert "pass a function" in caught.value.__notes__[0]
        assert len(BatchRunner(Uncopyable).reset([Start()] * 2)) == 2

    def test_close_closes_the_copies(self):
        closed = []

        class Closing(LeaverEnv):
            def close(self):
                closed.append(self)

        runner = BatchRunner(Closing())
        runner.reset([Start()] * 3)
        runner.close()
        assert len(closed) == 3
        BatchRunner(text_env()).close()


class KeepsItsOptions(BaseParallelWrapper):
    def reset(self, seed=None, options=None):
        return self.env.reset(seed=seed)


def test_a_wrapper_that_keeps_options_to_itself_is_told():
    """Copies would all play the first row."""
    runner = BatchRunner(KeepsItsOptions(coordination_v0.parallel_env()))
    with pytest.warns(
        UserWarning, match="plays row 0 where row 1 was to be played.*pass the options"
    ):
        runner.reset([Start(), Start(), Start()])


class PaysLate(LeaverEnv):
    """Whoever has left is paid at the end, too."""

    def step(self, actions):
        shown, rewards, *rest = super().step(actions)
        return shown, {"agent_0": 0.0, "agent_1": 0.5, **rewards}, *rest


def test_rewards_of_who_has_left_are_passed_on():
    runner = BatchRunner(PaysLate())
    (episode,) = runner.reset([Start()])
    runner.step([episode], [actions("a", "b")])
    (result,) = runner.step([episode], [{"agent_0": "a"}])
    assert result.rewards == {"agent_0": 0.0, "agent_1": 0.5}
