"""Numbers to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.logger import KVWriter
from typing_extensions import override


class WandbOutput(KVWriter):
    """Writes numbers to Weights & Biases.

    Args:
        wandb_config: arguments of ``wandb.init``.
        config: the configuration of the run.
        run_id: of the run that goes on; None for a new one. A step that Weights & Biases has
            already is not taken again, so there is one curve.
    """

    def __init__(
        self,
        wandb_config: Mapping[str, Any],
        config: Mapping[str, Any],
        run_id: str | None = None,
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ImportError(
                'wandb_config needs Weights & Biases; install it with pip install "marlogue[wandb]"'
            ) from error
        again = {} if run_id is None else {"id": run_id, "resume": "allow"}
        self._run = wandb.init(config=dict(config), **{**again, **wandb_config})

    @property
    def run_id(self) -> str:
        """The run's name for Weights & Biases."""
        return str(self._run.id)

    @override
    def write(
        self,
        key_values: dict[str, Any],
        key_excluded: dict[str, tuple[str, ...]],
        step: int = 0,
    ) -> None:
        numbers = {k: v for k, v in key_values.items() if isinstance(v, int | float)}
        if numbers:
            self._run.log(numbers, step=step)

    @override
    def close(self) -> None:
        self._run.finish()
