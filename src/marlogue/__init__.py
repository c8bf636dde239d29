"""Marlogue: multi-agent reinforcement learning for teams of language models.

The public names below are looked up when they are first used, so that ``import marlogue`` is quick
and imports neither torch nor transformers.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AACConfig",
    "AACTrainer",
    "BatchRunner",
    "Completion",
    "IACConfig",
    "IACTrainer",
    "LLMPolicy",
    "MAACConfig",
    "MAACTrainer",
    "RewardProcessors",
    "SamplingParams",
    "TextEnv",
    "__version__",
    "agents",
    "algorithms",
    "batched_reward",
    "check_text_env",
    "envs",
    "load_smollm2",
    "tiny_model",
    "wrappers",
]

if TYPE_CHECKING:
    from marlogue import agents, algorithms, envs, wrappers
    from marlogue.agents import Completion, LLMPolicy, SamplingParams, load_smollm2, tiny_model
    from marlogue.algorithms import (
        AACConfig,
        AACTrainer,
        IACConfig,
        IACTrainer,
        MAACConfig,
        MAACTrainer,
    )
    from marlogue.envs import (
        BatchRunner,
        RewardProcessors,
        TextEnv,
        batched_reward,
        check_text_env,
    )
else:
    # Hidden from type checkers: a module with __getattr__ has every name for them, misspelt or not.
    _FOLDERS = ("agents", "algorithms", "envs", "wrappers")
    _HOMES = {
        "AACConfig": "marlogue.algorithms",
        "AACTrainer": "marlogue.algorithms",
        "BatchRunner": "marlogue.envs",
        "Completion": "marlogue.agents",
        "IACConfig": "marlogue.algorithms",
        "IACTrainer": "marlogue.algorithms",
        "LLMPolicy": "marlogue.agents",
        "MAACConfig": "marlogue.algorithms",
        "MAACTrainer": "marlogue.algorithms",
        "RewardProcessors": "marlogue.envs",
        "SamplingParams": "marlogue.agents",
        "TextEnv": "marlogue.envs",
        "batched_reward": "marlogue.envs",
        "check_text_env": "marlogue.envs",
        "load_smollm2": "marlogue.agents",
        "tiny_model": "marlogue.agents",
    }

    def __getattr__(name):
        if name in _FOLDERS:
            return import_module(f"marlogue.{name}")
        if name not in _HOMES:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}",
                name=name,
                obj=sys.modules[__name__],
            )
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
