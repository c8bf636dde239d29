"""Actor-attention-critic: a batch with numbers that are not finite changes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from marlogue.algorithms import AACConfig, AACTrainer, Callback
from marlogue.algorithms.aac_bad_batches import BadReplay
from marlogue.algorithms.aac_rows import Preparation
from marlogue.algorithms.aac_update import AACLearner
from tests.algorithms.test_aac_update import B, N, config, made, transitions
from tests.support.games import Cues

pytestmark = pytest.mark.filterwarnings("ignore:a step was skipped")


def learner_of(**changes: Any) -> tuple[AACLearner, Any, Any]:
    args = config(learn_temperature=True, **changes)
    team, networks = made(args)
    guidance = torch.zeros(B, N, 3)
    batch = transitions(team, guidance=guidance)
    return AACLearner(args, networks, Preparation(), seed=5), networks, batch


def weights(networks: Any) -> dict[str, torch.Tensor]:
    """Every number of the networks: fast and slow ones, the level of values, the temperature."""
    found = {
        f"{name} {key}": tensor.clone()
        for name, module in networks.modules().items()
        for key, tensor in module.state_dict().items()
    }
    found["level"] = networks.critic.level.clone()
    found["slow level"] = networks.target_critic.level.clone()
    found["temperature"] = networks.log_temperature.detach().clone()
    return found


def moments(learner: AACLearner) -> dict[str, torch.Tensor]:
    kept = learner.state_tensors()
    return {name: tensor.clone() for name, tensor in kept.items() if "exp_avg" in name}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    """The names of what differs."""
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(
    ("number", "reward"),
    [("target", math.nan), ("target", math.inf), ("loss", 1e30)],
)
def test_a_bad_batch_touches_nothing(number: str, reward: float, before: int) -> None:
    """And the next one is learnt from as if it had not been drawn."""
    here, networks, batch = learner_of()
    twin, others, _ = learner_of()
    for _ in range(before):
        here.update(batch)
        twin.update(batch)
    kept, state = weights(networks), moments(here)
    rewards = batch.rewards.clone()
    rewards[3, 1] = reward
    with pytest.warns(UserWarning, match=f"critic: the {number} is"):
        updated = here.update(batch._replace(rewards=rewards))
    assert updated == ({}, None)
    assert same(weights(networks), kept) == set()
    assert same(moments(here), state) == set()
    for optimizer in (here.actor_steps, here.critic_steps, here.temperature_steps):
        assert all(parameter.grad is None for parameter in optimizer.parameters)
    assert here.skipped.in_a_row == {"critic": 1}
    # Draws go on as ever: give the twin the same ones.
    twin.generator.set_state(here.generator.get_state())
    twin.updates = here.updates
    here.update(batch)
    twin.update(batch)
    assert same(weights(networks), weights(others)) == set()
    assert here.skipped.in_a_row == {}
    assert here.skipped.figures() == {"train/bad_steps": 1.0, "critic/bad_steps": 1.0}


def test_an_absent_agent_may_be_anything() -> None:
    """What stands where nobody is counts for nothing, as ever."""
    here, _, batch = learner_of()
    rewards = batch.rewards.clone()
    rewards[1, 2] = math.nan
    assert here.update(batch._replace(rewards=rewards)).errors is not None


def test_bad_actors_stay_and_the_critic_learns() -> None:
    here, networks, batch = learner_of()
    assert here.update(batch, 1.0).errors is not None
    kept, state = weights(networks), moments(here)
    guidance = torch.zeros(B, N, 3)
    guidance[0, 0, 1] = math.nan
    with pytest.warns(UserWarning, match="actors: the loss is nan"):
        updated = here.update(batch._replace(guidance=guidance), 1.0)
    assert updated.errors is not None
    assert "critic/loss" in updated.figures
    assert "actor/loss" not in updated.figures
    moved = {name.split()[0] for name in same(weights(networks), kept)}
    assert {"critic", "target_critic", "level"} <= moved
    assert not moved & {"actors", "temperature"}
    assert {name.split(".")[0] for name in same(moments(here), state)} == {"critic"}
    assert here.skipped.figures()["actor/bad_steps"] == 1.0


class Poison(Callback[AACTrainer]):
    """A weight of the critic goes bad after the second update."""

    def on_update(self, trainer: AACTrainer) -> None:
        if trainer.updates == 2:
            weights = next(p for p in trainer.networks.critic.parameters() if p.numel())
            weights.data.view(-1)[0] = torch.nan


def trainer_in(logdir: Path | None, **changes: Any) -> AACTrainer:
    args = AACConfig(
        total_steps=60, learning_starts=20, batch_size=8, hidden_size=8, actor_hidden_sizes=[8],
        eval_interval=0, verbose=False, train_interval=4, updates_per_train=1, **changes,
    )  # fmt: skip
    return AACTrainer(args=args, env=Cues, callbacks=[Poison()], logdir=logdir)


@pytest.mark.parametrize("replay", ["uniform", "prioritized"])
def test_a_run_stops_with_its_batch(replay: str, tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, replay=replay)
    with pytest.raises(FloatingPointError, match=r"3 times in a row.*critic.*marlogue inspect"):
        trainer.train()
    assert trainer.updates == 5
    folder = tmp_path / "bad_batches" / "000003_critic"
    batch = BadReplay.load(folder)
    assert batch is not None
    assert batch.about["in_a_row"] == 3
    assert batch.tensors["rewards"].shape == (8, 3)
    lines = batch.report()
    assert any(line.startswith("critic: ") and "1 of" in line for line in lines)
    first = BadReplay.load(tmp_path / "bad_batches" / "000001_critic")
    assert first is not None
    assert first.weights is None


def test_a_run_may_be_told_to_go_on() -> None:
    trainer = trainer_in(None, max_bad_steps=1000)
    trainer.train()
    assert trainer.learner.skipped.in_a_row["critic"] == trainer.updates - 2
