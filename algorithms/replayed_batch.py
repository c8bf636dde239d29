"""A saved batch, computed again sample by sample: where did the number go bad?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from marlogue.agents import Answered, Critic, LLMPolicy, update_mode
from marlogue.algorithms.bad_batches import BadBatch
from marlogue.algorithms.bad_numbers import first_bad
from marlogue.algorithms.judges import TrunkTerm
from marlogue.algorithms.losses import actor_loss, value_loss
from marlogue.algorithms.not_finite import bad_weights
from marlogue.algorithms.sample import UNKNOWN, Sample
from marlogue.algorithms.saving import load_critics, load_team

Part = LLMPolicy | Critic


@dataclass(frozen=True)
class Replayed:
    """A sample's part of a step. Numbers that the step does not have are NaN.

    Attributes:
        sample: the sample.
        log_prob: of its completion, computed again (for an actor's step).
        value: computed again for a critic's step, for an actor's as it was predicted.
        loss: its part of the minibatch's loss.
        gradient_norm: of that part.
        first: which of its numbers is not finite first, and what it is; None when all are.
    """

    sample: Sample
    log_prob: float
    value: float
    loss: float
    gradient_norm: float
    first: str | None


def replay(batch: BadBatch, team: Path, device: str = "cpu") -> tuple[list[Replayed], list[str]]:
    """Compute a batch again, each sample by itself.

    Args:
        batch: what was saved.
        team: folder of a team: the batch's own, or another that fits.
        device: where it is computed.

    Returns:
        The samples' numbers, and lines about weights of the whole team that are not finite.

    Raises:
        ValueError: when the team does not fit.
    """
    policies, critics = load_team(team), load_critics(team)
    parts: dict[str, Part] = {f"agent_{k}": policy for k, policy in enumerate(policies)}
    parts |= {f"critic_{k}": critic for k, critic in enumerate(critics)}
    if batch.model not in parts:
        raise ValueError(
            f"team ({team}) must have {batch.model}, whose step was skipped; it holds "
            f"{', '.join(parts)}."
        )
    part = parts[batch.model]
    for module in _modules(part).values():
        module.to(device)
    with update_mode(part.model):
        replayed = list(_rows(batch, part))
    weights = [
        line
        for name, part in parts.items()
        for beside, module in _modules(part).items()
        for line in bad_weights(f"{name}{beside}", module)
    ]
    return replayed, weights


def stored(batch: BadBatch) -> list[Replayed]:
    """What the batch itself says of its samples, with nothing computed again."""
    return [
        Replayed(s, UNKNOWN, s.value, UNKNOWN, UNKNOWN, _fixed(s, batch.histories is None))
        for s in batch.samples
    ]


def _rows(batch: BadBatch, part: Part) -> Iterable[Replayed]:
    count = len(batch.samples)
    compute = _compute(batch, part)
    parameters = [weights for module in _modules(part).values() for weights in module.parameters()]
    for row, sample in enumerate(batch.samples):
        if isinstance(part, LLMPolicy):
            log_prob, loss, where = _acted(batch, part, sample, count, compute)
            value, numbers = sample.value, {where: log_prob}
        else:
            assert batch.histories is not None
            log_prob = UNKNOWN
            with compute():
                values = part.values([batch.histories[row]])
            value = values.item()
            wanted = values.new_tensor([sample.target])
            loss = batch.value_loss_coef * value_loss(values, wanted, count)
            numbers = {"value": value}
        norm = _gradient_norm(loss, parameters)
        numbers |= {"loss": loss.item(), "gradient": norm}
        first = _fixed(sample, isinstance(part, LLMPolicy)) or _first(numbers)
        yield Replayed(sample, log_prob, value, loss.item(), norm, first)


def _acted(
    batch: BadBatch,
    policy: LLMPolicy,
    sample: Sample,
    count: int,
    compute: Callable[[], AbstractContextManager[object]],
) -> tuple[float, Tensor, str]:
    """The log-probability, the part of the loss, and what to call the former."""
    with compute():
        scores = policy.score(
            [Answered(sample.prompt_ids, sample.completion_ids)], temperature=batch.temperature
        )
    advantages = scores.log_probs.new_tensor([sample.advantage])
    loss = actor_loss(scores.log_probs, advantages, count)
    if batch.trunk is not None:
        reads_actions, clip = batch.trunk
        term = TrunkTerm(
            policy,
            reads_actions=reads_actions,
            value_loss_coef=batch.value_loss_coef,
            value_clip_range=clip,
        )
        loss = loss + term.value_loss_coef * term.loss(scores, [sample], count)
    bad = (~torch.isfinite(scores.token_log_probs)).nonzero().flatten().tolist()
    tokens = len(sample.completion_ids)
    where = f"log_prob (token {bad[0] + 1} of {tokens})" if bad else "log_prob"
    return scores.log_probs.item(), loss, where


def _gradient_norm(loss: Tensor, parameters: Sequence[nn.Parameter]) -> float:
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    found: Sequence[Tensor | None] = torch.autograd.grad(loss, trained, allow_unused=True)
    return float(nn.utils.get_total_norm([gradient for gradient in found if gradient is not None]))


def _fixed(sample: Sample, acts: bool) -> str | None:
    """Which of the numbers that were fixed before the step is not finite first."""
    found = first_bad(sample)
    # A critic may predict the values that it learns from in the very same pass.
    if found is None or (not acts and found[0] in ("value", "advantage")):
        return None
    return f"{found[0]} {found[1]}"


def _first(numbers: Mapping[str, float]) -> str | None:
    bad = [(name, value) for name, value in numbers.items() if not math.isfinite(value)]
    return f"{bad[0][0]} {bad[0][1]}" if bad else None


def _modules(part: Part) -> dict[str, nn.Module]:
    """The model, and what is beside it by what is put behind its name."""
    found: dict[str, nn.Module] = {"": part.model}
    for name in ("value_head", "attention"):
        module = getattr(part, name, None)
        if module is not None:
            found[f".{name}"] = module
    return found


def _compute(batch: BadBatch, part: Part) -> Callable[[], AbstractContextManager[object]]:
    if batch.dtype == "float32":
        return nullcontext
    return lambda: torch.autocast(part.device.type, dtype=torch.bfloat16)
