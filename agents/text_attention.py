"""The attention critic of a team of language models: each agent's text is read by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import override

from marlogue.agents.critic import Critic
from marlogue.agents.heads import ValueHead
from marlogue.agents.mlp import mlp, uniform_parameter
from marlogue.agents.others import OthersMixer
from marlogue.agents.scoring import Answered, micro_batches

_MEND = (
    "shorten its prompt (max_prompt_tokens) or completion (max_new_tokens), or take a critic with "
    "a longer context"
)


class TeamHistory(NamedTuple):
    """What a team saw, and for Q what it did, and whose value is asked for.

    Attributes:
        texts: N, in the agents' order: the agent's prompt as ids, with its completion (for Q) or
            an empty one (for V); None for an agent that is absent.
        agent: the agent's place in the team; None for the team's value.
    """

    texts: tuple[Answered | None, ...]
    agent: int | None = None


class TextAttention(nn.Module):
    """From one vector per agent to what the value head reads::

        e_i = norm(p_i) + c_i        g_j = norm(q_j) + c_j
        x_i = per head sum over j != i of w_ij LeakyReLU(W_v g_j), w_ij from e_i and g_j
        hidden_i = LeakyReLU(W [e_i, x_i] + b)

    The mixing is that of the critic for numeric observations (Iqbal and Sha 2019, "Actor-Attention-
    Critic for Multi-Agent Reinforcement Learning"); c_i is a learned vector that tells agents
    apart, as the labels of a joint text do; norm is layer normalisation without weights (Ba et al.
    2016), so that the scale of a trunk does not matter.

    Args:
        width: D of the vectors.
        num_agents: N.
        num_heads: H attention heads, which divide D.
        generator: source of the initial weights; None for torch's global generator.
    """

    def __init__(
        self,
        width: int,
        num_agents: int,
        *,
        num_heads: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_agents = num_agents
        self.names = uniform_parameter((num_agents, width), 1.0, generator)
        self.others = OthersMixer(width, num_heads, "full", generator=generator)
        self.merge = mlp([2 * width, width], last_activation=True, generator=generator)

    def forward(self, asking: Tensor, answered: Tensor, own: Tensor, present: Tensor) -> Tensor:
        """hidden [B, N, D].

        Args:
            asking: p, [B, N, D], from which the queries are made: what an agent saw.
            answered: q, [B, N, D], what the others attend to: for Q with the completion.
            own: [B, N, D], p or q: what is known of the agent itself.
            present: [B, N] bool.
        """
        mixed = self.others(self.named(asking), self.named(answered), asking, present, None)
        return self.merge(self.named(own), mixed)

    def weights(self, asking: Tensor, answered: Tensor, present: Tensor) -> Tensor:
        """w [B, H, N, N]: whom each agent attends to; 0 at itself and at absent ones."""
        return self.others.weights(self.named(asking), self.named(answered), asking, present, None)

    def named(self, vectors: Tensor) -> Tensor:
        """norm(v_i) + c_i of vectors [B, N, D]."""
        return F.layer_norm(vectors, vectors.shape[-1:]) + self.names


class TextAttentionCritic(Critic):
    """A critic of a team that never writes a joint text: its trunk reads each agent's text by
    itself, and the vectors at the last tokens attend to each other (see `TextAttention`).

    p_i is the hidden state at the last token of agent i's prompt, q_i that at the last token of
    its completion (V reads no completions, and q = p). With f the value head::

        V_i(h)      = f(hidden_i of e_i, x_i), where x_i is made of the others' prompts
        b_i(h, a_-i) = the same, where x_i is made of the others' prompts and completions
        V(h)        = mean of V_i over the agents that are present
        Q(h, a)     = mean over them of f, with the agent's own completion in e_i as well

    b_i is what agent i's return is expected to be whatever it answers: it knows the others'
    answers and not its own. Time and memory of a joint step go with the number of its texts.

    Args:
        model: a transformers model, as for `Critic`.
        tokenizer: turns text into the ids of this model.
        num_agents: N.
        num_heads: attention heads; they must divide the model's width.
        value_head, value_head_hidden_dim: f, as for `Critic`.
        generator: source of new weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        num_agents: int,
        *,
        num_heads: int = 4,
        value_head: ValueHead | None = None,
        value_head_hidden_dim: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            model,
            tokenizer,
            value_head=value_head,
            value_head_hidden_dim=value_head_hidden_dim,
            generator=generator,
        )
        self.attention = TextAttention(
            self.trunk.width, num_agents, num_heads=num_heads, generator=generator
        ).to(self.device)

    @override
    def parameters(self) -> Iterator[nn.Parameter]:
        """What is trained: the trunk, the attention and the value head."""
        yield from super().parameters()
        yield from self.attention.parameters()

    @override
    def values(self, histories: Sequence[Any]) -> Tensor:
        """Values [B] of B histories, float32; differentiable. A text that occurs more than once
        in the batch goes through the trunk once.

        Args:
            histories: `TeamHistory` objects.

        Raises:
            ValueError: when a history is not one of N agents, the agent asked for is absent, or a
                text is empty, longer than the model's context, or holds an id outside its
                vocabulary.
        """
        teams, rows = self._teams(histories)
        asking, answered, present = self._vectors(teams)
        of_team = [history.agent is None for history in histories]
        found = torch.zeros(len(histories), device=self.device)
        if not all(of_team):
            agent = torch.tensor([history.agent or 0 for history in histories]).to(self.device)
            found = self._heads(asking, answered, asking, present)[rows, agent]
        if any(of_team):
            each = self._heads(asking, answered, answered, present)
            team = torch.where(present, each, 0.0).sum(-1) / present.sum(-1)
            found = torch.where(torch.tensor(of_team).to(self.device), team[rows], found)
        return found

    @torch.no_grad()
    def attention_weights(self, histories: Sequence[TeamHistory]) -> Tensor:
        """w [B, H, N, N], whom each agent attends to in each of B histories; 0 at itself and at
        absent agents. Arguments and errors as for `values`."""
        teams, rows = self._teams(histories)
        return self.attention.weights(*self._vectors(teams))[rows]

    def _heads(self, asking: Tensor, answered: Tensor, own: Tensor, present: Tensor) -> Tensor:
        with torch.autocast(self.device.type, enabled=False):  # as for the value head
            return self.value_head(self.attention(asking, answered, own, present))

    def _teams(
        self, histories: Sequence[TeamHistory]
    ) -> tuple[list[tuple[Answered | None, ...]], Tensor]:
        """Different joint steps, and the one that each history belongs to [B]."""
        numbers: dict[tuple[Answered | None, ...], int] = {}
        N = self.attention.num_agents
        for texts, agent in histories:
            if len(texts) != N or not any(texts):
                raise ValueError(
                    f"texts ({len(texts)}) of a history must be of the critic's {N} agents, of "
                    "whom at least one is present."
                )
            if agent is not None and texts[agent] is None:
                raise ValueError(f"agent ({agent}) must be present to have a value.")
            numbers.setdefault(texts, len(numbers))
        rows = torch.tensor([numbers[history.texts] for history in histories])
        return list(numbers), rows.to(self.device)

    def _vectors(
        self, teams: Sequence[tuple[Answered | None, ...]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """p and q [B, N, D] of B joint steps (zeros for absent agents), and who is present."""
        different = list(dict.fromkeys(text for texts in teams for text in texts if text))
        places = {text: place for place, text in enumerate(different, start=1)}
        prompts, ends = self._encoded(different)
        index = torch.tensor(
            [[0 if text is None else places[text] for text in texts] for texts in teams]
        ).to(self.device)
        asking = prompts[index]
        return asking, asking if ends is prompts else ends[index], index > 0

    def _encoded(self, texts: Sequence[Answered]) -> tuple[Tensor, Tensor]:
        """Hidden states [1 + U, D] at the ends of U prompts and of U completions, after a row of
        zeros; the same object where there are no completions."""
        read = [(*prompt, *completion) for prompt, completion in texts]
        self.trunk.check_readable(read, "an agent's text for the critic", _MEND)
        answers = any(completion for _, completion in texts)
        ends = [len(ids) - 1 for ids in read]
        starts = [len(prompt) - 1 for prompt, _ in texts]
        last = self._hidden_at(read, [starts, ends] if answers else [ends])
        first = last[:, 0]
        if not answers:
            return first, first
        if not self.trunk.is_causal:  # there a prompt's states would know the completion
            first = self._hidden_at([prompt for prompt, _ in texts], [starts])[:, 0]
        return first, last[:, 1]

    def _hidden_at(self, read: Sequence[Sequence[int]], positions: Sequence[list[int]]) -> Tensor:
        """[1 + U, K, D] at K positions of U sequences, after zeros."""
        order: list[int] = []
        parts = [torch.zeros(1, len(positions), self.trunk.width, device=self.device)]
        for rows in micro_batches([len(ids) for ids in read], None, self.device):
            where = torch.tensor([[column[row] for column in positions] for row in rows])
            parts.append(self.trunk.hidden_at([read[row] for row in rows], where).float())
            order += rows
        back = torch.zeros(1 + len(read), dtype=torch.long)
        back[torch.tensor(order) + 1] = torch.arange(1, 1 + len(read))
        return torch.cat(parts)[back.to(self.device)]
