"""``marlogue inspect``: a batch that went bad, computed again from what lies on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from marlogue.algorithms import AACConfig, AACTrainer, Callback
from marlogue.algorithms.bad_batches import BadBatch
from marlogue.algorithms.replayed_batch import replay
from tests.support.command_line import Run
from tests.support.games import Cues
from tests.support.team import make_trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:a step was skipped", "ignore:.*are left out")

KINDS: dict[str, dict[str, Any]] = {
    "maac": {},
    "separate": {},
    "shared": {},
    "attention": {"critic_architecture": "attention", "attention_heads": 2, "credit": "agent"},
    "joint": {"critic_update": "joint"},
}


class Spoil(Callback):
    """At the third item: a reward (or a weight) goes bad."""

    def __init__(self, *, reward: float | None = None, agent: int | None = None) -> None:
        self.reward = reward
        self.agent = agent

    def on_item(self, trainer: Any, samples: Any) -> None:
        if samples[0].item_idx != 2:
            return
        if self.reward is not None:
            samples[1].reward = self.reward
        if self.agent is not None:
            bias = trainer.agents[self.agent].model.transformer.h[0].mlp.c_fc.bias
            bias.data[:3] = torch.nan


def stopped(kind: str, logdir: Path, spoil: Spoil, **settings: Any) -> tuple[Any, Path]:
    """A trainer whose run was stopped by a bad step, and the folder of the batch."""
    trainer = make_trainer(
        kind if kind in ("separate", "shared") else "maac",
        callbacks=[spoil],
        logdir=logdir,
        max_bad_steps=1,
        **KINDS[kind],
        **settings,
    )
    with pytest.raises(FloatingPointError):
        trainer.train()
    (folder,) = (logdir / "bad_batches").iterdir()
    return trainer, folder


def table(out: str) -> list[list[str]]:
    """The cells of the printed rows."""
    lines = out.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("agent "))
    end = lines.index("", start)
    return [line.split() for line in lines[start + 1 : end]]


class TestActors:
    @pytest.mark.parametrize("kind", ["maac", "separate"])
    def test_a_weight_that_is_nan(self, kind: str, here: Path, run: Run) -> None:
        _, folder = stopped(kind, here / "run", Spoil(agent=0))
        ran = run("inspect", folder)
        assert ran.status == 0
        assert f"{folder}: a step of agent_0 was skipped (1 in a row): the log_prob was nan" in (
            ran.out
        )
        rows = table(ran.out)
        assert [row[:2] for row in rows] == [["agent_0", "1"]] * 4
        assert {row[2] for row in rows} == set("0123")
        assert ran.out.count("log_prob (token 1 of") == 4 + 3  # in the table, and three in words
        assert "agent_0: transformer.h.0.mlp.c_fc.bias: 3 of 64 are not finite" in ran.out
        assert "is asked: go" in ran.out

    def test_numbers_are_those_of_the_training(self, tmp_path: Path) -> None:
        """Log-probabilities as the actors score them, parts of the loss and their gradients."""
        trainer, folder = stopped("maac", tmp_path, Spoil(agent=1), agent_learning_rate=0.0)
        batch = BadBatch.load(folder)
        assert batch.model == "agent_1"
        kept = folder / "team" / "agent_1" / "model.safetensors"
        assert kept.exists()
        trainer.agents[1].model.transformer.h[0].mlp.c_fc.bias.data.nan_to_num_(0.0)
        trainer.save_model(tmp_path / "mended")
        rows, bad = replay(batch, tmp_path / "mended")
        assert bad == []
        policy = trainer.agents[1]
        for row in rows:
            s = row.sample
            scores = policy.score([(s.prompt_ids, s.completion_ids)])  # type: ignore[list-item]
            assert row.log_prob == pytest.approx(scores.log_probs.item(), abs=1e-6)
            loss = -scores.log_probs[0] * s.advantage / 4
            assert row.loss == pytest.approx(loss.item(), abs=1e-6)
            policy.model.zero_grad()
            loss.backward()
            squares = sum(p.grad.square().sum() for p in policy.model.parameters())
            assert row.gradient_norm == pytest.approx(float(squares) ** 0.5, rel=1e-4)
            assert row.first is None

    def test_a_value_on_the_trunk(self, here: Path, run: Run) -> None:
        """The sample with the huge reward, and no other."""
        _, folder = stopped("shared", here / "run", Spoil(reward=1e30))
        ran = run("inspect", folder)
        assert "agent_1 was skipped (1 in a row): the value_loss was inf" in ran.out
        rows = table(ran.out)
        assert [row[2] for row in rows if "inf" in row] == ["2"]
        assert "agent_1, item 2: loss inf" in ran.out
        assert "all weights of the team are finite" in ran.out


class TestCritics:
    @pytest.mark.parametrize("kind", ["maac", "separate", "attention", "joint"])
    def test_a_huge_reward(self, kind: str, here: Path, run: Run) -> None:
        _, folder = stopped(kind, here / "run", Spoil(reward=1e30))
        number = 1 if kind == "separate" else 0
        ran = run("inspect", folder)
        assert f"a step of critic_{number} was skipped (1 in a row): the value_loss was" in ran.out
        rows = table(ran.out)
        assert [row[2] for row in rows if row[-2:] == ["loss", "inf"]] == ["2"]
        assert [row[7] for row in rows if row[-2:] == ["loss", "inf"]] == ["1e+30"]
        assert {(row[5], row[8]) for row in rows} == {("-", "-")}  # no part of a critic's step
        values = {float(row[6]) for row in rows}
        assert all(math.isfinite(value) for value in values)

    @pytest.mark.parametrize("kind", ["maac", "separate", "attention", "joint"])
    def test_values_are_those_of_the_critic(self, kind: str, tmp_path: Path) -> None:
        """Read from what was saved of its histories, by critics loaded from disk."""
        _, folder = stopped(kind, tmp_path, Spoil(reward=1e30), critic_learning_rate=0.0)
        rows, bad = replay(BadBatch.load(folder), folder / "team")
        assert bad == []
        for row in rows:
            s = row.sample
            assert row.value == pytest.approx(s.value, abs=1e-5)
            if s.target != 1e30:
                assert row.loss == pytest.approx(
                    0.6 * (s.target - s.value) ** 2 / len(rows), abs=1e-5
                )


def test_a_batch_that_did_not_stop_the_run_has_no_team(here: Path, run: Run) -> None:
    trainer = make_trainer("separate", callbacks=[Spoil(reward=1e30)], logdir=here / "run")
    trainer.train()
    folder = here / "run" / "bad_batches" / "000001_critic_1"
    ran = run("inspect", folder / "batch.json")
    assert "nothing was computed again" in ran.out
    assert "--team" in ran.out
    trainer.save_model(here / "team")
    ran = run("inspect", folder, "--team", here / "team")
    assert "critic_1 was skipped" in ran.out
    assert "nothing was computed again" not in ran.out


def test_what_cannot_be_read_is_one_message(here: Path, run: Run) -> None:
    _, folder = stopped("maac", here / "run", Spoil(reward=1e30))
    (here / "other").mkdir()
    for words, said in (
        ([here / "nowhere"], "does not exist"),
        ([here / "other"], "not one of ours"),
        ([folder, "--team", here / "other"], "holds no saved team"),
        ([], "required: FOLDER"),
    ):
        ran = run("inspect", *words)
        assert ran.status == 2
        assert ran.err.startswith("marlogue inspect: error: ")
        assert said in ran.err
    file = folder / "batch.json"
    file.write_text(file.read_text().replace("1e+30", "2e+30"))
    ran = run("inspect", folder)
    assert ran.status == 2
    assert "damaged" in ran.err


def test_a_team_without_the_model_is_refused(here: Path, run: Run) -> None:
    _, folder = stopped("separate", here / "run", Spoil(reward=1e30))
    other = make_trainer("maac")
    other.save_model(here / "team")
    ran = run("inspect", folder, "--team", here / "team")
    assert ran.status == 2
    assert "critic_1" in ran.err


def test_nothing_in_a_batch_is_code(tmp_path: Path) -> None:
    trainer, folder = stopped("attention", tmp_path, Spoil(reward=1e30))
    for path in folder.rglob("*"):
        if path.is_file():
            assert path.suffix in (".json", ".safetensors", ".jinja"), path
    assert json.loads((folder / "batch.json").read_text())["model"] == "critic_0"
    assert weights(trainer)


class PoisonNetworks(Callback[AACTrainer]):
    """A weight of the critic goes bad after the second update."""

    def on_update(self, trainer: AACTrainer) -> None:
        if trainer.updates == 2:
            weights = next(p for p in trainer.networks.critic.parameters() if p.numel())
            weights.data.view(-1)[0] = torch.nan


def test_a_batch_of_replay(here: Path, run: Run) -> None:
    """Every tensor, and the weight that is NaN, by the name of its network."""
    args = AACConfig(
        total_steps=60, learning_starts=20, batch_size=8, hidden_size=8, actor_hidden_sizes=[8],
        eval_interval=0, verbose=False, train_interval=4, updates_per_train=1,
    )  # fmt: skip
    trainer = AACTrainer(args=args, env=Cues, callbacks=[PoisonNetworks()], logdir=here / "run")
    with pytest.raises(FloatingPointError, match="marlogue inspect"):
        trainer.train()
    ran = run("inspect", here / "run" / "bad_batches" / "000003_critic")
    assert ran.status == 0
    assert "a step of critic was skipped (3 in a row)" in ran.out
    lines = ran.out.splitlines()
    assert next(line for line in lines if line.startswith("rewards")).split()[3] == "0"
    assert "1 of" in next(line for line in lines if line.startswith("critic: "))
    ran = run("inspect", here / "run" / "bad_batches" / "000001_critic")
    assert "saved only with the batch that stops a run" in ran.out
