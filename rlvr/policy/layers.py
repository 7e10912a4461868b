"""Norms and gated activations that keep little more than their inputs for backward.

What transformers writes as several plain operations makes autograd keep a float32 copy of a norm's input, the result
before its weight and the activated gate: over a third of what a layer of Llama keeps. Here each is one autograd
function with the same forward, and backward computes the rest again from the inputs.

Shape legend: T tokens, D features.
"""

from __future__ import annotations

from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlvr.policy.precision import working_dtype

SIZE = 16  # features of the layers that forms are compared on


def keep_inputs_only(module: nn.Module) -> None:
    """Gives these forwards, in place, to each RMS norm and each SwiGLU of the module that computes the same."""
    from transformers.activations import SiLUActivation

    for part in module.modules():
        kind: Any = type(part)
        if _is_rms_norm(kind):
            part.forward = MethodType(_norm_forward, part)
        elif isinstance(getattr(part, "act_fn", None), nn.SiLU | SiLUActivation) and _is_swiglu(kind):
            part.forward = MethodType(_mlp_forward, part)


class RmsNorm(torch.autograd.Function):
    """weight * x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019); rounded before the weight, as Llama's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """x [..., D], weight [D] -> [..., D]."""
        exact = x.to(working_dtype(x.dtype))
        scale = exact.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (exact * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With n = x * scale and g the gradient by n: d x = scale (g - n mean(g n))."""
        x, weight, scale = ctx.saved_tensors
        exact = working_dtype(x.dtype)
        normed, grad = x.to(exact) * scale, grad.to(exact)
        product = grad * normed
        of_weight = product.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        mean = (product @ weight.to(exact)).div_(x.shape[-1])[..., None]
        of_x = (grad * weight).addcmul_(normed, mean, value=-1).mul_(scale)
        return of_x.to(x.dtype), of_weight, None


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up (Shazeer 2020)."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        """gate, up [..., D] -> [..., D]."""
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return of_gate, functional.silu(gate).mul_(grad)


def _norm_forward(self: Any, x: Tensor) -> Tensor:
    result: Tensor = RmsNorm.apply(x, self.weight, self.variance_epsilon)  # type: ignore[no-untyped-call]
    return result


def _mlp_forward(self: Any, x: Tensor) -> Any:
    return self.down_proj(SwiGlu.apply(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-untyped-call]


@cache
def _is_rms_norm(kind: Any) -> bool:
    """Whether the forward of a class gives, from a weight and an epsilon, what `RmsNorm` gives."""
    weight = nn.Parameter(torch.linspace(0.5, 1.5, SIZE))
    return kind.__name__.endswith("RMSNorm") and _agrees(
        kind, _norm_forward, {"weight": weight, "variance_epsilon": 0.1}
    )


@cache
def _is_swiglu(kind: Any) -> bool:
    """Whether the forward of a class gives what `_mlp_forward` gives with the same projections."""
    with torch.random.fork_rng(devices=[]):  # the run's random numbers stay what they are
        parts = {name: nn.Linear(SIZE, SIZE) for name in ("gate_proj", "up_proj", "down_proj")}
    return _agrees(kind, _mlp_forward, {**parts, "act_fn": nn.SiLU()})


@torch.no_grad()
def _agrees(kind: Any, forward: Any, attributes: dict[str, Any]) -> bool:
    """Whether, on a module of the class with these attributes alone, `forward` gives what its own forward gives."""
    module: Any = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, value in attributes.items():
        setattr(module, name, value)
    x = torch.linspace(-2, 3, 3 * SIZE).view(1, 3, SIZE)
    try:
        own = kind.forward(module, x)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # it reads what these attributes do not hold
        return False
    return isinstance(own, Tensor) and torch.allclose(own, forward(module, x), rtol=1e-5, atol=1e-6)
