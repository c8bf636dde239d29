"""Descent guidance: what is known about the system, mixed into what is learned.

After Yang and Liu 2026, "Descent-Guided Policy Gradient" (arXiv 2602.20078): the state x of a
system ought to follow a reference x_ref, and each agent's action moves it in a known way, so that
every agent gets a signal of its own that the others' actions do not blur.

E environments, B samples, N agents, A actions (discrete) or size of an action (continuous), S size
of the system's state. All values are the higher the better.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marlogue.algorithms.aac_losses import advantages
from marlogue.algorithms.annealing import Anneal

#: Default weight of the guidance. With a reference that may be wrong, let it end at 0: any weight
#: that stays moves the optimum.
GUIDANCE_WEIGHT = Anneal(0.9, 0.2)

#: A spread is taken to be at least this, so that equal values don't explode.
MIN_SPREAD = 1e-6


class Influence(NamedTuple):
    """What a guidance callable may give in place of values: where the system is, where it ought to
    be, and how each action of each agent moves it.

    Attributes:
        state: [S], x.
        reference: [S], x_ref.
        influence: [N, A, S], z_i(a), what each action adds to x (continuous: the derivative of x by
            each number in the action, in the environment's units).
        exact: whether the values are of the exact distance (:func:`distance_values`, discrete
            actions only) in place of its linear part (:func:`influence_values`).
    """

    state: NDArray[Any]
    reference: NDArray[Any]
    influence: NDArray[Any]
    exact: bool = False


def influence_values(state: Tensor, reference: Tensor, influence: Tensor) -> Tensor:
    """``G_i(a) = - <x - x_ref, z_i(a)>``: how far action a takes the state down the slope of
    ``|x - x_ref|^2 / 2``.

    Args:
        state: [B, S], x.
        reference: [B, S] or [S], x_ref.
        influence: [B, N, A, S], z_i(a), what each action adds to x. With continuous actions: the
            derivative of x by each component of the action, and the result is G's gradient.

    Returns:
        [B, N, A].
    """
    return -torch.einsum("bs,bnas->bna", state - reference, influence)


def distance_values(state: Tensor, reference: Tensor, influence: Tensor, actions: Tensor) -> Tensor:
    """``G_i(a) = - |x - z_i(a_i) + z_i(a) - x_ref|^2 / 2``: the exact distance, had agent i taken a
    in place of a_i. :func:`influence_values` is its linear part.

    Args:
        state: [B, S], x, with the taken actions in it.
        reference: [B, S] or [S].
        influence: [B, N, A, S].
        actions: [B, N] (long), a_i.

    Returns:
        [B, N, A].
    """
    away = state - reference
    index = actions[..., None, None].expand(*actions.shape, 1, influence.shape[-1])
    change = influence - influence.gather(2, index)
    start = away.square().sum(-1)[:, None, None]
    slope = torch.einsum("bs,bnas->bna", away, change)
    return -(start + 2 * slope + change.square().sum(-1)) / 2


def guided_values(
    given: Influence, actions: NDArray[np.integer[Any]] | None = None
) -> NDArray[np.float32]:
    """The values [N, A] of all actions that an influence stands for.

    Args:
        given: of one environment.
        actions: [N], the taken actions; None where they are continuous.

    Raises:
        ValueError: when shapes don't fit each other, or the exact distance is asked for with
            continuous actions.
    """
    x, reference, z = (torch.as_tensor(np.asarray(part, np.float64)) for part in given[:3])
    if z.ndim != 3 or x.shape != z.shape[2:] or reference.shape != x.shape:
        raise ValueError(
            f"guidance gave an Influence of shapes state {tuple(x.shape)}, reference "
            f"{tuple(reference.shape)}, influence {tuple(z.shape)}, which must be (S,), (S,) and "
            "(N, A, S)."
        )
    if not given.exact:
        return influence_values(x[None], reference, z[None])[0].float().numpy()
    if actions is None:
        raise ValueError(
            "guidance gave an Influence with exact (True), which must be False for continuous "
            "actions: give the derivative of the state by the action at the taken one."
        )
    taken = torch.as_tensor(actions)[None].long()
    return distance_values(x[None], reference, z[None], taken)[0].float().numpy()


def linear_value(gradients: Tensor, actions: Tensor) -> Tensor:
    """``<dG_i/da_i, a_i>`` [B, N], of ``gradients`` and ``actions`` [B, N, A]: a guidance value of
    continuous actions, whose pathwise gradient is the given one."""
    return (gradients.detach() * actions).sum(-1)


def spread(values: Tensor, mask: Tensor | None = None, available: Tensor | None = None) -> Tensor:
    """Standard deviation of ``values`` [B, N, A] over the actions of one agent (each counts alike),
    root mean square over all agents and samples: a scalar.

    Args:
        values: [B, N, A].
        mask: [B, N] bool, agents that take part; None for all.
        available: bool, broadcasts to [B, N, A]: actions that exist; None for all.
    """
    values = values.detach()
    allowed = torch.ones_like(values, dtype=torch.bool)
    if available is not None:
        allowed = allowed & available
    if mask is not None:
        allowed = allowed & mask[..., None]
    count = allowed.sum(-1, keepdim=True)
    kept = torch.where(allowed, values, 0.0)
    centred = torch.where(allowed, values - kept.sum(-1, keepdim=True) / count.clamp(min=1), 0.0)
    variances = centred.square().sum(-1, keepdim=True) / count.clamp(min=1)
    agents = (count > 0).sum().clamp(min=1)
    return (variances.sum() / agents).sqrt()


def unit_spread(
    values: Tensor, mask: Tensor | None = None, available: Tensor | None = None
) -> Tensor:
    """``values`` [B, N, A] divided by their :func:`spread` (at least ``MIN_SPREAD``): one factor
    for the whole batch, so that a state where every action is as good stays one."""
    return values / spread(values, mask, available).clamp(min=MIN_SPREAD)


def mixed_values(learned: Tensor, guidance: Tensor, weight: float) -> Tensor:
    """``(1 - w) Q_i(a) + w G_i(a)`` [B, N, A], for the actor losses in place of Q.

    The losses subtract ``sum_b pi_i(b) (...)`` themselves (the counterfactual one) or don't change
    with it (the expected one), so this is the mix of both advantages.

    Raises:
        ValueError: when ``weight`` is not between 0 and 1.
    """
    _check_weight(weight)
    return (1 - weight) * learned + weight * guidance


def logit_gradients(log_probs: Tensor, values: Tensor, actions: Tensor | None = None) -> Tensor:
    """Gradient of an actor's objective by its logits, in closed form and without a backward pass.

    Args:
        log_probs: [B, N, A].
        values: [B, N, A] of all actions.
        actions: [B, N] (long) of the sampled (counterfactual) form; None for the expected form.

    Returns:
        [B, N, A]: ``pi(a) (G(a) - sum_b pi(b) G(b))``, the gradient of ``sum_a pi(a) G(a)``; or
        with actions ``(1[a = a_i] - pi(a)) A(a_i)``, that of ``log pi(a_i) A(a_i)``.
    """
    probs = log_probs.detach().exp()
    gains = advantages(values, log_probs)
    if actions is None:
        return probs * gains
    chosen = torch.zeros_like(probs).scatter(-1, actions[..., None], 1.0)
    return (chosen - probs) * gains.gather(-1, actions[..., None])


def gradient_cosine(first: Tensor, second: Tensor, mask: Tensor | None = None) -> Tensor:
    """Cosine of the angle between two gradients [B, N, A] (by logits or continuous actions), a
    scalar over all samples and agents; 0 where one of them is 0.

    It tells whether guidance and learning pull the same way before the networks' parameters are
    shared, at the cost of a few sums; the angle in parameter space also depends on the networks.
    """
    if mask is not None:
        first = torch.where(mask[..., None], first, 0.0)
        second = torch.where(mask[..., None], second, 0.0)
    first, second = first.detach().flatten(), second.detach().flatten()
    scale = first.norm() * second.norm()
    return torch.where(scale > 0, first @ second / scale.clamp(min=1e-30), 0.0)


def checked_guidance(
    given: Any, agents: list[str], num_actions: int, envs: int = 1, first_env: int = 0
) -> NDArray[np.float32]:
    """What a guidance callable gave, as an array.

    Args:
        given: [E, N] advantages of the taken actions, or [E, N, A] values of all actions (with
            continuous actions: gradients); without E for a single environment.
        agents: names, for messages.
        num_actions: A.
        envs: E.
        first_env: number of the first environment, for messages.

    Raises:
        ValueError: when it has another shape or holds what is not finite, naming where.
    """
    values = np.asarray(given, dtype=np.float32)
    shapes = [(envs, len(agents)), (envs, len(agents), num_actions)]
    if envs == 1 and values.shape in [shape[1:] for shape in shapes]:
        values = values[None]
    if values.shape not in shapes:
        raise ValueError(
            f"guidance gave an array of shape {values.shape}, which must be {shapes[0]} "
            f"(advantages of the taken actions) or {shapes[1]} (values of all actions); return one "
            "row for each environment and in it one entry for each agent."
        )
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        env, agent, *action = bad[0].tolist()
        where = f" for action {action[0]}" if action else ""
        raise ValueError(
            f"guidance gave {values[tuple(bad[0])]} for {agents[agent]}{where} in environment "
            f"{first_env + env}, which must be a finite number; give 0 to actions that don't "
            "exist and to agents that left."
        )
    return values


def _check_weight(weight: float) -> None:
    if not 0 <= weight <= 1:
        raise ValueError(f"weight ({weight!r}) of the guidance must be between 0 and 1.")
