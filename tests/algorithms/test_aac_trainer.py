"""AACTrainer as its users meet it: runs, folders, logs, and what it refuses."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marlogue.algorithms import AACConfig, AACTrainer, Callback
from marlogue.algorithms.attention_trace import AttentionTrace, list_traces
from marlogue.algorithms.curriculum import make_stages
from tests.algorithms.test_aac_learns import config
from tests.support.games import Cues, Idler, Leavers, Memory, Targets


def short(**changes) -> AACConfig:
    return config(**{"total_steps": 120, "learning_starts": 40, "batch_size": 16, **changes})


def weights(trainer):
    return [p.detach().clone() for p in trainer.networks.actors.parameters()]


class TestRuns:
    def test_a_seed_makes_a_run_reproducible(self):
        seeds = [11, 12, 13, 14]

        def trained(seed, envs=2):
            torch.manual_seed(seeds.pop())  # the global generators don't matter
            trainer = AACTrainer(args=short(seed=seed, num_envs=envs), env=Cues)
            trainer.train()
            return weights(trainer)

        same = all(torch.equal(a, b) for a, b in zip(trained(1), trained(1), strict=True))
        other = all(torch.equal(a, b) for a, b in zip(trained(1), trained(2), strict=True))
        assert same
        assert not other

    def test_processes_change_nothing(self):
        runs = []
        for backend, workers in (("serial", None), ("subprocess", 2)):
            args = short(env_backend=backend, num_envs=2, num_workers=workers, total_steps=80)
            trainer = AACTrainer(args=args, env=Cues)
            trainer.train()
            runs.append(weights(trainer))
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))

    def test_steps_updates_and_hooks(self):
        seen = []

        class Note(Callback[AACTrainer]):
            def on_train_start(self, trainer):
                seen.append("start")

            def on_episode(self, trainer, episode):
                seen.append("episode")
                assert episode.length == 1

            def on_update(self, trainer):
                seen.append("update")

            def on_evaluation(self, trainer, metrics):
                seen.append(("evaluation", trainer.steps))

            def on_train_end(self, trainer):
                seen.append("end")

        args = short(eval_interval=50, train_interval=10, updates_per_train=2, eval_episodes=3)
        trainer = AACTrainer(args=args, env=Cues, callbacks=[Note()])
        trainer.train()
        assert trainer.steps == 120
        # At 40, 50, ..., 120, two each.
        assert trainer.updates == seen.count("update") == 18
        assert seen.count("episode") == 120
        evaluations = [entry for entry in seen if isinstance(entry, tuple)]
        assert evaluations == [("evaluation", s) for s in (0, 50, 100, 120)]
        assert (seen[0], seen[-1]) == ("start", "end")
        with pytest.raises(RuntimeError, match="trained already"):
            trainer.train()

    def test_evaluation_disturbs_nothing(self):
        runs = []
        for interval in (0, 25):
            trainer = AACTrainer(args=short(eval_interval=interval, eval_episodes=2), env=Cues)
            trainer.train()
            runs.append(weights(trainer))
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
        assert trainer.evaluate() == trainer.evaluate()

    def test_an_exception_keeps_what_was_learnt(self, tmp_path):
        class Broken(Cues):
            def scored(self, actions):
                if self.calls == 100:
                    raise RuntimeError("the power is out")
                self.calls += 1
                return super().scored(actions)

            calls = 0

        trainer = AACTrainer(args=short(num_envs=1), env=Broken(), logdir=tmp_path)
        with pytest.raises(RuntimeError, match="the power is out") as caught:
            trainer.train()
        notes = " ".join(caught.value.__notes__)
        assert "environment 0" in notes
        assert str(tmp_path / "interrupted") in notes
        fresh = AACTrainer(args=short(seed=3), env=Cues)
        fresh.load_model(tmp_path / "interrupted")
        same = zip(weights(fresh), weights(trainer), strict=True)
        assert all(torch.equal(a, b) for a, b in same)


class TestFolders:
    def test_saved_networks_are_loaded(self, tmp_path):
        args = short(
            normalize_observations=True, consistency_coef=0.1, local_value_coef=0.1, num_envs=2
        )
        trainer = AACTrainer(args=args, env=Cues)
        trainer.train()
        trainer.save_model(tmp_path)
        other = AACTrainer(args=short(**{**vars_of(args), "seed": 9}), env=Cues)
        other.load_model(tmp_path)
        assert other.evaluate() == evaluated_with(trainer, 9)
        before = {k: v.clone() for k, v in other.networks.critic.state_dict().items()}
        wrong = AACTrainer(args=short(hidden_size=16), env=Cues)
        with pytest.raises(ValueError, match=r"networks|is needed"):
            wrong.load_model(tmp_path)
        (tmp_path / "critic.safetensors").write_bytes(b"torn")
        with pytest.raises(Exception, match=r"[Hh]eader"):
            other.load_model(tmp_path)
        assert all(torch.equal(v, before[k]) for k, v in other.networks.critic.state_dict().items())
        with pytest.raises(ValueError, match=r"no aac\.json"):
            other.load_model(tmp_path / "nowhere")

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_heads": 4},
            {"attention": "linear"},
            {"layer_norm": True},
            {"normalize_observations": True},
            {"scale_rewards": False},
        ],
    )
    def test_weights_that_would_mean_something_else(self, tmp_path, changes):
        """Their shapes are the same."""
        AACTrainer(args=short(), env=Cues).save_model(tmp_path)
        other = AACTrainer(args=short(seed=1, **changes), env=Cues)
        before = weights(other)
        with pytest.raises(ValueError, match=f"{next(iter(changes))} of the networks in"):
            other.load_model(tmp_path)
        assert all(torch.equal(a, b) for a, b in zip(before, weights(other), strict=True))

    def test_weights_of_other_types_in_their_order(self, tmp_path):
        class IdlerFirst(Idler):
            def __init__(self):
                super().__init__()
                self.possible_agents.insert(0, self.possible_agents.pop())

        AACTrainer(args=short(), env=Idler).save_model(tmp_path)
        with pytest.raises(ValueError, match="groups of the networks"):
            AACTrainer(args=short(), env=IdlerFirst).load_model(tmp_path)

    def test_a_larger_team_loads_the_same_networks(self, tmp_path):
        trainer = AACTrainer(args=short(id_embedding=0), env=Cues)
        trainer.train()
        trainer.save_model(tmp_path)
        larger = AACTrainer(args=short(id_embedding=0), env=lambda: Cues(num_agents=7))
        larger.load_model(tmp_path)
        assert larger.evaluate() == trainer.evaluate(num_agents=7)

    def test_what_a_run_leaves_to_look_at(self, tmp_path):
        args = short(eval_interval=60, eval_episodes=2, logging_steps=20, total_steps=200)
        trainer = AACTrainer(args=args, env=lambda: Cues(length=4), guidance=True, logdir=tmp_path)
        trainer.train()
        events = EventAccumulator(str(tmp_path)).Reload()
        tags = set(events.Tags()["scalars"])
        assert tags >= {
            "team/return", "team/length", "agent_0/return", "eval/team/return_mean",
            "eval/agent_2/return_mean", "critic/loss", "critic/q_mean", "critic/target_max",
            "critic/grad_norm", "actor/loss", "actor/entropy", "agent_1/entropy",
            "attention/entropy_head_0", "attention/largest_weight", "actor/temperature",
            "exploration/epsilon", "guidance/weight", "guidance/cosine", "guidance/spread",
            "train/agent_learning_rate", "replay/steps", "time/updates_per_second",
        }  # fmt: skip
        assert set(events.Tags()["images"]) == {"attention/episode", "attention/mean"}
        steps = [event.step for event in events.Scalars("eval/team/return_mean")]
        assert steps == [0, 60, 120, 180, 200]
        traces = list_traces(tmp_path)
        assert list(traces) == steps
        trace = AttentionTrace.load(traces[200])
        assert trace.weights.shape == (4, 2, 3, 3)
        np.testing.assert_allclose(trace.weights.sum(-1), 1.0, rtol=1e-4)
        with open(tmp_path / "progress.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert sum(bool(row["eval/team/return_mean"]) for row in rows) == len(steps)

    def test_an_evaluation_of_something_else_leaves_the_run_as_it_is(self, tmp_path):
        trainer = AACTrainer(args=short(id_embedding=0), env=Cues, logdir=tmp_path)
        trainer.evaluate()
        (path,) = list_traces(tmp_path).values()
        trainer.evaluate(num_agents=5)
        trainer.evaluate(episodes=1)
        assert list(list_traces(tmp_path).values()) == [path]
        assert AttentionTrace.load(path).names == trainer.team.agents

    def test_attention_of_a_team_that_remembers_and_shrinks(self, tmp_path):
        for env, changes in ((Memory, {"actor_trunk": "gru"}), (Leavers, {})):
            folder = tmp_path / env.__name__
            trainer = AACTrainer(args=short(**changes), env=env, logdir=folder)
            trainer.evaluate()
            trace = AttentionTrace.load(next(iter(list_traces(folder).values())))
            assert np.isfinite(trace.weights).all()


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"total_steps": 0}, r"total_steps \(0\)"),
            ({"learning_starts": 500, "total_steps": 500}, r"learning_starts \(500\)"),
            ({"hidden_size": 30, "num_heads": 4}, r"hidden_size \(30\) must be a multiple"),
            ({"attention": "local"}, "attention_position"),
            ({"attention_graph": [[1], [0]]}, "'local' for attention_graph"),
            ({"critic_architecture": "mean", "attention": "linear"}, "attention"),
            ({"critic_architecture": "concat", "consistency_coef": 1.0}, "no local values"),
            ({"team_head": "monotonic"}, "consistency_coef above 0"),
            ({"target_entropy": 0.5}, "learn_temperature=True"),
            ({"actor_trunk": "gru", "num_queries": 2}, "num_queries"),
            ({"actor_hidden_sizes": []}, "actor_hidden_sizes"),
            ({"epsilon": 1.5}, "epsilon"),
            ({"replay_size": 11, "num_envs": 3}, r"replay_size \(11\)"),
            ({"attention": "local", "attention_graph": [1, 0]}, r"attention_graph \(1 for agent 0"),
            ({"attention": "local", "attention_graph": "ab"}, r"attention_graph \('ab'"),
            ({"attention": "local", "attention_graph": [["a"], [0]]}, r"attention_graph \(\['a'\]"),
            ({"deterministic": True, "learn_temperature": True}, "learn_temperature"),
            ({"warmup_steps": 5}, r"warmup_steps \(5\) does nothing"),
            ({"device": "gpu9"}, "device"),
            ({"actor_gradient": "reinforce"}, "actor_gradient"),
        ],
    )
    def test_configurations(self, changes, message):
        with pytest.raises(ValueError, match=message):
            AACConfig(**changes)

    def test_gradients_that_do_not_fit_the_actions(self):
        with pytest.raises(ValueError, match=r"actor_gradient \('pathwise'\).*'expected'"):
            AACTrainer(args=short(actor_gradient="pathwise"), env=Cues)
        with pytest.raises(ValueError, match=r"actor_gradient \('expected'\).*'pathwise'"):
            AACTrainer(args=short(actor_gradient="expected"), env=Targets)
        with pytest.raises(ValueError, match="deterministic"):
            AACTrainer(args=short(deterministic=True), env=Cues)

    def test_exploration_that_does_not_fit_the_actions(self):
        with pytest.raises(ValueError, match=r"epsilon .* does nothing .* set noise"):
            AACTrainer(args=short(epsilon={"start": 0.5, "end": 0.1}), env=Targets)
        with pytest.raises(ValueError, match=r"noise .* does nothing .* set epsilon"):
            AACTrainer(args=short(noise=0.3), env=Cues)

    def test_spaces_that_cannot_be_handled(self):
        class Many(Cues):
            def action_space(self, agent):
                return MultiDiscrete([2, 2])

        with pytest.raises(TypeError, match=r"agent_0.*must be Discrete or Box"):
            AACTrainer(args=short(), env=Many)

        class Mixed(Cues):
            def action_space(self, agent):
                box = Box(-1.0, 1.0, (1,), np.float32)
                return box if agent == "agent_1" else super().action_space(agent)

        with pytest.raises(TypeError, match="all Discrete or all Box"):
            AACTrainer(args=short(), env=Mixed)

    @pytest.mark.parametrize("where", ["observation", "reward"])
    def test_numbers_that_are_none(self, where):
        class Bad(Cues):
            def shown(self):
                seen = super().shown()
                if where == "observation" and self.time == 1:
                    seen["agent_1"][2] = np.nan
                return seen

            def scored(self, actions):
                rewards = super().scored(actions)
                return rewards if where == "observation" else {**rewards, "agent_1": np.inf}

        with pytest.raises(ValueError, match=r"agent_1.*finite"):
            AACTrainer(args=short(), env=lambda: Bad(length=3)).train()

    def test_guidance_that_is_wrong(self):
        with pytest.raises(ValueError, match="guidance"):
            AACTrainer(args=short(), env=Targets, guidance=True).train()

        def short_of_one(state, actions, infos):
            return np.zeros((2, 3))

        with pytest.raises(ValueError, match="guidance gave an array of shape"):
            AACTrainer(args=short(), env=Cues, guidance=short_of_one).train()

    def test_workers_that_there_cannot_be(self):
        with pytest.raises(ValueError, match=r"num_workers \(2\) must be at most"):
            AACTrainer(args=short(num_workers=2), env=Cues)

    def test_curricula(self):
        assert [s.until for s in make_stages([{"until": 0.25, "n": 1}, {"n": 2}])] == [0.25, 1.0]
        stages = make_stages([{"until": 0.25}, {"until": 0.5}, {}])
        assert [s.until for s in stages] == [0.25, 0.5, 1.0]
        for wrong in ([{"n": 1}, {"n": 2}], [{"until": 0.5}], [{"until": 0.6}, {"until": 0.5}, {}]):
            with pytest.raises(ValueError, match="until"):
                make_stages(wrong)
        with pytest.raises(ValueError, match="must be a mapping"):
            make_stages(["easy"])
        with pytest.raises(ValueError, match="must be of the team that the weights"):
            AACTrainer(
                args=short(sharing="none"),
                env=Cues,
                curriculum=[{"num_agents": 2, "until": 0.5}, {"num_agents": 3}],
            )

    def test_things_that_are_no_callbacks_or_configurations(self):
        with pytest.raises(TypeError, match="callbacks"):
            AACTrainer(args=short(), env=Cues, callbacks=[print])
        with pytest.raises(TypeError, match="AACConfig"):
            AACTrainer(args={"total_steps": 3}, env=Cues)


def vars_of(args) -> dict:
    return {name: getattr(args, name) for name in args.__dataclass_fields__}


def evaluated_with(trainer, seed) -> dict:
    """The evaluation of a trainer with the seed of another."""
    trainer.args.seed = seed
    return trainer.evaluate()
