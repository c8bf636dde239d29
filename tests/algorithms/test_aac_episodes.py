"""What must not leak: from an episode that breaks off into the next one, from one stage into
another, and from an evaluation into the training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marlogue.agents import TeamSpec
from marlogue.algorithms import AACTrainer, Callback
from marlogue.algorithms.aac_memory import Memory, Statistics
from marlogue.algorithms.team_views import TeamView, VectorStep
from tests.algorithms.test_aac_trainer import short, weights
from tests.support.games import Cues, Targets
from tests.support.teams import team_of


class TestStages:
    def test_the_same_agents_with_another_argument(self):
        """Replay goes on, and the episode that the first stage left unfinished ends there."""
        stages = [{"length": 7, "until": 0.4}, {"length": 9}]
        trainer = AACTrainer(args=short(num_envs=1), env=Cues, curriculum=stages)
        trainer.train()
        assert trainer.steps == 120
        assert trainer.updates == 17  # at 40, 45, ... 120
        assert trainer.memory is not None
        assert len(trainer.memory) == 120

    def test_learning_waits_for_a_batch_of_the_new_team(self):
        class Note(Callback[AACTrainer]):
            def __init__(self):
                self.at = []

            def on_update(self, trainer):
                self.at.append(trainer.steps)

        note = Note()
        stages = [{"num_agents": 2, "until": 0.5}, {"num_agents": 3}]
        args = short(num_envs=1)  # learning_starts=40, train_interval=5, batch_size=16
        AACTrainer(args=args, env=Cues, curriculum=stages, callbacks=[note]).train()
        assert note.at == [40, 45, 50, 55, 60, 80, 85, 90, 95, 100, 105, 110, 115, 120]

    def test_statistics_stay_with_their_types(self):
        """Whatever the order of the agents, and also where one of the types is not there."""
        args = short(normalize_observations=True)
        both = team_of([3, 2], [2, 2], True)
        statistics = Statistics(args, both)
        assert statistics.observations is not None
        seen = np.array([[[7.0, 7.0, 7.0], [1.0, 1.0, 0.0]], [[9.0, 9.0, 9.0], [3.0, 3.0, 0.0]]])
        statistics.observations.update(seen, np.ones((2, 2), bool))
        large, small = zip(both.agents, both.observation_spaces, both.action_spaces, strict=True)
        for members in ((large, small), (small, large), (large,)):
            team = TeamSpec(*zip(*members, strict=True))
            fresh = statistics.for_team(args, team).observations
            assert fresh is not None
            mean = torch.tensor(
                [[8.0, 8.0, 8.0] if m is large else [2.0, 2.0, 0.0] for m in members]
            )
            torch.testing.assert_close(fresh.tensor(mean), torch.zeros(len(members), 3))
        with pytest.raises(ValueError, match=r"2 types.*normalize_observations"):
            Statistics(args, team).for_team(args, both)


def shown(count):
    """What two environments of two agents show, and that nothing but the first one's step came."""
    seen = np.full((count, 2, 3), 0.5, np.float32)
    return TeamView(seen, np.ones((count, 2), bool), np.ones((count, 2, 2), bool))


def stepped(lost, *, guidance=None):
    lost = np.array(lost)
    nobody = np.zeros((len(lost), 2), bool)
    view = shown(len(lost))
    rewards = np.where(lost[:, None], 0.0, np.ones((len(lost), 2))).astype(np.float32)
    over = np.zeros(len(lost), bool)
    return VectorStep(rewards, nobody, nobody, view, over, view, guidance, lost, [])


class TestLostWorkers:
    def test_sums_of_rewards_begin_anew(self):
        args = short(num_envs=2, discount=1.0)
        team = team_of([3, 3], [2, 2], True)
        statistics = Statistics(args, team)
        memory = Memory(args, team, 0, 0)
        for lost in ([False, False], [False, True], [False, False]):
            step = stepped(lost)
            rows = memory.add(shown(2), np.zeros((2, 2), np.int64), step, None)
            statistics.update(rows, step.over[step.kept_envs], step.kept_envs)
            statistics.forget(step.lost_envs)
        assert statistics.rewards is not None
        # Sums of the first environment: 1, 2, 3; of the second, which broke off: 1, then 1.
        sums = np.array([1, 2, 3, 1, 1])
        assert statistics.rewards.scale == pytest.approx(sums.std(), rel=1e-6)

    def test_all_are_lost_before_guidance_is_known(self):
        team = team_of([3, 3], [2, 2], True)
        memory = Memory(short(num_envs=1), team, 0, 0)
        memory.add(shown(1), np.zeros((1, 2), np.int64), stepped([True]), None)
        given = np.ones((1, 2, 2), np.float32)
        memory.add(shown(1), np.zeros((1, 2), np.int64), stepped([False], guidance=given), None)
        assert len(memory) == 1
        guidance = memory.draw(0.0, torch.device("cpu")).guidance
        assert guidance is not None
        assert (guidance == 1).all()


class TestEvaluation:
    def test_an_environment_that_is_being_played_is_not_touched(self):
        """Also where one episode is played, for which one environment is enough."""
        runs = []
        for interval in (0, 25):
            args = short(num_envs=1, eval_interval=interval, eval_episodes=1)
            trainer = AACTrainer(args=args, env=Cues(length=7))
            trainer.train()
            runs.append(weights(trainer))
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))

    def test_no_episodes(self):
        with pytest.raises(ValueError, match=r"episodes \(0\) must be"):
            AACTrainer(args=short(), env=Cues).evaluate(episodes=0)


def test_deterministic_policies_act_by_their_mode():
    """So that ``noise`` is all that explores: here there is none."""

    class Look(Callback[AACTrainer]):
        seen = 0

        def on_update(self, trainer):
            batch = trainer.memory.draw(0.0, torch.device("cpu"))
            with torch.no_grad():
                policy, _ = trainer.networks.actors(batch.observations)
            torch.testing.assert_close(batch.actions, policy.mode())
            self.seen += 1

    look = Look()
    args = short(
        deterministic=True, noise=0.0, agent_learning_rate=0.0, random_start=False, num_envs=1
    )
    AACTrainer(args=args, env=Targets, callbacks=[look]).train()
    assert look.seen > 0


def test_a_replay_that_will_not_fit_is_refused_before_it_fills():
    args = short(replay_size=10**12, total_steps=10**12, eval_interval=0)
    trainer = AACTrainer(args=args, env=Cues)
    with pytest.raises(MemoryError, match=r"replay_size \(1,000,000,000,000\) will take .* GiB"):
        trainer.train()


def test_agents_with_names_of_their_own_in_the_evaluation():
    """Vectors that name agents are kept for them, too."""
    trainer = AACTrainer(
        args=short(id_embedding=2, eval_episodes=1), env=Cues, eval_env=lambda: Cues(num_agents=5)
    )
    assert "eval/agent_4/return_mean" in trainer.evaluate()
