"""Train and evaluation mode of models, borrowed and given back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
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

    With ``checkpointing``, activations are recomputed in the backward pass where the model has
    that enabled. Transformers asks a layer's ``training`` flag for it, so the flag is set while it
    is asked, and off again while the layer computes.
    """
    with eval_mode(*models), ExitStack() as undo:
        if checkpointing:
            for layer in _checkpointed_layers(models):
                layer.training = True
                undo.callback(layer.register_forward_pre_hook(_enter_layer).remove)
                undo.callback(layer.register_forward_hook(_leave_layer, always_call=True).remove)
        yield


def _checkpointed_layers(models: Iterable[nn.Module]) -> list[nn.Module]:
    modules = (module for model in models for module in model.modules())
    return [module for module in modules if isinstance(module, GradientCheckpointingLayer)]


def _enter_layer(layer: nn.Module, inputs: Any) -> None:
    layer.training = False


def _leave_layer(layer: nn.Module, inputs: Any, output: Any) -> None:
    layer.training = True
