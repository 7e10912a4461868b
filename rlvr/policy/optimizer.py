"""AdamW with gradients summed in float32, clipping and a learning-rate schedule; see `Slot` for what it keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlvr.config import OptimizerConfig
from rlvr.policy.rounding import StochasticRounding
from rlvr.policy.slot import Slot

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(step: int, peak: float, schedule: Schedule, warmup_steps: int, total_steps: int) -> float:
    """Learning rate of step 0, 1, ...: rises linearly over the warm-up, then stays or falls to 0 at `total_steps`."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[schedule]
    return peak * factor


class MasterAdamW:
    """AdamW (Loshchilov and Hutter 2019) on float32 copies of the parameters, or on bfloat16 ones rounded at random.

    Args:
        parameters: on one device.
        state: which copies there are, in which form the moments are kept, and where all that lies.
        seed: of the rounding.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        betas: tuple[float, float],
        weight_decay: float,
        max_grad_norm: float,
        state: OptimizerConfig,
        seed: int = 0,
    ) -> None:
        self._max_grad_norm, self._betas, self._weight_decay = max_grad_norm, betas, weight_decay
        given = list(parameters)
        self._device = given[0].device
        self._rounding = None
        if state.master_weights == "stochastic_rounding":
            self._rounding = StochasticRounding(self._device, seed)
        self._slots = {id(parameter): Slot(parameter, state, self._rounding) for parameter in given}
        self._waits = state.offload and self._device.type == "cuda"

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """The float32 sum of the parameter's gradients, of its shape; whatever is added to it counts."""
        return self._slots[id(parameter)].gradient()

    def zero_grad(self) -> None:
        for slot in self._slots.values():
            slot.zero_grad()

    @torch.no_grad()
    def step(self, learning_rate: float) -> tuple[float, bool]:
        """Clips the gradients to the global norm and steps; a gradient that is not finite leaves the weights alone.

        Returns:
            The norm before clipping, and whether a step was taken.
        """
        gradients = [total for slot in self._slots.values() if (total := slot.summed()) is not None]
        self._wait()
        norm = torch.nn.utils.get_total_norm(gradients)
        finite = bool(norm.isfinite())
        if finite:
            factor = (self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor)
            for slot in self._slots.values():
                decay = self._weight_decay if slot.parameter.ndim >= 2 else 0.0
                slot.step(learning_rate, self._betas, decay)
        self.zero_grad()
        return float(norm), finite

    def state_dict(self) -> dict[str, Any]:
        """Moments, master weights that are not the parameters themselves, and the state of the rounding."""
        rounding = None if self._rounding is None else self._rounding.state()
        return {"slots": [slot.state_dict() for slot in self._slots.values()], "rounding": rounding}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave, in CPU memory; parameters of a lower precision are set from their masters.

        Its forms must be those of this optimizer.
        """
        self._wait()
        for slot, saved in zip(self._slots.values(), state["slots"], strict=True):
            slot.load_state_dict(saved)
        if self._rounding is not None:
            self._rounding.load_state(state["rounding"])

    def _wait(self) -> None:
        """For copies between the GPU and the CPU memory that is read or written next."""
        if self._waits:
            torch.cuda.current_stream(self._device).synchronize()
