"""A run's updates once more: plain code, one sequence at a time, from the formulas alone."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch

from marlogue.algorithms.groups import minibatches
from marlogue.algorithms.streams import CRITIC_SHUFFLE, SHUFFLE
from tests.support.team import KINDS, Recorder, make_trainer, reward_of, rows, twin, weights

COEF = 0.6  # value_loss_coef, by default
DISCOUNT = 0.9
TEMPERATURE = 0.7
KL_COEF = 0.1
CLIP = 0.05


class Replay:
    """Copies of a trainer's models, and the updates of its run on them."""

    def __init__(self, trainer, kind: str, clip: float | None) -> None:
        self.kind, self.args, self.clip = kind, trainer.args, clip
        self.tokenizer = trainer.agents[0].tokenizer
        self.actors = [twin(agent.model) for agent in trainer.agents]
        self.references = [twin(agent.model) for agent in trainer.agents]
        shared = kind == "shared"
        owners = trainer.agents if shared else trainer.critics
        self.critics = self.actors if shared else [twin(c.model) for c in trainer.critics]
        self.heads = [twin(owner.value_head) for owner in owners]
        args = self.args
        self.actor_steps = [
            self.adamw(args.agent_learning_rate, a, *([self.heads[k]] if shared else []))
            for k, a in enumerate(self.actors)
        ]
        self.critic_steps = [
            self.adamw(args.critic_learning_rate, c.transformer, h)
            for c, h in zip(self.critics, self.heads, strict=True)
        ]

    @staticmethod
    def adamw(rate, *modules):
        return torch.optim.AdamW([p for m in modules for p in m.parameters()], lr=rate)

    # -- what models say ----------------------------------------------------------------------

    def token_log_probs(self, model, s):
        ids, start = s.prompt_ids + s.completion_ids, len(s.prompt_ids)
        logits = model(torch.tensor([ids])).logits[0] / TEMPERATURE
        every = logits.log_softmax(-1)
        return torch.stack([every[n - 1, ids[n]] for n in range(start, len(ids))])

    def value(self, s):
        k = 0 if self.kind == "maac" else s.agent_idx
        reads_action = self.args.critic_type == "q"
        ids = s.prompt_ids + (s.completion_ids if reads_action else ())
        if self.kind == "maac":
            (p0, p1), (c0, c1) = s.joint.prompts, s.joint.completions
            text = f"[Agent 0] {p0}\n\n[Agent 1] {p1}"
            if reads_action:
                text += f"\n\n[Joint Action]\n\n[Agent 0 action]\n{c0}\n\n[Agent 1 action]\n{c1}"
            ids = self.tokenizer(text)["input_ids"]
        hidden = self.critics[k].transformer(torch.tensor([ids])).last_hidden_state[0, -1]
        linear = self.heads[k].layers[0]
        return hidden @ linear.weight[0] + linear.bias[0]

    # -- one update ---------------------------------------------------------------------------

    def update(self, number, samples):
        with torch.no_grad():
            self.fix_targets(samples)
        seed = self.args.seed
        if self.args.__dict__.get("critic_update") == "joint":
            self.joint_critic(number, samples)
        for agent in (0, 1):
            for turn in range(self.args.num_turns):
                group = [s for s in samples if (s.agent_idx, s.turn_idx) == (agent, turn)]
                self.fix_advantages(group)
                stream = (seed, SHUFFLE, number, agent, turn)
                for batch in minibatches(group, self.args.train_batch_size, stream):
                    self.step(agent, batch)

    def fix_targets(self, samples):
        self.y, self.v = {}, {}
        place = {(s.item_idx, s.generation_idx, s.agent_idx, s.turn_idx): s for s in samples}
        for s in samples:
            self.v[s] = self.value(s).item()
        for (item, generation, agent, turn), s in place.items():
            target = reward_of(*s.joint.completions)[agent]
            if self.args.reference_kl_enabled:
                ours = self.token_log_probs(self.actors[agent], s)
                d = self.token_log_probs(self.references[agent], s) - ours
                target -= KL_COEF * (d.exp() - d - 1).sum().item()
            following = place.get((item, generation, agent, turn + 1))
            if following is not None:
                target += DISCOUNT * self.v[following]
            self.y[s] = target

    def fix_advantages(self, group):
        delta = [self.y[s] - self.v[s] for s in group]
        if self.args.advantage_normalization and len(delta) > 1:
            mean = sum(delta) / len(delta)
            std = math.sqrt(sum((d - mean) ** 2 for d in delta) / len(delta))
            delta = [(d - mean) / max(std, 1e-6) for d in delta]
        self.advantage = dict(zip(group, delta, strict=True))

    def step(self, agent, batch):
        log_pi = [self.token_log_probs(self.actors[agent], s).sum() for s in batch]
        loss = -sum(p * self.advantage[s] for p, s in zip(log_pi, batch, strict=True)) / len(batch)
        if self.kind == "shared":
            loss = loss + COEF * self.value_loss(batch)
        self.take(self.actor_steps[agent], loss)
        if self.kind != "shared" and self.args.__dict__.get("critic_update") != "joint":
            critic = self.critic_steps[0 if self.kind == "maac" else agent]
            self.take(critic, COEF * self.value_loss(batch))

    def value_loss(self, batch):
        errors = []
        for s in batch:
            v, old, y = self.value(s), self.v[s], self.y[s]
            error = (v - y) ** 2
            if self.clip is not None:
                error = torch.maximum(
                    error, (old + (v - old).clamp(-self.clip, self.clip) - y) ** 2
                )
            errors.append(error)
        return sum(errors) / len(errors)

    def joint_critic(self, number, samples):
        for turn in range(self.args.num_turns):
            teams = defaultdict(list)
            for s in samples:
                if s.turn_idx == turn:
                    teams[s.joint].append(s)
            stream = (self.args.seed, CRITIC_SHUFFLE, number, turn)
            for batch in minibatches(list(teams), self.args.train_batch_size, stream):
                errors = [
                    (self.value(teams[j][0]) - sum(self.y[s] for s in teams[j]) / 2) ** 2
                    for j in batch
                ]
                self.take(self.critic_steps[0], COEF * sum(errors) / len(errors))

    @staticmethod
    def take(optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def weights(self):
        parts = {f"agent {k}": m for k, m in enumerate(self.actors)}
        if self.kind != "shared":
            parts |= {f"critic {k}": m for k, m in enumerate(self.critics)}
        owner = "agent" if self.kind == "shared" else "critic"
        parts |= {f"{owner} {k} head": head for k, head in enumerate(self.heads)}
        return {
            f"{part} {name}": tensor
            for part, module in parts.items()
            for name, tensor in module.state_dict().items()
        }


def check(kind: str, **settings) -> None:
    seen, fields = Recorder(), {}
    trainer = make_trainer(
        kind,
        train_dataset=rows(8),
        discount=DISCOUNT,
        temperature=TEMPERATURE,
        reference_kl_coef=KL_COEF,
        callbacks=[seen],
        metrics_callback=lambda samples: fields.update({s: s for s in samples}) or {},
        **settings,
    )
    before = weights(trainer)
    replay = Replay(trainer, kind, trainer.args.value_clip_range if kind == "shared" else None)
    trainer.train()
    assert len(seen.updates) >= 2  # the optimisers' memory counts too
    for number, samples in enumerate(seen.updates):
        replay.update(number, samples)
        for s in samples:
            assert fields[s].value == pytest.approx(replay.v[s], abs=1e-5)
            assert fields[s].target == pytest.approx(replay.y[s], abs=1e-5)
    after, wanted = weights(trainer), replay.weights()
    assert after.keys() == wanted.keys()
    for name, tensor in after.items():
        ours, theirs = tensor, wanted[name]
        if name.endswith("attn.c_attn.bias"):  # attention ignores the keys' bias: noise alone
            width = len(tensor) // 3
            ours, theirs = (torch.cat([t[:width], t[2 * width :]]) for t in (ours, theirs))
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0, msg=lambda m, n=name: n + m)
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert {name.split()[0] + name.split()[1] for name in moved} >= {"agent0", "agent1"}


ONE_TURN = {"num_generations": 3, "rollout_buffer_size": 12, "train_batch_size": 5}
TWO_TURNS = {"num_turns": 2, "rollout_buffer_size": 10, "train_batch_size": 3}


@pytest.mark.parametrize("shape", [ONE_TURN, TWO_TURNS], ids=["1 turn", "2 turns"])
@pytest.mark.parametrize("critic_type", ["v", "q"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_after_updates(kind, critic_type, shape):
    clip = {"value_clip_range": CLIP} if kind == "shared" else {}
    check(kind, critic_type=critic_type, **shape, **clip)


@pytest.mark.parametrize("shape", [ONE_TURN, TWO_TURNS], ids=["1 turn", "2 turns"])
@pytest.mark.parametrize("critic_type", ["v", "q"])
def test_one_critic_step_per_joint_minibatch(critic_type, shape):
    check("maac", critic_type=critic_type, critic_update="joint", **shape)


@pytest.mark.parametrize("kind", KINDS)
def test_without_normalisation_and_with_a_reference(kind):
    check(kind, advantage_normalization=False, reference_kl_enabled=True, **TWO_TURNS)


@pytest.mark.parametrize("kind", KINDS)
def test_one_minibatch_of_one_answer_each(kind):
    check(kind, rollout_buffer_size=4)


def test_shared_model_without_clipping():
    check("shared", value_clip_range=None, **TWO_TURNS)
