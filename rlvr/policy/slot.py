"""One parameter with all that AdamW keeps of it: float32 master weights, summed gradients and moments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from rlvr.config import OptimizerConfig
from rlvr.policy.moments import MIN_QUANTIZED, Moments, PlainMoments, QuantizedMoments, parts
from rlvr.policy.precision import working_dtype
from rlvr.policy.rounding import StochasticRounding

EPS = 1e-8


class Slot:
    """Where master weights, gradients and moments lie, and in which form.

    A bfloat16 parameter's gradient is added to a float32 sum as soon as backward has made it and then freed, so that
    small gradients of later microbatches are not rounded away. A float32 parameter that stays on its device is its own
    master and has its own sum, and so has a float64 one.

    With `offload` everything but the parameter lies in CPU memory, pinned if the parameter is on a GPU. A sum is then
    fetched, added to and sent back on the GPU's stream, in whose order nothing has to wait; only before the CPU itself
    reads or writes that memory, it must wait for the stream.

    Args:
        options: the forms.
        rounding: takes the place of the master weights of a bfloat16 parameter.
    """

    def __init__(self, parameter: nn.Parameter, options: OptimizerConfig, rounding: StochasticRounding | None) -> None:
        self.parameter = parameter
        self.is_rounded = torch.finfo(parameter.dtype).bits < 32
        self.num_steps = 0
        self._rounding = rounding if self.is_rounded else None
        self._home = torch.device("cpu") if options.offload else parameter.device
        self._quantized = options.moments == "int8" and parameter.numel() >= MIN_QUANTIZED
        self.moments: Moments | None = None
        self.master: Tensor | None = None
        if options.offload or (self.is_rounded and rounding is None):
            self.master = self._empty().copy_(parameter.detach())
        self._total: Tensor | None = None
        """The sum of the gradients, at home."""
        self._summing: Tensor | None = None
        """The same on the parameter's device, while backward adds to it."""
        self._buffer: Tensor | None = None
        """Pinned memory for the sum; kept, for pinning takes long."""
        self._sums_itself = not self.is_rounded and self.master is None
        if not self._sums_itself:
            parameter.register_post_accumulate_grad_hook(self._take_gradient)

    @property
    def _dtype(self) -> torch.dtype:
        """Of the arithmetic."""
        return working_dtype(self.parameter.dtype)

    # ---- gradients

    def gradient(self) -> Tensor:
        """The sum on the parameter's device, of its shape; whatever is added to it counts."""
        if self._sums_itself:
            if self.parameter.grad is None:
                self.parameter.grad = torch.zeros_like(self.parameter)
            return self.parameter.grad
        if self._summing is None and self._total is not None:
            self._summing = self._total.to(self.parameter.device, non_blocking=True)
        elif self._summing is None:
            self._summing = torch.zeros_like(self.parameter, dtype=self._dtype)
        return self._summing

    def summed(self) -> Tensor | None:
        """The sum at home, None if there was no gradient; with `offload` it may be on its way still."""
        if self._sums_itself:
            return self.parameter.grad
        if self._summing is not None:
            if self._summing.device == self._home:
                self._total = self._summing
            else:
                self._buffer = self._empty() if self._buffer is None else self._buffer
                self._total = self._buffer.copy_(self._summing, non_blocking=True)
            self._summing = None
        return self._total

    def zero_grad(self) -> None:
        self.parameter.grad = self._total = self._summing = None

    def _take_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:  # else all of it went straight into `gradient`
            if self._summing is None and self._total is None:
                self._summing = parameter.grad.to(self._dtype)
            else:
                self.gradient().add_(parameter.grad)
            parameter.grad = None
        self.summed()

    # ---- the step

    def step(self, learning_rate: float, betas: tuple[float, float], weight_decay: float) -> None:
        """AdamW's step on the summed gradients; none where there was no gradient."""
        total = self.summed()
        if total is None:
            return
        if self.moments is None:
            self.moments = self._new_moments()
        self.num_steps += 1
        gradients = total.reshape(-1)
        weights = (self.parameter.detach() if self.master is None else self.master).view(-1)
        whole = self._rounding is None and isinstance(self.moments, PlainMoments)
        for part in [slice(0, len(weights))] if whole else parts(len(weights)):
            first, second = self.moments.read(part)
            taken = weights[part].to(self._dtype)
            adamw(
                [taken],
                [gradients[part]],
                [first],
                [second],
                [],
                [torch.full((), self.num_steps - 1.0, device=taken.device)],  # it counts this step itself
                lr=learning_rate,
                beta1=betas[0],
                beta2=betas[1],
                weight_decay=weight_decay,
                eps=EPS,
                fused=True,
                amsgrad=False,
                maximize=False,
            )
            self.moments.write(part, first, second)
            if self._rounding is not None:
                weights[part] = self._rounding(taken)
        self._copy_to_parameter()

    def _copy_to_parameter(self) -> None:
        if self.master is not None:
            # Converted on the parameter's device: the CPU would need a second, unpinned copy.
            self.parameter.detach().copy_(self.master.to(self.parameter.device, non_blocking=True))

    def _new_moments(self) -> Moments:
        num_elements = self.parameter.numel()
        if self._quantized:
            return QuantizedMoments(num_elements, self._home)
        return PlainMoments(num_elements, self._dtype, self._home)

    def _empty(self) -> Tensor:
        pinned = self._home.type == "cpu" and self.parameter.is_cuda
        return torch.empty_like(self.parameter, dtype=self._dtype, device=self._home, pin_memory=pinned)

    # ---- files

    def state_dict(self) -> dict[str, Any]:
        """The moments, and the master weights where they say more than the parameter."""
        return {
            "num_steps": self.num_steps,
            "moments": self.moments.tensors() if self.moments else None,
            "master": self.master if self.is_rounded else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` of an equal slot gave; the parameter is set from its master."""
        self.num_steps, self.moments = state["num_steps"], None
        if state["moments"] is not None:
            self.moments = self._new_moments()
            for own, saved in zip(self.moments.tensors(), state["moments"], strict=True):
                own.copy_(saved)
        if self.master is not None:
            self.master.copy_(self.parameter.detach() if state["master"] is None else state["master"])
            self._copy_to_parameter()
