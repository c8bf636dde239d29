"""Models and tokenizers from identifiers or objects, with float32 master weights.

Nothing that comes with a model is run: see :mod:`marlogue.agents.trust`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from marlogue.agents.quiet import progress_bars
from marlogue.agents.smollm2 import smollm2_path
from marlogue.agents.trust import (
    checked_trust,
    mend_of_untrusted,
    trusting_arguments,
    untrusted_code,
)

#: Identifiers that mean a model which comes without a hub.
_OFFLINE_MODELS = {"smollm2": smollm2_path}


def resolve_identifier(name: str) -> str:
    """A model identifier as transformers knows it: a folder or a hub id."""
    offline = _OFFLINE_MODELS.get(name)
    return name if offline is None else str(offline())


def load_causal_lm(
    source: str | Path | PreTrainedModel, model_kwargs: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """A causal language model with float32 weights, in evaluation mode.

    Args:
        source: "smollm2", a folder, a hub id, or a model object (used itself, not copied).
        model_kwargs: arguments of ``from_pretrained``. ``trust_remote_code`` is False unless it is
            among them.

    Raises:
        ValueError: when nothing can be loaded from the identifier (the cause is attached), or only
            by running code.
    """
    return _load(AutoModelForCausalLM, source, model_kwargs)


def load_trunk(
    source: str | Path | PreTrainedModel, model_kwargs: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """The same, without a language-model head where it is loaded from an identifier."""
    return _load(AutoModel, source, model_kwargs)


def load_tokenizer(
    source: str | Path, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of an identifier.

    Args:
        source: as for a model.
        trust_remote_code: whether code that comes with it may be run.

    Raises:
        TypeError: when it is no identifier.
        ValueError: when there is none; the cause is attached.
    """
    if not isinstance(source, str | Path):
        raise TypeError(f"tokenizer identifier ({source!r}) must be a folder or a hub id.")
    try:
        return AutoTokenizer.from_pretrained(
            resolve_identifier(str(source)),
            trust_remote_code=checked_trust(source, trust_remote_code),
        )
    except (OSError, ValueError) as error:
        if untrusted_code(error):
            raise ValueError(mend_of_untrusted(source)) from error
        raise ValueError(
            f"no tokenizer could be loaded for {str(source)!r}; check the name, or pass tokenizer="
        ) from error


def _load(
    auto: Any, source: str | Path | PreTrainedModel, model_kwargs: Mapping[str, Any] | None
) -> PreTrainedModel:
    if isinstance(source, PreTrainedModel):
        model = source
    elif isinstance(source, str | Path):
        name = resolve_identifier(str(source))
        kwargs = trusting_arguments(name, {"dtype": torch.float32, **(model_kwargs or {})})
        try:
            with progress_bars(False):
                model, report = auto.from_pretrained(name, output_loading_info=True, **kwargs)
        except (OSError, ValueError, SafetensorError) as error:
            if untrusted_code(error):
                raise ValueError(mend_of_untrusted(source)) from error
            raise ValueError(
                f"no model could be loaded from {str(source)!r}; check the name or the folder "
                "(the cause is above)."
            ) from error
        if auto is AutoModelForCausalLM and report["missing_keys"]:
            raise ValueError(
                f"{str(source)!r} lacks weights of {type(model).__name__} "
                f"({', '.join(sorted(report['missing_keys'])[:3])}), which would be random; take a "
                "checkpoint of a causal language model."
            )
    else:
        raise TypeError(
            f"model ({type(source).__name__}) must be an identifier or a transformers model."
        )
    return with_float32_weights(model).eval()


def read_weights(
    kind: type[PreTrainedModel], folder: Path, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The weights in a folder that ``save_pretrained`` of a model of this kind wrote.

    Raises:
        OSError, ValueError: when they cannot be read, or only by running code.
    """
    with progress_bars(False):
        model = kind.from_pretrained(folder, **trusting_arguments(folder, {"dtype": dtype}))
    return dict(model.state_dict())


def with_float32_weights(model: PreTrainedModel) -> PreTrainedModel:
    """The same model object, its weights float32 from now on, with a warning if they were not.

    At the learning rates of fine-tuning, half-precision weights don't move: an update of 5e-6 is
    lost in the rounding of a weight of 0.02.
    """
    floating = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if floating - {torch.float32, torch.float64}:
        warnings.warn(
            f"the weights of {type(model).__name__} are {', '.join(map(str, floating))}; they are "
            "trained in float32, since smaller steps than their precision would be lost. For "
            "speed set dtype='bfloat16' in the configuration (autocast).",
            stacklevel=4,
        )
        model = model.float()
    return model
