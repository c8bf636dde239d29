"""Learners on parallel environments that are not ours: leavers, truncations, seeds."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from pettingzoo import ParallelEnv

from marlogue.agents import Critic
from marlogue.envs import UnicodeText, coordination_v0
from tests.support.envs import LeaverEnv
from tests.support.team import KINDS, Recorder, make_trainer, model, weights

BOTH = pytest.mark.parametrize("critic_type", ["v", "q"])


class CutEnv(ParallelEnv):
    """agent_1 is cut off after the first of three turns, agent_0 after the last."""

    metadata = {"name": "cut_v0"}  # noqa: RUF012

    def __init__(self, *, shows: bool = True, ends: str = "truncated") -> None:
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents: list[str] = []
        self.space = UnicodeText(200)
        self.shows, self.ends, self.turn = shows, ends, 0

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return self.space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.turn = 0
        return {"agent_0": "go x", "agent_1": "go y"}, {agent: {} for agent in self.agents}

    def step(self, actions):
        acting = self.agents
        self.turn += 1
        over = {agent: self.turn == 3 or agent == "agent_1" for agent in acting}
        self.agents = [agent for agent in acting if not over[agent]]
        shown = acting if self.shows else self.agents
        observations = {agent: f"again {'xyz'[self.turn - 1]} {agent[-1]}" for agent in shown}
        never = dict.fromkeys(acting, False)
        flags = (never, over) if self.ends == "truncated" else (over, over)
        return observations, dict.fromkeys(acting, 1.0), *flags, {agent: {} for agent in acting}


def play(kind: str, env, **settings):
    """Train on one episode; returns its samples by agent and turn, and the untrained critics."""
    samples: list = []
    seen = Recorder()
    trainer = make_trainer(
        kind,
        env=env,
        max_steps=1,
        num_turns=3,
        callbacks=[seen],
        metrics_callback=lambda s: samples.extend(s) or {},
        **settings,
    )
    owners = trainer.agents if kind == "shared" else trainer.critics
    judges = [
        Critic(deepcopy(o.model), o.tokenizer, value_head=deepcopy(o.value_head)) for o in owners
    ]
    trainer.train()
    return {(s.agent_idx, s.turn_idx): s for s in samples}, judges, seen


def value(judge: Critic, what) -> float:
    ids = judge.tokenizer(what)["input_ids"] if isinstance(what, str) else what
    with torch.no_grad():
        return judge.values([ids]).item()


def joint(prompts, completions=None) -> str:
    text = f"[Agent 0] {prompts[0]}\n\n[Agent 1] {prompts[1]}"
    if completions is not None:
        text += "\n\n[Joint Action]"
        for k in (0, 1):
            text += f"\n\n[Agent {k} action]\n{completions[k]}"
    return text


class TestLeavers:
    @BOTH
    @pytest.mark.parametrize("kind", KINDS)
    def test_an_agent_that_leaves_has_no_further_turns(self, kind, critic_type):
        """C59: rewards 1, 0, 2 and 1; returns 3, 2, 2 and 1."""
        samples, _, seen = play(kind, LeaverEnv(), critic_type=critic_type)
        assert sorted(samples) == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert [samples[0, t].return_ for t in range(3)] == [3.0, 2.0, 2.0]
        assert samples[1, 0].return_ == 1.0
        assert samples[1, 0].target == 1.0  # a termination
        assert samples[0, 2].target == 2.0
        assert samples[0, 0].target == pytest.approx(1.0 + samples[0, 1].value)
        assert len(seen.updates) == 1

    def test_the_central_critic_reads_nothing_of_who_has_left(self):
        samples, judges, _ = play("maac", LeaverEnv())
        later = samples[0, 1]
        assert later.joint.prompts[1] == ""
        assert later.value == pytest.approx(value(judges[0], joint((later.prompt, ""))), abs=1e-5)

    def test_the_environment_is_not_begun_anew_by_the_first_leaver(self):
        env = LeaverEnv()
        samples, _, _ = play("separate", env)
        assert len({s.prompt.split(",")[0] for s in samples.values()}) == 1
        assert env.num_resets == 0  # a copy was played

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_comes_after_leaving_was_earned_by_the_last_answer(self, kind):
        class PaysLate(LeaverEnv):
            def step(self, actions):
                shown, rewards, *rest = super().step(actions)
                return shown, {"agent_1": 0.5, **rewards}, *rest

        samples, _, _ = play(kind, PaysLate())
        assert samples[1, 0].reward == 1.0 + 0.5 + 0.5
        assert samples[1, 0].target == 2.0


class TestTruncation:
    @BOTH
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_bootstraps_and_a_termination_does_not(self, kind, critic_type):
        settings = {"critic_type": critic_type, "discount": 0.5}
        cut, _, _ = play(kind, CutEnv(), **settings)
        ended, _, _ = play(kind, CutEnv(ends="terminated"), **settings)
        for last in ((0, 2), (1, 0)):
            following = cut[last].next
            assert following.is_final_observation
            assert cut[last].target == pytest.approx(1.0 + 0.5 * following.value)
            assert ended[last].target == 1.0
            assert ended[last].next is None
        assert sorted(cut) == sorted(ended)

    @pytest.mark.parametrize("kind", ["separate", "shared"])
    def test_independent_values_of_the_last_observation(self, kind):
        samples, judges, _ = play(kind, CutEnv())
        for agent, turn, prompt in ((0, 2, "again z 0"), (1, 0, "again x 1")):
            following = samples[agent, turn].next
            assert following.prompt == prompt
            assert following.value == pytest.approx(value(judges[agent], prompt), abs=1e-5)

    @pytest.mark.parametrize("kind", ["separate", "shared"])
    def test_independent_values_of_a_sampled_action(self, kind):
        samples, judges, _ = play(kind, CutEnv(), critic_type="q")
        for agent, turn in ((0, 2), (1, 0)):
            following = samples[agent, turn].next
            assert following.completion_ids
            ids = following.prompt_ids + following.completion_ids
            assert following.value == pytest.approx(value(judges[agent], ids), abs=1e-5)

    def test_joint_values(self):
        samples, judges, _ = play("maac", CutEnv())
        both = value(judges[0], joint(("again x 0", "again x 1")))
        assert samples[1, 0].next.value == pytest.approx(both, abs=1e-5)
        alone = value(judges[0], joint(("again z 0", "")))
        assert samples[0, 2].next.value == pytest.approx(alone, abs=1e-5)

    def test_joint_values_of_sampled_actions(self):
        """Who plays on has really acted then; who is cut off is asked once more."""
        samples, judges, _ = play("maac", CutEnv(), critic_type="q")
        following = samples[1, 0].next
        said = (samples[0, 1].completion, following.completion)
        assert following.joint.completions == said
        wanted = value(judges[0], joint(("again x 0", "again x 1"), said))
        assert following.value == pytest.approx(wanted, abs=1e-5)

    def test_what_is_bootstrapped_from_is_never_trained_on(self):
        samples, _, seen = play("separate", CutEnv(), critic_type="q")
        assert len(samples) == sum(len(update) for update in seen.updates) == 4
        assert not any(s.is_final_observation for s in samples.values())

    def test_a_missing_last_observation_is_named(self):
        with pytest.raises(ValueError, match=r"agent_1") as caught:
            play("maac", CutEnv(shows=False))
        assert "observation" in str(caught.value)


class TestRuns:
    def test_max_steps_is_needed(self):
        with pytest.raises(ValueError, match=r"max_steps \(None\).*set"):
            make_trainer("maac", env=LeaverEnv(), num_turns=3)

    def test_num_turns_must_cover_an_episode(self):
        trainer = make_trainer("maac", env=LeaverEnv(), num_turns=2, max_steps=2)
        with pytest.raises(ValueError, match=r"num_turns \(2\)"):
            trainer.train()

    def test_every_item_is_begun_with_a_seed_of_its_own(self):
        """The same in the next run, others with another seed."""

        def prompts(seed):
            seen = Recorder()
            make_trainer(
                "maac",
                env=LeaverEnv,
                num_turns=3,
                max_steps=4,
                callbacks=[seen],
                seed=seed,
                rollout_buffer_size=64,
            ).train()
            return [samples[0].prompt for samples in seen.items]

        assert len(set(prompts(0))) == 4
        assert prompts(0) == prompts(0)
        assert not set(prompts(0)) & set(prompts(1))

    def test_evaluation_of_a_foreign_environment_changes_nothing(self):
        def run(interval):
            trainer = make_trainer(
                "shared",
                env=LeaverEnv(),
                eval_env=LeaverEnv(),
                eval_interval=interval,
                num_turns=3,
                max_steps=4,
            )
            trainer.train()
            return weights(trainer)

        never, always = run(0), run(1)
        assert all(torch.equal(never[name], always[name]) for name in never)

    def test_a_wrapped_text_environment_plays_its_rows(self):
        from pettingzoo.utils import BaseParallelWrapper

        def prompts(env):
            seen = Recorder()
            make_trainer("maac", env=env, callbacks=[seen], num_train_epochs=2).train()
            return [samples[0].prompt for samples in seen.items]

        plain = coordination_v0.parallel_env()
        wrapped = BaseParallelWrapper(coordination_v0.parallel_env())
        assert prompts(plain) == prompts(wrapped)
        assert prompts(plain) == list(coordination_v0.ANSWERS) * 2

    def test_the_users_environment_is_not_touched(self):
        env = coordination_v0.parallel_env()
        make_trainer("maac", env=env, eval_env=env, eval_interval=1).train()
        assert env.agents == []
        observations, _ = env.reset()
        assert observations["agent_0"] == "dawn"

    def test_names_of_the_agents_are_the_environments(self):
        env = coordination_v0.parallel_env(agents=["writer", "critic"])
        trainer = make_trainer("maac", env=env, eval_env=env, agents=[model(1), model(2)])
        assert "eval/writer/turn_1/reward_mean" in trainer.evaluate()
