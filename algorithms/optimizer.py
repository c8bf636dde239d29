"""One model's optimiser: AdamW, clipping, and a learning rate that follows a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import get_scheduler

from marlogue.algorithms.not_finite import NotFinite

#: From training items seen to the factor of the learning rate.
Schedule = Callable[[int], float]

_RATE = "learning_rate"
# A look at whether weights move reads them twice: once in so many steps costs nothing.
_LOOKED_AT = 64
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def make_schedule(name: str, warmup: int, total: int | None) -> Schedule:
    """A transformers learning-rate schedule as a function of training items.

    Args:
        name: as in ``transformers.get_scheduler``.
        warmup: items over which the factor rises from 0 to 1.
        total: items of the whole run; None when it is not known.

    Raises:
        ValueError: when the schedule needs a known length, or follows something else than time.
    """
    if total is None and not name.startswith("constant"):
        raise ValueError(
            f"lr_scheduler_type ({name!r}) needs a run of known length; set max_steps, or "
            "lr_scheduler_type='constant'."
        )
    # The schedule alone is wanted; the optimiser that transformers asks for holds nothing.
    nobody = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(name, nobody, num_warmup_steps=warmup, num_training_steps=total)
    if not isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR):
        raise ValueError(
            f"lr_scheduler_type ({name!r}) must be a function of time; set for example 'linear', "
            "'cosine' or 'constant_with_warmup'."
        )
    return scheduler.lr_lambdas[0]


class Optimizer:
    """AdamW (torch's defaults; fused, which was measured four times as fast) over one model.

    Args:
        parameters: what is trained.
        learning_rate: before the schedule's factor.
        max_grad_norm: clip the gradient to this norm; None for no clipping.
        weight_decay: AdamW's; torch's default unless given. 0 makes it Adam.

    Attributes:
        unmoved: the latest step that was looked at (the first, then one in 64) left every weight as
            it was, bit for bit, though neither learning rate nor gradient was 0.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        max_grad_norm: float | None = None,
        weight_decay: float = 1e-2,
    ) -> None:
        unique = dict.fromkeys(parameters)  # tied weights appear twice
        self.parameters = [parameter for parameter in unique if parameter.requires_grad]
        self.base_learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        self.unmoved = False
        self._steps = 0
        self.adamw = torch.optim.AdamW(
            self.parameters, lr=learning_rate, weight_decay=weight_decay, fused=True
        )

    @property
    def learning_rate(self) -> float:
        """As of the latest :meth:`set_progress`."""
        return self.adamw.param_groups[0]["lr"]

    def set_progress(self, factor: float) -> None:
        """Set the learning rate to the schedule's factor of the base."""
        for group in self.adamw.param_groups:
            group["lr"] = self.base_learning_rate * factor

    def state_tensors(self) -> dict[str, Tensor]:
        """AdamW's state by ``INDEX.NAME``, the index that of the parameter, and the learning rate
        (an update that was broken off goes on with it)."""
        tensors = {
            f"{index}.{name}": value
            for index, state in self.adamw.state_dict()["state"].items()
            for name, value in state.items()
        }
        return {**tensors, _RATE: torch.tensor(self.learning_rate, dtype=torch.float64)}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`state_tensors` gave.

        Raises:
            ValueError: when it is the state of other parameters.
        """
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key != _RATE:
                index, _, name = key.partition(".")
                state.setdefault(int(index), {})[name] = value
        shapes = {index: part["exp_avg"].shape for index, part in state.items()}
        own = {index: one.shape for index, one in enumerate(self.parameters) if index in shapes}
        if shapes != own:
            raise ValueError(
                f"the saved state is that of an optimiser of other parameters ({len(shapes)}, here "
                f"{len(self.parameters)}); build the trainer as the one that saved it."
            )
        groups = self.adamw.state_dict()["param_groups"]
        self.adamw.load_state_dict({"state": state, "param_groups": groups})
        for group in self.adamw.param_groups:
            group["lr"] = tensors[_RATE].item()

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """While a gradient is accumulated: what has come together is freed when that fails, so that
        nothing of it enters the next step."""
        try:
            yield
        except BaseException:
            self.adamw.zero_grad()
            raise

    def step(self) -> float:
        """Apply and free the accumulated gradient.

        Returns:
            Its norm before clipping.

        Raises:
            NotFinite: when the norm is not finite; weights and optimiser state are then as they
                were.
        """
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        total = nn.utils.get_total_norm(gradients)
        norm = float(total)
        if not math.isfinite(norm):
            self.adamw.zero_grad()
            raise NotFinite("gradient norm", norm)
        if self.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, total)
        before = self._fingerprint() if self._is_looked_at(norm) else None
        self.adamw.step()
        if before is not None:
            self.unmoved = torch.equal(before, self._fingerprint())
        self.adamw.zero_grad()  # to None: the next model's gradients take this memory
        return norm

    def _is_looked_at(self, norm: float) -> bool:
        if self.learning_rate == 0:
            return False
        self._steps += 1
        size = sum(parameter.numel() for parameter in self.parameters)
        # AdamW's eps: below it a step is smaller than the learning rate, and may well be lost.
        return self._steps % _LOOKED_AT == 1 and norm > 1e-8 * math.sqrt(size)

    @torch.no_grad()
    def _fingerprint(self) -> Tensor:
        """[P], sums of the bits of each parameter: the same where nothing has changed."""
        device = self.parameters[0].device
        return torch.stack(
            [
                parameter.view(_BITS[parameter.element_size()]).sum(dtype=torch.int64).to(device)
                for parameter in self.parameters
            ]
        )
