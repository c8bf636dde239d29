"""Train and evaluation mode of models, borrowed and given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    that was sampled. With ``checkpointing``, the layers alone are marked as training, which is how
    transformers switches gradient checkpointing on; what is inside them (dropout) is not."""
    with eval_mode(*models):
        if checkpointing:
            for model in models:
                for module in model.modules():
                    if isinstance(module, GradientCheckpointingLayer):
                        module.training = True
        yield
