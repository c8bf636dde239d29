"""Train and evaluation mode of models, borrowed and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


@contextmanager
def eval_mode(*models: nn.Module) -> Iterator[None]:
    """Put models in evaluation mode, and afterwards every module of theirs back as it was."""
    before = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def update_mode(*models: nn.Module, checkpointing: bool = False) -> Iterator[None]:
    """Evaluation mode for an update: with dropout, the policy that is scored would not be the one
    that was sampled.

    With ``checkpointing``, layers keep only their input and compute again in the backward pass.
    Transformers' own switch for that works in training mode alone, with the dropout that comes with
    it, so the layers that it would checkpoint are wrapped here instead.
    """
    with eval_mode(*models), ExitStack() as undo:
        if checkpointing:
            for layer in _checkpointable_layers(models):
                undo.callback(_put_back_forward, layer, vars(layer).get("forward"))
                layer.forward = partial(_recomputed, layer.forward)
        yield


def _checkpointable_layers(models: Iterable[nn.Module]) -> list[nn.Module]:
    modules = (module for model in models for module in model.modules())
    return [module for module in modules if isinstance(module, GradientCheckpointingLayer)]


def _put_back_forward(layer: nn.Module, before: Callable[..., Any] | None) -> None:
    del layer.forward  # the class's own shows again
    if before is not None:
        layer.forward = before


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
