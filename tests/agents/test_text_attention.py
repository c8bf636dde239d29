"""The attention critic of texts against plain loops, one text at a time."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm, leaky_relu

from marlogue.agents import Answered, Critic, TeamHistory, TextAttentionCritic
from tests.support.team import model, tokenizer

N = 4
PROMPTS = ((0, 2, 5), (0, 3), (1, 4, 6, 7), (0, 2, 5))
SAID = ((2,), (3, 4, 9), (5, 6), (7,))


def critic(**changes) -> TextAttentionCritic:
    settings = {"num_agents": N, "num_heads": 4, "value_head_hidden_dim": 8, **changes}
    made = TextAttentionCritic(
        model(3), tokenizer(), generator=torch.Generator().manual_seed(1), **settings
    )
    for parameter in made.value_head.parameters():
        parameter.data.mul_(20)  # values that differ visibly
    return made


def history(agent=None, *, answers=True, absent=(), prompts=PROMPTS, said=SAID) -> TeamHistory:
    texts = [
        None if k in absent else Answered(prompt, completion if answers else ())
        for k, (prompt, completion) in enumerate(zip(prompts, said, strict=True))
    ]
    return TeamHistory(tuple(texts), agent)


def by_hand(judge: TextAttentionCritic, wanted: TeamHistory) -> float:
    """The formulas of the docstring, agent by agent and head by head."""
    att, mix = judge.attention, judge.attention.others
    D, H = judge.trunk.width, mix.num_heads
    d = D // H

    def state(ids):
        hidden = judge.model.transformer(torch.tensor([ids])).last_hidden_state[0, -1]
        return layer_norm(hidden, (D,))

    here = [k for k, text in enumerate(wanted.texts) if text is not None]
    e = {k: state(wanted.texts[k][0]) + att.names[k] for k in here}
    g = {k: state(wanted.texts[k][0] + wanted.texts[k][1]) + att.names[k] for k in here}

    def value(k, own):
        x = []
        for h in range(H):
            part = slice(h * d, (h + 1) * d)
            others = [j for j in here if j != k]
            scores = [(mix.query[part] @ e[k]) @ (mix.key[part] @ g[j]) / d**0.5 for j in others]
            said = [leaky_relu(mix.value[part] @ g[j] + mix.value_bias[part]) for j in others]
            weights = torch.stack(scores).softmax(0) if scores else []
            x.append(sum((w * v for w, v in zip(weights, said, strict=True)), torch.zeros(d)))
        read = torch.cat([own[k], *x])
        merged = leaky_relu(att.merge.weights[0][0] @ read + att.merge.biases[0][0])
        first, _, last = judge.value_head.layers
        return last(torch.tanh(first(merged)))[0]

    if wanted.agent is not None:
        return value(wanted.agent, e).item()
    return (sum(value(k, g) for k in here) / len(here)).item()


@pytest.mark.parametrize("absent", [(), (1,), (0, 1, 3)])
@pytest.mark.parametrize("answers", [True, False])
def test_values_are_those_of_the_formulas(answers, absent):
    judge = critic()
    asked = [None, *(k for k in range(N) if k not in absent)]
    histories = [history(k, answers=answers, absent=absent) for k in asked]
    wanted = [by_hand(judge, one) for one in histories]
    assert judge.values(histories).tolist() == pytest.approx(wanted, abs=1e-5)
    assert len(asked) < 3 or max(wanted) - min(wanted) > 0.05


def test_who_knows_what():
    """b_i changes with every completion but the agent's own, Q with all, V with none."""
    judge = critic()
    for changed in range(N):
        said = tuple((8, 8) if k == changed else words for k, words in enumerate(SAID))
        for agent in (None, *range(N)):
            before, after = judge.values([history(agent), history(agent, said=said)]).tolist()
            assert (abs(before - after) < 1e-6) == (agent == changed), (agent, changed)
            v = [history(agent, answers=False), history(agent, answers=False, said=said)]
            assert len(set(judge.values(v).tolist())) == 1


def test_agents_with_the_same_text_are_told_apart():
    values = critic().values([history(0), history(3)])  # the same prompt, other answers
    assert abs(values[0] - values[1]) > 1e-3


def test_absent_agents_count_for_nothing():
    judge = critic()
    gone = judge.values([history(0, absent=(2,))])
    other = ((0, 2, 5), (0, 3), (7,), (0, 2, 5))
    assert torch.equal(gone, judge.values([history(0, absent=(2,), prompts=other)]))
    assert abs(gone - judge.values([history(0)])).item() > 1e-4


def test_every_text_is_read_once():
    judge = critic()
    read: list[int] = []
    judge.model.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    histories = [history(agent) for agent in (None, *range(N))]
    judge.values(histories)
    assert sum(read) == N
    read.clear()
    judge.values([history(agent, answers=False) for agent in range(N)])
    assert sum(read) == N - 1  # agents 0 and 3 are shown the same


def test_gradients_are_those_of_one_at_a_time():
    histories = [history(agent, absent=absent) for agent in (None, 0) for absent in ((), (1,))]
    together, apart = critic(), critic()
    together.values(histories).square().sum().backward()
    for one in histories:
        apart.values([one]).square().sum().backward()
    some = list(zip(together.parameters(), apart.parameters(), strict=True))
    assert sum(p.grad is not None and p.grad.abs().sum() > 0 for p, _ in some) > 20
    for p, q in some:
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)


def test_attention_weights():
    weights = critic().attention_weights([history(), history(absent=(1,))])
    assert weights.shape == (2, 4, N, N)
    assert weights.diagonal(dim1=-2, dim2=-1).abs().max() == 0
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(4, N))
    assert weights[1, :, :, 1].abs().max() == 0


def test_what_does_not_fit_is_refused():
    judge = critic()
    with pytest.raises(ValueError, match=r"num_heads \(3\) must divide the hidden size \(16\)"):
        critic(num_heads=3)
    with pytest.raises(ValueError, match=r"texts \(3\) of a history must be of the critic's 4"):
        judge.values([TeamHistory(history().texts[:3])])
    with pytest.raises(ValueError, match=r"agent \(1\) must be present"):
        judge.values([history(1, absent=(1,))])
    with pytest.raises(ValueError, match=r"an agent's text for the critic of 300 tokens must fit"):
        judge.values([history(prompts=((0,) * 300, *PROMPTS[1:]), answers=False)])


def test_it_is_a_critic():
    assert isinstance(critic(), Critic)
    own = sum(p.numel() for p in critic().attention.parameters())
    plain = Critic(model(3), tokenizer(), value_head_hidden_dim=8)
    count = sum(p.numel() for p in critic().parameters())
    assert count == own + sum(p.numel() for p in plain.parameters())
