"""Do both libraries compute the same? One update on the same tokens, gradient by gradient.

The peer trains and its completions are kept. Ours trains with the same weights, and a generation
backend that answers with those completions. Every gradient that reaches an optimiser is compared,
and every weight at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from cases import Case, Variant
from sides import LEARNING_RATE, build_ours, build_peer
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from work import models_for

from marlogue.agents import Generated, LLMPolicy


class Replay:
    """A generation backend that says what it was told: (prompt ids, completion ids) in order."""

    def __init__(self, said: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        self.said: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for prompt, completion in said:
            self.said.setdefault(prompt, []).append(completion)

    def generate(self, prompts: Sequence[Sequence[int]], *_: Any) -> list[Generated]:
        """What was said to each prompt, in order."""
        return [Generated(self.said[tuple(prompt)].pop(0), True) for prompt in prompts]

    def sync(self, model: Any) -> None:
        """There is no copy of the weights here."""


class Gradients:
    """Keeps the gradient of every optimiser step, by model."""

    def __init__(self, models: dict[str, list[Tensor]]) -> None:
        self.owner = {id(p): name for name, parameters in models.items() for p in parameters}
        self.models = models
        self.steps: dict[str, list[list[Tensor]]] = {name: [] for name in models}
        self.handle = register_optimizer_step_pre_hook(self._keep)

    def _keep(self, optimizer: Optimizer, *_: Any) -> None:
        name = self.owner[id(optimizer.param_groups[0]["params"][0])]
        self.steps[name].append(
            [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.models[name]]
        )


def compare(case: Case) -> dict[str, Any]:
    """Largest differences between the two, over one update.

    Returns:
        ``gradient``: largest difference relative to the largest entry of the same gradient;
        ``weight``: largest difference of a weight after the update, in learning rates; counts.
    """
    rollouts: list[Any] = []

    def keep(new: Sequence[Any]) -> dict[str, float]:
        rollouts.extend(new)
        return {}

    peer = build_peer(case, keep)
    agents, _, tokenizer = models_for(case)
    policies = [LLMPolicy(model, tokenizer) for model in agents]
    ours = build_ours(case, Variant(), agents=policies)
    heads = [critic.value_head for critic in peer.critics or peer.agents]
    own_heads = [judge.value_head for judge in ours.critics or ours.agents]
    for head, own in zip(heads, own_heads, strict=True):
        weights = [parameter.detach().clone() for parameter in own.parameters()]
        for parameter, weight in zip(head.parameters(), weights, strict=True):
            parameter.data.copy_(weight)

    peer_gradients = Gradients(_parameters(peer))
    peer.train()
    peer_gradients.handle.remove()
    for index, policy in enumerate(policies):
        policy.backend = Replay([_ids(r) for r in rollouts if r.agent_idx == index])
    our_gradients = Gradients(_parameters(ours))
    ours.train()
    our_gradients.handle.remove()

    worst, count = 0.0, 0
    for name, steps in peer_gradients.steps.items():
        for theirs, own in zip(steps, our_gradients.steps[name], strict=True):
            count += 1
            scale = max(float(g.abs().max()) for g in theirs)
            worst = max(worst, *(_largest(a, b) / scale for a, b in zip(theirs, own, strict=True)))
    moved = max(
        _largest(a, b)
        for name, parameters in peer_gradients.models.items()
        for a, b in zip(parameters, our_gradients.models[name], strict=True)
    )
    return {
        "gradient": worst,
        "weight_in_learning_rates": moved / LEARNING_RATE,
        "gradients": count,
        "samples": len(rollouts),
    }


def _parameters(trainer: Any) -> dict[str, list[Any]]:
    """Parameters of each trained model, trunk first, in an order that both libraries share."""
    result: dict[str, list[Any]] = {}
    for kind in ("agents", "critics"):
        for index, part in enumerate(getattr(trainer, kind)):
            parameters = list(part.model.parameters())
            if part.value_head is not None:
                parameters += list(part.value_head.parameters())
            result[f"{kind}[{index}]"] = parameters
    return result


def _ids(rollout: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ids = rollout.full_input_ids.tolist()
    start, end = rollout.prompt_len, rollout.prompt_len + rollout.response_len
    return tuple(ids[:start]), tuple(ids[start:end])


def _largest(one: Tensor, other: Tensor) -> float:
    return float((one.detach() - other.detach()).abs().max())
