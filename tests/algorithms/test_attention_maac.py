"""MAAC with a critic that reads each agent's text by itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors.torch import load_file

from marlogue.agents import Answered, Critic, TeamHistory, TextAttentionCritic, tiny_model
from marlogue.algorithms import MAACConfig
from marlogue.algorithms.groups import minibatches
from marlogue.algorithms.streams import CRITIC_SHUFFLE
from tests.algorithms.test_equivalences import assert_close
from tests.algorithms.test_waiting import TakesTurnsEnv
from tests.support.team import (
    VOCABULARY,
    Recorder,
    make_trainer,
    model,
    reward_of,
    rows,
    tokenizer,
    twin,
    weights,
)

CREDITS = pytest.mark.parametrize("credit", ["team", "agent"])
BOTH = pytest.mark.parametrize("critic_type", ["v", "q"])


def attending(**changes):
    return make_trainer("maac", critic_architecture="attention", **changes)


def history_of(sample, critic_type, credit) -> TeamHistory:
    """What the critic is to read of a sample, from its texts alone."""
    encode = tokenizer()
    texts = []
    for prompt, completion in zip(sample.joint.prompts, sample.joint.actions, strict=True):
        assert completion is not None
        said = completion.ids if critic_type == "q" else ()
        texts.append(Answered(tuple(encode(prompt)["input_ids"]), said))
    return TeamHistory(tuple(texts), None if credit == "team" else sample.agent_idx)


@BOTH
@CREDITS
class TestOneUpdate:
    def test_values_targets_and_advantages(self, credit, critic_type):
        recorder = Recorder()
        trainer = attending(
            credit=credit, critic_type=critic_type, num_turns=2, discount=0.9, callbacks=[recorder],
            rollout_buffer_size=8, advantage_normalization=False,
        )  # fmt: skip
        judge = twin(trainer.critics[0])
        trainer.train()
        assert trainer.updates == 1
        samples = [sample for item in recorder.items for sample in item]
        assert len(samples) == 16
        for s in samples:
            value = judge.values([history_of(s, critic_type, credit)]).item()
            assert s.value == pytest.approx(value, abs=1e-5)
            earned = reward_of(*s.joint.completions)[s.agent_idx]
            following = 0.0 if s.next is None else 0.9 * s.next.value
            assert s.target == pytest.approx(earned + following, abs=1e-5)
            assert s.advantage == pytest.approx(s.target - s.value, abs=1e-5)
        own = {s.value for s in samples if s.joint is samples[0].joint}
        assert len(own) == (1 if credit == "team" else 2)

    def test_joint_steps_of_the_critic(self, credit, critic_type):
        """One step per minibatch of joint samples, on every agent's own error or on the mean."""
        recorder = Recorder()
        trainer = attending(
            credit=credit, critic_type=critic_type, critic_update="joint", train_batch_size=2,
            callbacks=[recorder], num_generations=2, train_dataset=rows(2),
        )  # fmt: skip
        judge = twin(trainer.critics[0])
        adamw = torch.optim.AdamW(judge.parameters(), lr=trainer.args.critic_learning_rate)
        trainer.train()
        teams = {}
        for sample in itertools.chain(*recorder.items):
            teams.setdefault(sample.joint, []).append(sample)
        for minibatch in minibatches(list(teams.values()), 2, (0, CRITIC_SHUFFLE, 0, 0)):
            if credit == "team":
                errors = [
                    sum(s.target for s in team) / 2
                    - judge.values([history_of(team[0], critic_type, credit)])
                    for team in minibatch
                ]
            else:
                errors = [
                    s.target - judge.values([history_of(s, critic_type, credit)])
                    for team in minibatch
                    for s in team
                ]
            (0.6 * torch.cat(errors).square().mean()).backward()
            adamw.step()
            adamw.zero_grad()
        assert_close(critic_of(judge), critic_of(trainer.critics[0]))

    @pytest.mark.parametrize("critic_update", ["per_agent", "joint"])
    def test_micro_batches_change_nothing(self, credit, critic_type, critic_update):
        done = []
        for size in (None, 1):
            trainer = attending(
                credit=credit, critic_type=critic_type, critic_update=critic_update,
                micro_batch_size=size, num_turns=2, rollout_buffer_size=8, train_batch_size=4,
            )  # fmt: skip
            done.append(weights(trainer) | attention_of(trainer))
            trainer.train()
            done[-1] = (done[-1], weights(trainer) | attention_of(trainer))
        for _, after in done[1:]:
            assert_close(after, done[0][1], atol=2e-4)
        before, after = done[0]
        moved = [name for name in before if not torch.equal(before[name], after[name])]
        assert {name.split()[0] for name in moved} == {"agent", "critic", "attention"}


def critic_of(critic):
    parts = {"model": critic.model, "head": critic.value_head, "attention": critic.attention}
    return {
        f"{part} {name}": tensor.detach().clone()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }


def attention_of(trainer):
    state = critic_of(trainer.critics[0])
    return {name: tensor for name, tensor in state.items() if name.startswith("attention")}


def test_own_baselines_leave_the_gradient_as_it_is():
    """All joint answers of one token, with their probabilities: sum of p(a) grad log pi_i(a_i)
    (r_i(a) - b_i) is the same for b_i = 0, V_i and b_i(h, a_-i), and another for Q(h, a)."""
    judge = TextAttentionCritic(
        model(3), tokenizer(), 2, num_heads=4, generator=torch.Generator().manual_seed(2)
    )
    with torch.no_grad():
        for parameter in judge.value_head.parameters():
            parameter.mul_(50)
    prompts = ((0, 5), (0, 6))
    agents = [model(1), model(2)]
    with torch.no_grad():
        probs = [
            agent(torch.tensor([prompt])).logits[0, -1, :6].double().softmax(0)
            for agent, prompt in zip(agents, prompts, strict=True)
        ]
    joint = list(itertools.product(range(6), repeat=2))
    p = torch.stack([probs[0][a] * probs[1][b] for a, b in joint])
    reward = torch.tensor([3.0 * (a == 2) - 0.7 * b + a * b / 5 for a, b in joint]).double()

    def gradient(agent, critic_type, asked):
        histories = [
            TeamHistory(
                tuple(
                    Answered(prompt, (word,) if critic_type == "q" else ())
                    for prompt, word in zip(prompts, words, strict=True)
                ),
                asked,
            )
            for words in joint
        ]
        with torch.no_grad():
            baseline = judge.values(histories).double()
        own = torch.tensor([words[agent] for words in joint])
        score = torch.eye(6, dtype=torch.float64)[own] - probs[agent]
        return (p * (reward - baseline)) @ score, (p * reward) @ score

    for agent in (0, 1):
        for critic_type in ("v", "q"):
            found, exact = gradient(agent, critic_type, agent)
            torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)
        found, exact = gradient(agent, "q", None)
        assert (found - exact).abs().max() > 0.01


class TestWhoIsThere:
    @BOTH
    @CREDITS
    def test_who_waits_is_absent(self, credit, critic_type):
        read = []

        class Notes(TextAttentionCritic):
            def values(self, histories):
                read.extend(histories)
                return super().values(histories)

        critic = Notes(model(3), tokenizer(), 2)
        trainer = attending(
            env=TakesTurnsEnv("truncated"), max_steps=1, num_turns=4, credit=credit,
            critic_type=critic_type, critic_model=critic,
        )  # fmt: skip
        trainer.train()
        present = {tuple(text is not None for text in history.texts) for history in read}
        # In turn only one acts; both are bootstrapped from what they saw when all was cut off.
        assert present == {(True, False), (False, True), (True, True)}
        if credit == "agent":
            assert all(history.texts[history.agent] is not None for history in read)


def long_team(architecture, **changes):
    """Four agents with prompts of 20 tokens and a critic whose context is 32."""
    words = ("go", "a", "b", "c")
    made = [tiny_model(VOCABULARY, seed=k, n_embd=16, n_layer=1)[0] for k in range(4)]
    short, own = tiny_model(VOCABULARY, seed=9, n_embd=16, n_layer=1, n_positions=32)
    settings = {"train_dataset": [{"prompt": " ".join(words[k % 4] for k in range(20))}] * 4}
    return make_trainer(
        "maac",
        num_agents=4,
        agents=made,
        tokenizer=tiny_model(VOCABULARY, n_embd=2, n_layer=1)[1],
        critic_model=Critic(short, own),
        reward_func=lambda *texts: [float(len(first.split())) for first in texts[0]],
        external_transition=None,
        critic_architecture=architecture,
        max_new_tokens=2,
        **{**settings, **changes},
    )


class TestPromptsPastTheContext:
    @CREDITS
    @BOTH
    def test_attention_learns_where_the_joint_text_does_not_fit(self, critic_type, credit):
        trainer = long_team("attention", critic_type=critic_type, credit=credit)
        before = attention_of(trainer)
        trainer.train()
        assert trainer.updates == 1
        assert not torch.equal(before["attention names"], attention_of(trainer)["attention names"])

    def test_the_joint_text_is_refused(self):
        with pytest.raises(ValueError, match=r"must fit the model's context of 32.*'attention'"):
            long_team("joint").train()

    def test_an_own_text_that_is_too_long(self):
        with pytest.raises(ValueError, match=r"an agent's text for the critic of 4\d tokens") as e:
            long_team("attention", train_dataset=[{"prompt": "go " * 40}] * 4).train()
        assert "max_prompt_tokens" in str(e.value)

    def test_a_prompt_that_the_agent_cuts_fits(self):
        trainer = long_team(
            "attention", train_dataset=[{"prompt": "go " * 40}] * 4, max_prompt_tokens=30,
            prompt_overflow="truncate",
        )  # fmt: skip
        trainer.train()
        assert trainer.updates == 1


class TestSaving:
    def test_round_trip(self, tmp_path):
        trainer = attending(credit="agent")
        trainer.train()
        trainer.save_model(tmp_path)
        stored = load_file(tmp_path / "critic_0" / "attention.safetensors")
        assert {f"attention {name}" for name in stored} == set(attention_of(trainer))
        again = attending(credit="agent", critic_model=model(8), seed=5)
        again.load_model(tmp_path)
        for name, tensor in (weights(trainer) | attention_of(trainer)).items():
            assert torch.equal((weights(again) | attention_of(again))[name], tensor), name

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"critic_architecture": "joint"}, "attention_heads=4.* has None"),
            ({"attention_heads": 2}, "attention_heads=4.* has 2"),
        ],
    )
    def test_another_critic_is_refused_whole(self, other, message, tmp_path):
        trainer = attending()
        trainer.save_model(tmp_path)
        different = make_trainer("maac", **{"critic_architecture": "attention", **other})
        before = weights(different)
        with pytest.raises(ValueError, match=message):
            different.load_model(tmp_path)
        assert all(torch.equal(before[name], t) for name, t in weights(different).items())

    def test_another_number_of_agents_is_refused(self, tmp_path):
        long_team("attention").save_model(tmp_path)
        smaller = attending(critic_model=TextAttentionCritic(model(3), tokenizer(), 2))
        with pytest.raises(ValueError, match="4 agents, but this trainer has 2"):
            smaller.load_model(tmp_path)


class TestRefusals:
    def test_credit_needs_values_of_agents(self):
        with pytest.raises(ValueError, match=r"credit \('agent'\) needs .* for each agent"):
            MAACConfig(credit="agent")

    def test_a_joint_formatter_writes_what_nobody_reads(self):
        with pytest.raises(ValueError, match="joint_formatter writes a joint text"):
            attending(joint_formatter=lambda prompts, completions: "x")

    def test_a_critic_of_the_other_kind(self):
        critic = TextAttentionCritic(model(3), tokenizer(), 2)
        with pytest.raises(ValueError, match=r"\(a TextAttentionCritic\) reads no joint text"):
            make_trainer("maac", critic_model=critic)

    def test_a_critic_of_another_team(self):
        critic = TextAttentionCritic(model(3), tokenizer(), 3)
        with pytest.raises(ValueError, match=r"num_agents \(2\) must be that of the critic \(3\)"):
            attending(critic_model=critic)
        with pytest.raises(ValueError, match=r"attention_heads \(2\) must be .* \(4\)"):
            attending(critic_model=TextAttentionCritic(model(3), tokenizer(), 2), attention_heads=2)

    def test_heads_that_do_not_divide_the_width(self):
        with pytest.raises(ValueError, match=r"num_heads \(5\) must divide the hidden size \(16\)"):
            attending(attention_heads=5)
