"""Files that would run code, were they believed: each leaves a marker when it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


class Touch:
    """Leaves a marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def change(file: Path, **changes: Any) -> None:
    """Change a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def make_pickle(folder: Path, marker: Path) -> None:
    """Put a pickle in the place of the weights."""
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Touch(marker)}, folder / "pytorch_model.bin")


def make_code(folder: Path, marker: Path) -> None:
    """Code for a model and a tokenizer, which runs as soon as it is imported."""
    (folder / "own_code.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast\n"
        "class OwnConfig(GPT2Config):\n    model_type = 'own'\n"
        "class OwnModel(GPT2LMHeadModel):\n    config_class = OwnConfig\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )


def make_model_code(folder: Path, marker: Path, **changes: Any) -> None:
    make_code(folder, marker)
    classes = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"}
    change(folder / "config.json", auto_map=classes, **changes)
