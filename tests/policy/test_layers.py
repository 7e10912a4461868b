"""Norms and gated activations: transformers' own forwards and gradients, with less kept for backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP, Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralMLP, MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from rlvr.policy.layers import RmsNorm, SwiGlu, _is_rms_norm, _is_swiglu, keep_inputs_only

from .examples import tiny_llama

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])


def norm_and_mlp(dtype: torch.dtype) -> list[nn.Module]:
    """Of Llama, with 32 features."""
    config = tiny_llama().config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        norm, mlp = LlamaRMSNorm(32), LlamaMLP(config)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return [norm.to(dtype), mlp.to(dtype)]


def drawn(dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(module: nn.Module, x: Tensor, up: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The module's result, and its gradients by `x` and by each parameter."""
    leaf = x.detach().requires_grad_()
    result = module(leaf)
    return result, list(torch.autograd.grad((result * up).sum(), [leaf, *module.parameters()]))


@DTYPES
@pytest.mark.parametrize("which", [0, 1])
def test_forward_is_the_models_own_bit_for_bit(dtype: torch.dtype, which: int) -> None:
    module, x = norm_and_mlp(dtype)[which], drawn(dtype)
    own = module(x)
    keep_inputs_only(module)
    assert "forward" in vars(module)
    assert module(x).equal(own)


@pytest.mark.parametrize("which", [0, 1])
def test_bfloat16_gradients_are_as_close_to_the_exact_ones_as_the_models_own(which: int) -> None:
    x, up = drawn(torch.bfloat16), drawn(torch.bfloat16, 1)
    module = norm_and_mlp(torch.bfloat16)[which]
    _, own = gradients(module, x, up)
    exact_module = norm_and_mlp(torch.bfloat16)[which].double()
    exact = gradients(exact_module, x.double(), up.double())[1]
    keep_inputs_only(module)
    _, ours = gradients(module, x, up)
    for one, other, right in zip(ours, own, exact, strict=True):
        assert one.dtype == torch.bfloat16
        error, own_error = ((value.double() - right).norm() / right.norm() for value in (one, other))
        assert error < max(1.1 * own_error, 0.004)


def test_gradients_are_those_of_finite_differences() -> None:
    x, weight, gate, up = (
        torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        for seed, shape in enumerate([(2, 3, 8), (8,), (2, 3, 8), (2, 3, 8)])
    )
    assert torch.autograd.gradcheck(lambda x, weight: RmsNorm.apply(x, weight, 1e-3), (x, weight))
    assert torch.autograd.gradcheck(SwiGlu.apply, (gate, up))


def test_a_frozen_norm_gets_no_gradient() -> None:
    norm, x = norm_and_mlp(torch.float32)[0].requires_grad_(False), drawn(torch.float32).requires_grad_()
    keep_inputs_only(norm)
    norm(x).sum().backward()
    assert norm.weight.grad is None
    assert x.grad is not None


def test_norms_and_mlps_of_this_form_are_taken_and_no_others() -> None:
    assert all(map(_is_rms_norm, (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)))
    assert all(map(_is_swiglu, (LlamaMLP, MistralMLP, Qwen2MLP, Qwen3MLP, Gemma2MLP)))
    assert not _is_rms_norm(Gemma2RMSNorm)  # its weight counts from 1
    assert not _is_rms_norm(nn.LayerNorm)
    assert not _is_swiglu(nn.Linear)


def test_an_mlp_with_another_activation_stays() -> None:
    mlp = norm_and_mlp(torch.float32)[1]
    mlp.act_fn = nn.GELU()
    keep_inputs_only(mlp)
    assert "forward" not in vars(mlp)


def kept_bytes(work: Callable[[], object]) -> int:
    """Of the tensors that autograd keeps, each storage once."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        work()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(("which", "most"), [(0, 0.5), (1, 0.85)])
def test_less_is_kept(which: int, most: float) -> None:
    module, x = norm_and_mlp(torch.bfloat16)[which], drawn(torch.bfloat16).requires_grad_()
    # Weights are kept in either case, and are no part of what this is about.
    weights = sum(parameter.untyped_storage().nbytes() for parameter in module.parameters())
    own = kept_bytes(lambda: module(x)) - weights
    keep_inputs_only(module)
    assert kept_bytes(lambda: module(x)) - weights < most * own
