"""What a run leaves behind: figures, transcripts, hyperparameters, and the team itself."""

from __future__ import annotations

import csv
import json
import math
import warnings
from copy import deepcopy

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from marlogue.agents import SamplingParams
from marlogue.algorithms import Callback
from marlogue.algorithms.run_log import RunLog
from marlogue.algorithms.saving import load_team
from tests.support.cf import cf_tokenizer, tiny_llama
from tests.support.team import (
    KINDS,
    Recorder,
    make_trainer,
    model,
    reward_of,
    rows,
    tokenizer,
    weights,
)


def events(folder) -> EventAccumulator:
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    return read


def table(folder) -> list[dict[str, str]]:
    with open(folder / "progress.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    samples: list = []
    seen = Recorder()
    trainer = make_trainer(
        request.param,
        train_dataset=rows(6),
        num_turns=2,
        rollout_buffer_size=4,
        train_batch_size=1,
        discount=0.9,
        eval_dataset=rows(2),
        eval_interval=4,
        reference_kl_enabled=True,
        max_grad_norm=1.0,
        callbacks=[seen],
        metrics_callback=lambda s: samples.extend(s) or {"words": float(len(s))},
        logdir=folder,
    )
    trainer.train()
    return request.param, folder, seen, samples


class TestFigures:
    def test_every_metric_that_was_promised(self, run):
        kind, folder, _, _ = run
        tags = set(events(folder).Tags()["scalars"])
        named = (
            *("reward_mean", "expected_return", "td_error_mean", "td_error_std", "value"),
            *("completion_length", "truncated_share", "reference_kl", "reference_kl_penalty"),
            "abstained",
        )
        for who in ("agent_0", "agent_1", "team"):
            for turn in (1, 2):
                missing = {f"{who}/turn_{turn}/{name}" for name in named} - tags
                assert not missing
        for agent in ("agent_0", "agent_1"):
            for turn in (1, 2):
                learnt = ("actor_loss", "value_loss", "entropy", "explained_variance")
                missing = {f"{agent}/turn_{turn}/{name}" for name in learnt} - tags
                assert not missing
                assert any("grad_norm" in tag for tag in tags if tag.startswith(agent))
        assert {"train/agent_learning_rate", "words"} <= tags
        assert ("train/critic_learning_rate" in tags) == (kind != "shared")
        assert {"time/generation_tokens_per_second", "time/update_tokens_per_second"} <= tags
        assert {"eval/team/turn_1/reward_mean", "eval/agent_1/turn_2/reward_mean"} <= tags

    def test_figures_are_finite(self, run):
        read = events(run[1])
        for tag in read.Tags()["scalars"]:
            assert all(math.isfinite(event.value) for event in read.Scalars(tag)), tag

    def test_the_axis_counts_joint_actions(self, run):
        """2 turns an item: updates after items 2, 4 and 6."""
        read = events(run[1])
        assert [e.step for e in read.Scalars("team/turn_1/reward_mean")] == [4, 8, 12]
        assert [e.step for e in read.Scalars("eval/team/turn_1/reward_mean")] == [0, 8, 12]

    def test_means_are_those_of_the_samples(self, run):
        _, folder, seen, samples = run
        learnt = {(s.item_idx, s.agent_idx, s.turn_idx): s for s in samples if s.target == s.target}
        read = events(folder)
        for number, update in enumerate(seen.updates):
            for agent in (0, 1):
                for turn in (0, 1):
                    group = [
                        learnt[s.item_idx, agent, turn]
                        for s in update
                        if (s.agent_idx, s.turn_idx) == (agent, turn)
                    ]
                    assert len(group) == 2
                    place = f"agent_{agent}/turn_{turn + 1}/"
                    rewards = [reward_of(*s.joint.completions)[agent] for s in group]
                    errors = [s.target - s.value for s in group]
                    for name, values in {
                        "reward_mean": rewards,
                        "td_error_mean": errors,
                        "value": [s.value for s in group],
                        "expected_return": [s.return_ for s in group],
                        "reference_kl": [s.reference_kl for s in group],
                        "completion_length": [len(s.completion_ids) for s in group],
                        "truncated_share": [s.action.truncated for s in group],
                    }.items():
                        got = read.Scalars(place + name)[number].value
                        assert got == pytest.approx(sum(values) / 2, abs=1e-5), name
                    spread = read.Scalars(place + "td_error_std")[number].value
                    assert spread == pytest.approx(abs(errors[0] - errors[1]) / 2, abs=1e-5)

    def test_returns_are_sums_to_the_end(self, run):
        _, _, _, samples = run
        trained = [s for s in samples if s.next is not None]
        assert trained
        for s in trained:
            first, second = (
                reward_of(*part.joint.completions)[s.agent_idx] for part in (s, s.next)
            )
            assert s.return_ == pytest.approx(first + second)

    def test_the_callback_is_called_once_per_item_with_all_fields_filled(self, run):
        samples = run[3]
        trained = [s for s in samples if s.target == s.target]
        assert [s.item_idx for s in trained] == [k for k in range(6) for _ in range(4)]
        for s in trained:
            assert s.item == {"prompt": rows(6)[s.item_idx]["prompt"]}
            assert isinstance(s.prompt, str)
            assert isinstance(s.completion, str)
            assert s.prompt_ids
            assert 1 <= len(s.completion_ids) <= 4
            for number in (s.log_prob, s.value, s.reward, s.target, s.advantage, s.return_):
                assert math.isfinite(number)
            assert s.log_prob < 0
            assert (s.agent_idx, s.turn_idx, s.generation_idx) in [
                (a, t, 0) for a in (0, 1) for t in (0, 1)
            ]

    def test_csv_json_and_transcripts(self, run):
        _, folder, seen, _ = run
        lines = [line for line in table(folder) if line["team/turn_1/reward_mean"]]
        assert len(lines) == 3
        assert all(line["agent_0/turn_2/actor_loss"] for line in lines)
        records = [json.loads(line) for line in (folder / "progress.json").open()]
        assert any("agent_1/turn_1/value_loss" in record for record in records)
        said = [json.loads(line) for line in (folder / "transcripts.jsonl").open()]
        assert len(said) == 6 * 4
        for line, s in zip(said, (s for item in seen.items for s in item), strict=True):
            assert (line["agent"], line["prompt"], line["completion"]) == (
                s.agent,
                s.prompt,
                s.completion,
            )

    def test_texts_and_hyperparameters_in_tensorboard(self, run):
        read = events(run[1])
        texts = [tag for tag in read.Tags()["tensors"] if "transcripts" in tag]
        assert texts
        shown = read.Tensors(texts[0])[0].tensor_proto.string_val[0].decode()
        assert "go" in shown
        assert "agent_1" in shown
        folders = [run[1], *(path for path in run[1].iterdir() if path.is_dir())]
        plugins = [events(f).summary_metadata for f in folders]
        assert any("hparams" in name for metadata in plugins for name in metadata)


class TestLog:
    def test_every_agent_has_a_series_of_its_own(self, tmp_path):
        """C76."""
        make_trainer(
            "maac", reward_func=lambda a, b: [[1.0, 0.0] for _ in a], logdir=tmp_path
        ).train()
        (line,) = (line for line in table(tmp_path) if line["team/turn_1/reward_mean"])
        assert float(line["agent_0/turn_1/reward_mean"]) == 1.0
        assert float(line["agent_1/turn_1/reward_mean"]) == 0.0
        assert float(line["team/turn_1/reward_mean"]) == 0.5

    def test_one_value_per_optimiser_step(self, tmp_path):
        """C78: steps with the losses 1 (whatever their size) and 5 have the mean 3."""
        log = RunLog(tmp_path, verbose=False, wandb_config=None, config={}, num_transcripts=0)
        log.add_step("agent_0/turn_1", {"actor_loss": 1.0})
        log.add_step("agent_0/turn_1", {"actor_loss": 5.0})
        assert log.write(1)["agent_0/turn_1/actor_loss"] == 3.0
        log.close()

    def test_losses_of_steps_do_not_depend_on_micro_batches(self, tmp_path):
        """C78: windows of 3 and 1 samples; the figure is the mean of the two steps' losses."""
        got = {}
        for size in (1, 4):
            folder = tmp_path / str(size)
            make_trainer("maac", train_batch_size=3, micro_batch_size=size, logdir=folder).train()
            (line,) = (line for line in table(folder) if line["agent_0/turn_1/value_loss"])
            got[size] = [
                float(line[f"agent_{k}/turn_1/{name}"])
                for k in (0, 1)
                for name in ("actor_loss", "value_loss", "entropy")
            ]
        assert got[1] == pytest.approx(got[4], abs=1e-4)

    def test_withheld_rewards_are_counted(self, tmp_path):
        """C42."""
        make_trainer(
            "maac",
            train_dataset=rows(4),
            reward_func=lambda a, b: [[2.0, None] for _ in a],
            logdir=tmp_path,
        ).train()
        (line,) = (line for line in table(tmp_path) if line["team/turn_1/reward_mean"])
        assert float(line["agent_1/turn_1/abstained"]) == 4
        assert float(line["agent_0/turn_1/abstained"]) == 0
        assert float(line["team/turn_1/abstained"]) == 4
        assert float(line["team/turn_1/reward_mean"]) == 2.0
        assert line.get("agent_1/turn_1/reward_mean", "") == ""

    def test_agents_with_unequal_buffers_have_all_their_figures(self, tmp_path):
        def partly(first, second):
            return [[1.0, None if "a" in text else 2.0] for text in second]

        make_trainer(
            "maac",
            agents=[model(1), model(6)],
            train_dataset=rows(16),
            reward_func=partly,
            logdir=tmp_path,
        ).train()
        lines = [line for line in table(tmp_path) if line["agent_1/turn_1/actor_loss"]]
        assert len(lines) > 1
        assert all(line["agent_1/turn_1/td_error_mean"] for line in lines)
        assert all(line["agent_1/turn_1/value"] for line in lines)

    @pytest.mark.parametrize(("steps", "wanted"), [(1, [2, 4, 6, 8]), (4, [2, 6, 8]), (99, [2, 8])])
    def test_logging_steps(self, steps, wanted, tmp_path):
        make_trainer(
            "maac",
            train_dataset=rows(8),
            rollout_buffer_size=2,
            logging_steps=steps,
            logdir=tmp_path,
        ).train()
        read = events(tmp_path)
        assert [e.step for e in read.Scalars("team/turn_1/reward_mean")] == wanted

    def test_nothing_is_lost_between_two_writes(self, tmp_path):
        """With logging_steps the figures are means over everything since the last write."""
        seen = Recorder()
        make_trainer(
            "maac",
            train_dataset=rows(8),
            rollout_buffer_size=2,
            logging_steps=99,
            callbacks=[seen],
            logdir=tmp_path,
        ).train()
        rewards = [s.reward for item in seen.items[2:] for s in item]
        last = events(tmp_path).Scalars("team/turn_1/reward_mean")[-1].value
        assert last == pytest.approx(sum(rewards) / len(rewards), abs=1e-5)

    def test_without_a_folder_nothing_is_written(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_trainer("maac").train()
        assert list(tmp_path.iterdir()) == []

    def test_verbose_prints_a_table(self, capsys):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_trainer("maac", verbose=True).train()
        out = capsys.readouterr().out
        assert "reward_mean" in out
        assert "time" in out

    def test_quiet_prints_nothing(self, capsys):
        make_trainer("maac", eval_dataset=rows(2), eval_interval=1).train()
        assert capsys.readouterr().out == ""

    def test_figures_of_a_run_that_failed_are_kept(self, tmp_path):
        class Late(Callback):
            def on_item(self, trainer, samples):
                if samples[0].item_idx == 5:
                    raise KeyError("late")

        trainer = make_trainer("maac", train_dataset=rows(8), callbacks=[Late()], logdir=tmp_path)
        with pytest.raises(KeyError):
            trainer.train()
        assert [line for line in table(tmp_path) if line["team/turn_1/reward_mean"]]
        assert len((tmp_path / "transcripts.jsonl").read_text().splitlines()) >= 10

    def test_a_second_run_leaves_the_first_alone(self, tmp_path):
        trainer = make_trainer("maac", logdir=tmp_path)
        trainer.train()
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        with pytest.raises(RuntimeError, match="trained already"):
            trainer.train()
        with pytest.raises(ValueError, match=r"holds a run already; set resume='auto'"):
            make_trainer("maac", logdir=tmp_path).train()
        assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def test_odd_texts_reach_the_log(self, tmp_path):
        """C53: a torn character, an emoji, a newline."""
        odd = "go � 🙂\né"
        make_trainer("maac", train_dataset=[{"prompt": odd}] * 4, logdir=tmp_path).train()
        line = json.loads((tmp_path / "transcripts.jsonl").read_text("utf-8").splitlines()[0])
        assert line["prompt"] == odd


class TestSaving:
    def train(self, kind, **settings):
        trainer = make_trainer(kind, **settings)
        trainer.train()
        return trainer

    @pytest.mark.parametrize("width", [None, 5])
    @pytest.mark.parametrize("kind", KINDS)
    def test_round_trip(self, kind, width, tmp_path):
        """C71: every weight, value heads included, and the values that they give."""
        wide = {
            "maac": {"model_config": {"critic_value_head_hidden_dim": width}},
            "separate": {"critic_value_head_hidden_dim": width},
            "shared": {"value_head_hidden_dim": width},
        }[kind]
        trainer = self.train(kind, **wide)
        trainer.save_model(tmp_path)
        other = make_trainer(
            kind,
            agents=[model(8), model(9)],
            **({"critic_model": model(7)} if kind == "maac" else {}),
            **wide,
            seed=5,
        )
        judge = (other.agents if kind == "shared" else other.critics)[0]
        wanted = (trainer.agents if kind == "shared" else trainer.critics)[0]
        histories = [[0, 5], [0, 6, 2]]
        assert not torch.equal(judge.values(histories), wanted.values(histories))
        other.load_model(tmp_path)
        ours, theirs = weights(other), weights(trainer)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert torch.equal(judge.values(histories), wanted.values(histories))

    @pytest.mark.parametrize("kind", KINDS)
    def test_agents_are_ordinary_checkpoints(self, kind, tmp_path):
        trainer = self.train(kind)
        trainer.save_model(tmp_path)
        for k, agent in enumerate(trainer.agents):
            loaded = AutoModelForCausalLM.from_pretrained(tmp_path / f"agent_{k}")
            words = AutoTokenizer.from_pretrained(tmp_path / f"agent_{k}")
            ids = torch.tensor([words("go x again")["input_ids"]])
            assert ids.tolist() == [agent.tokenizer("go x again")["input_ids"]]
            assert torch.equal(loaded(ids).logits, agent.model(ids).logits)

    def test_critics_are_saved_with_their_heads(self, tmp_path):
        self.train("separate").save_model(tmp_path)
        for k in (0, 1):
            names = {path.name for path in (tmp_path / f"critic_{k}").iterdir()}
            assert {"model.safetensors", "value_head.safetensors", "tokenizer.json"} <= names
        maac = tmp_path / "maac"
        self.train("maac").save_model(maac)
        assert [p.name for p in sorted(maac.glob("critic_*"))] == ["critic_0"]

    def test_a_loaded_team_acts_as_the_saved_one(self, tmp_path):
        trainer = self.train("shared")
        trainer.save_model(tmp_path)
        team = load_team(tmp_path)
        params, streams = SamplingParams(max_new_tokens=6), [(1, k) for k in range(4)]
        prompts = ["go x", "go y a", "go", "again"]
        for ours, theirs in zip(team, trainer.agents, strict=True):
            assert ours.act(prompts, params, streams) == theirs.act(prompts, params, streams)
            assert torch.equal(ours.values([[0, 1]]), theirs.values([[0, 1]]))

    def test_a_loaded_team_goes_on_learning(self, tmp_path):
        self.train("maac").save_model(tmp_path)
        paths = [str(tmp_path / f"agent_{k}") for k in (0, 1)]
        trainer = self.train(
            "maac", agents=paths, tokenizer=None, critic_model=str(tmp_path / "critic_0")
        )
        assert trainer.updates == 1

    @pytest.mark.parametrize("kind", KINDS)
    def test_tied_embeddings_stay_tied(self, kind, tmp_path):
        """C73."""
        own = {"maac": {"critic_model": tiny_llama(seed=3)}, "shared": {}}
        own["separate"] = {"critics": [tiny_llama(seed=3), tiny_llama(seed=4)]}

        def made(first):
            return make_trainer(
                kind,
                agents=[tiny_llama(seed=first), tiny_llama(seed=first + 1)],
                tokenizer=cf_tokenizer(),
                train_dataset=[{"prompt": "q r"}] * 4,
                **deepcopy(own[kind]),
            )

        trainer = made(0)
        trainer.train()
        trainer.save_model(tmp_path)
        other = made(8)
        other.load_model(tmp_path)
        ids = torch.tensor([[3, 4, 0]])
        for ours, theirs in zip(other.agents, trainer.agents, strict=True):
            assert torch.equal(ours.model(ids).logits, theirs.model(ids).logits)
        other.train()
        for part in (*other.agents, *trainer.agents):
            head, words = part.model.lm_head.weight, part.model.model.embed_tokens.weight
            assert head.data_ptr() == words.data_ptr()
        alone = AutoModelForCausalLM.from_pretrained(tmp_path / "agent_1")
        assert torch.equal(alone(ids).logits, trainer.agents[1].model(ids).logits)

    def test_another_team_is_refused_whole(self, tmp_path):
        self.train("maac").save_model(tmp_path)
        other = make_trainer("separate")
        before = weights(other)
        with pytest.raises(ValueError, match="critics"):
            other.load_model(tmp_path)
        after = weights(other)
        assert all(torch.equal(after[name], before[name]) for name in after)

    def test_an_empty_folder(self, tmp_path):
        with pytest.raises(ValueError, match="no saved team"):
            make_trainer("maac").load_model(tmp_path)

    def test_prompts_are_written_as_before(self, tmp_path):
        template = "{% for m in messages %}{{ m['content'] }} {% endfor %}again"
        words = tokenizer()
        words.chat_template = template
        trainer = self.train(
            "maac",
            tokenizer=words,
            model_config={"chat_template": True, "system_prompt": ["a", "b"]},
        )
        trainer.save_model(tmp_path)
        for k, policy in enumerate(load_team(tmp_path)):
            assert policy.encode("go x") == trainer.agents[k].encode("go x")
            assert policy.encode("go x") == words(f"{'ab'[k]} go x again")["input_ids"]

    def test_float32_is_what_is_saved(self, tmp_path):
        self.train("maac", dtype="bfloat16").save_model(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "agent_0", dtype="auto")
        assert loaded.dtype == torch.float32


class TestLoadingAnotherTeam:
    def test_nothing_is_loaded_from_it(self, tmp_path):
        make_trainer("shared", value_head_hidden_dim=3).save_model(tmp_path)
        other = make_trainer("shared", value_head_hidden_dim=7, seed=1)
        before = [p.clone() for agent in other.agents for p in agent.model.parameters()]
        with pytest.raises(ValueError, match="other weights than this trainer's"):
            other.load_model(tmp_path)
        after = [p for agent in other.agents for p in agent.model.parameters()]
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
