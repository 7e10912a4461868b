"""AdamW over float32 master weights, with gradients summed in float32, clipping and a learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(step: int, peak: float, schedule: Schedule, warmup_steps: int, total_steps: int) -> float:
    """Learning rate of step 0, 1, ...: rises linearly over the warm-up, then stays or falls to 0 at `total_steps`."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[schedule]
    return peak * factor


class MasterAdamW:
    """AdamW (Loshchilov and Hutter 2019) on float32 copies of the parameters.

    A bfloat16 parameter's gradient is added to a float32 sum as soon as backward has made it and then freed, so that
    neither small gradients of later microbatches nor small steps are rounded away. A float32 parameter is its own copy,
    and so is a float64 one.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        betas: tuple[float, float],
        weight_decay: float,
        max_grad_norm: float,
    ) -> None:
        self._max_grad_norm = max_grad_norm
        self._pairs: list[tuple[nn.Parameter, Tensor]] = []
        for parameter in parameters:
            if torch.finfo(parameter.dtype).bits >= 32:
                self._pairs.append((parameter, parameter))
            else:
                self._pairs.append((parameter, parameter.detach().float()))
                parameter.register_post_accumulate_grad_hook(self._take_gradient)
        self._masters = {id(parameter): master for parameter, master in self._pairs}
        masters = list(self._masters.values())
        self._matrices = [m for m in masters if m.ndim >= 2]
        self._vectors = [m for m in masters if m.ndim < 2]
        self._betas, self._weight_decay = betas, weight_decay
        self.reset()

    def reset(self) -> None:
        """Forgets the moments, not the weights."""
        groups: list[dict[str, Any]] = [
            {"params": self._matrices, "weight_decay": self._weight_decay},
            {"params": self._vectors, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(groups, lr=0.0, betas=self._betas, fused=True)

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """The float32 sum of the parameter's gradients, of its shape; whatever is added to it counts."""
        master = self._masters[id(parameter)]
        if master.grad is None:
            master.grad = torch.zeros_like(master)
        return master.grad

    def zero_grad(self) -> None:
        self._adamw.zero_grad()

    def step(self, learning_rate: float) -> tuple[float, bool]:
        """Clips the gradients to the global norm and steps; a gradient that is not finite leaves the weights alone.

        Returns:
            The norm before clipping, and whether a step was taken.
        """
        gradients = [master.grad for master in self._masters.values() if master.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        finite = bool(norm.isfinite())
        if finite:
            torch.nn.utils.clip_grads_with_norm_(self._masters.values(), self._max_grad_norm, norm)
            for group in self._adamw.param_groups:
                group["lr"] = learning_rate
            self._adamw.step()
            self._copy_to_parameters()
        self.zero_grad()
        return float(norm), finite

    def state_dict(self) -> dict[str, Any]:
        """Moments, and the master weights where they are not the parameters themselves."""
        masters = [None if master is parameter else master for parameter, master in self._pairs]
        return {"adamw": self._adamw.state_dict(), "masters": masters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave; parameters of a lower precision are set from their masters."""
        self._adamw.load_state_dict(state["adamw"])
        with torch.no_grad():
            for (_, master), saved in zip(self._pairs, state["masters"], strict=True):
                if saved is not None:
                    master.copy_(saved)
        self._copy_to_parameters()

    def _take_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is None:  # all of it went straight into `gradient`
            return
        master = self._masters[id(parameter)]
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    @torch.no_grad()
    def _copy_to_parameters(self) -> None:
        for parameter, master in self._pairs:
            if master is not parameter:
                parameter.copy_(master)
