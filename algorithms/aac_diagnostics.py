"""What an update of actor-attention-critic tells about itself, for the log.

Functions from tensors to figures: scalar tensors by tag, without a graph. A figure of which nothing
is known (nobody took part, the targets don't vary) is left out. Merge what an update gives and
convert it at once with :func:`floats`: one copy from the device instead of one per number.

B samples, T steps, N agents, M agents that are looked at (N, or a random subset: ``queries``),
A actions (discrete) or size of an action (continuous), H heads. ``...`` is [B] or [B, T]. ``mask``
is True for agents that take part; what stands at the others (even a NaN) counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from marlogue.algorithms.attention_entropies import choices, head_entropies
from marlogue.algorithms.guidance import gradient_cosine, spread

Figures = dict[str, Tensor]
#: With numbers that are known already.
Known = dict[str, Tensor | float]

#: Up to so many agents each has a tag of its own; of more, the smallest and the largest are shown.
MOST_NAMED = 16

#: A continuous action beyond this is at the edge of what is allowed.
SATURATED = 0.97

# Relative to the mean square: below, a variance is what rounding left of zero.
_NO_VARIANCE = 1e-12


def floats(figures: Mapping[str, Tensor | float] | Mapping[str, Tensor]) -> dict[str, float]:
    """All figures as numbers, in order, with one copy per device.

    Args:
        figures: scalar tensors, or numbers that are known already (norms, schedules).
    """
    by_device: dict[torch.device, list[str]] = {}
    for name, value in figures.items():
        if isinstance(value, Tensor):
            by_device.setdefault(value.device, []).append(name)
    known: dict[str, float] = {}
    for names in by_device.values():
        stacked = torch.stack([figures[name].detach().reshape(()).float() for name in names])  # type: ignore[union-attr]
        known.update(zip(names, stacked.tolist(), strict=True))
    return {name: known[name] if name in known else float(figures[name]) for name in figures}


def critic_figures(q: Tensor, targets: Tensor, mask: Tensor | None = None) -> Figures:
    """``critic/``: ``q_mean``, ``q_min``, ``q_max``, the same of ``target``; ``td_error_mean``,
    ``td_error_std`` and ``td_error_abs`` (mean of the absolute value) of ``y - Q``;
    ``explained_variance``, ``1 - Var(y - Q) / Var(y)``, left out where y does not vary.

    Args:
        q: [..., M], values of the taken actions before the step.
        targets: [..., M], y.
        mask: [..., M].
    """
    q, targets = _kept(q, mask), _kept(targets, mask)
    if not q.numel():
        return {}
    errors = targets - q
    figures = {
        **_extent("critic/q", q),
        **_extent("critic/target", targets),
        "critic/td_error_mean": errors.mean(),
        "critic/td_error_std": errors.std(correction=0),
        "critic/td_error_abs": errors.abs().mean(),
    }
    variance = targets.var(correction=0)
    unexplained = errors.var(correction=0)
    if variance > _NO_VARIANCE * targets.square().mean():
        figures["critic/explained_variance"] = 1 - unexplained / variance
    return figures


def entropy_figures(
    entropies: Tensor,
    agents: Sequence[str],
    mask: Tensor | None = None,
    queries: Tensor | None = None,
) -> Figures:
    """``actor/entropy``, the mean over all, and for each agent ``NAME/entropy`` (see
    :func:`by_agent`).

    Args:
        entropies: [..., M] in nats: of discrete policies, or ``- log pi`` of sampled continuous
            actions.
        agents: N names.
        mask: [..., M].
        queries: [..., M] long, who is looked at; None for all in order.
    """
    return by_agent("entropy", entropies, agents, mask, queries)


def choice_figures(
    actions: Tensor, num_actions: int, agents: Sequence[str], mask: Tensor | None = None
) -> Figures:
    """``actor/top_action_share``: the share of an agent's most frequent action in all that it
    took, mean over agents (each counts alike), and for each agent ``NAME/top_action_share``.

    Args:
        actions: [..., N] long, for example a batch that the current policies sampled.
        num_actions: A.
        agents: N names.
        mask: [..., N].
    """
    count = len(agents)
    places = torch.arange(count, device=actions.device) * num_actions + actions.detach()
    counts = torch.bincount(_kept(places, mask), minlength=count * num_actions)
    counts = counts.reshape(count, num_actions)
    totals = counts.sum(-1)
    shares = counts.amax(-1) / totals.clamp(min=1)
    known = totals > 0
    if not known.any():
        return {}
    mean = {"actor/top_action_share": shares[known].mean()}
    return mean | _named("top_action_share", shares, known, agents)


def saturation_figures(
    actions: Tensor, exists: Tensor, agents: Sequence[str], mask: Tensor | None = None
) -> Figures:
    """``actor/saturation``: the share of actions' numbers beyond ``SATURATED``, and for each agent
    ``NAME/saturation``.

    Args:
        actions: [..., N, A] in [-1, 1].
        exists: [N, A] bool, numbers that actions have.
        agents: N names.
        mask: [..., N].
    """
    edge = (actions.detach().abs() > SATURATED) & exists
    shares = edge.sum(-1) / exists.sum(-1).clamp(min=1)
    return by_agent("saturation", shares, agents, mask, None)


def attention_figures(
    weights: Tensor,
    present: Tensor | None = None,
    queries: Tensor | None = None,
    reach: int | None = None,
) -> Figures:
    """``attention/entropy_head_h``: mean entropy of the agents' weights divided by the log of the
    number of others, 1 when an agent attends to all alike and 0 when to one alone;
    ``attention/largest_weight``, mean over agents and heads of the largest weight. Agents without
    a choice are left out; see :func:`attention_entropies.choices`, also for the arguments."""
    rows, others = choices(weights, present, queries, reach)
    if not len(rows):
        return {}
    _, shares = head_entropies(rows, others)
    figures = {f"attention/entropy_head_{head}": x for head, x in enumerate(shares.unbind())}
    return figures | {"attention/largest_weight": rows.amax(-1).mean()}


def priority_figures(priorities: ArrayLike) -> dict[str, float]:
    """``replay/``: ``priority_mean``, ``priority_max`` and ``effective_share``,
    ``(sum p)^2 / (n sum p^2)``: the share of the steps that the draws amount to, 1 when all are
    drawn alike and 1 / n when one alone is.

    Args:
        priorities: [n] of the steps that are held.
    """
    values = np.asarray(priorities, np.float64)
    if not values.size or not values.any():
        return {}
    return {
        "replay/priority_mean": float(values.mean()),
        "replay/priority_max": float(values.max()),
        "replay/effective_share": float(values.mean() ** 2 / np.square(values).mean()),
    }


def episode_figures(
    returns: NDArray[np.float64], length: int, agents: Sequence[str]
) -> dict[str, float]:
    """``team/return`` (the sum over agents), ``team/length``, and ``AGENT/return`` of teams that
    are not too large for it.

    Args:
        returns: [N].
        length: steps.
        agents: N names.
    """
    told = {"team/return": float(returns.sum()), "team/length": float(length)}
    if len(agents) > MOST_NAMED:
        return told
    return told | {f"{a}/return": float(r) for a, r in zip(agents, returns, strict=True)}


def guidance_figures(
    learned: Tensor,
    guided: Tensor,
    mask: Tensor | None = None,
    *,
    values: Tensor | None = None,
    available: Tensor | None = None,
) -> Figures:
    """``guidance/cosine``, whether guidance and learning pull the same way (-1 to 1), and
    ``guidance/spread``, the spread of the values as they came.

    Args:
        learned: [B, N, A], gradient of the learned part by logits (``guidance.logit_gradients``)
            or by continuous actions.
        guided: [B, N, A], that of the guidance.
        mask: [B, N].
        values: [B, N, A], guidance values before they were scaled; None leaves their spread out.
        available: bool, broadcasts to [B, N, A]: actions that exist; None for all.
    """
    figures = {"guidance/cosine": gradient_cosine(learned, guided, mask)}
    if values is not None:
        figures["guidance/spread"] = spread(values, mask, available)
    return figures


def schedule_figures(
    *,
    temperature: Tensor | float | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    importance_exponent: float | None = None,
    guidance_weight: float | None = None,
) -> dict[str, Tensor | float]:
    """Numbers that change over a training, under their tags; None for what is not in use.

    Args:
        temperature: ``actor/temperature``, alpha; a tensor of several is averaged.
        epsilon: ``exploration/epsilon``, probability of a random action.
        noise: ``exploration/noise``, standard deviation of what is added to actions.
        importance_exponent: ``replay/importance_exponent``, beta.
        guidance_weight: ``guidance/weight``, w.
    """
    if isinstance(temperature, Tensor):
        temperature = temperature.detach().mean()
    figures = {
        "actor/temperature": temperature,
        "exploration/epsilon": epsilon,
        "exploration/noise": noise,
        "replay/importance_exponent": importance_exponent,
        "guidance/weight": guidance_weight,
    }
    return {name: value for name, value in figures.items() if value is not None}


def by_agent(
    name: str,
    values: Tensor,
    agents: Sequence[str],
    mask: Tensor | None = None,
    queries: Tensor | None = None,
) -> Figures:
    """``actor/NAME``, the mean over all entries; and the mean over each agent's entries as
    ``AGENT/NAME``, or, of more than ``MOST_NAMED`` agents, the smallest and the largest of these
    means as ``actor/NAME_min`` and ``actor/NAME_max``.

    Args:
        name: what is shown.
        values: [..., M].
        agents: N names.
        mask: [..., M].
        queries: [..., M] long; None when M is N, in order.
    """
    if queries is None:
        queries = torch.arange(len(agents), device=values.device).expand(values.shape)
    kept, whose = _kept(values, mask), _kept(queries, mask)
    if not kept.numel():
        return {}
    counts = torch.bincount(whose, minlength=len(agents))
    sums = kept.new_zeros(len(agents)).index_add_(0, whose, kept)
    means = sums / counts.clamp(min=1)
    return {f"actor/{name}": kept.mean()} | _named(name, means, counts > 0, agents)


def _named(name: str, values: Tensor, known: Tensor, agents: Sequence[str]) -> Figures:
    """Of the agents that are known; ``values`` and ``known`` are [N]."""
    if len(agents) > MOST_NAMED:
        known_values = values[known]
        return {f"actor/{name}_min": known_values.min(), f"actor/{name}_max": known_values.max()}
    entries = zip(agents, values.unbind(), known.tolist(), strict=True)
    return {f"{agent}/{name}": value for agent, value, is_known in entries if is_known}


def _kept(values: Tensor, mask: Tensor | None) -> Tensor:
    """The entries of those that take part, in one dimension."""
    values = values.detach()
    return values.flatten() if mask is None else values[mask]


def _extent(tag: str, values: Tensor) -> Figures:
    low, high = values.aminmax()
    return {f"{tag}_mean": values.mean(), f"{tag}_min": low, f"{tag}_max": high}
