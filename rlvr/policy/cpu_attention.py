"""Causal attention over the segments of a layout on the CPU, in two parts that share one softmax.

Each segment attends to itself, causally; the segments that follow a shared beginning attend to all of it besides, those
of a group together. So no key is copied and no mask is made. The parts are put together by their log-sum-exps, and
backward takes each part with the log-sum-exp of the whole, as FlashAttention's backward does (Dao 2023, section 3.1).

Shape legend: S computed tokens, H query heads, K key/value heads, D head dimension, L queries of a segment.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr.policy.layout import Layout

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class CpuAttention(torch.autograd.Function):
    """In float32 (float64 for such inputs): the CPU's kernel is slower in bfloat16, above all its backward."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None) -> Tensor:
        """query [1, H, S, D], key and value [1, K, S, D] -> [1, H, S, D], of the working precision."""
        q, k, v = in_working_precision(query, key, value)
        output = torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        normalizers = q.new_empty(q.shape[:-1])  # [1, H, S]
        for run in layout.runs:
            attended, sums = flash(*map(run.stack, (q, k, v)), 0.0, True, scale=scaling)
            run.stack(output).copy_(attended)
            run.stack(normalizers).copy_(sums)
        for queries, keys in layout.shared:
            attended, sums = flash(q[:, :, queries], k[:, :, keys], v[:, :, keys], 0.0, False, scale=scaling)
            own, own_sums = output[:, :, queries], normalizers[:, :, queries]
            total = torch.logaddexp(own_sums, sums)
            own.mul_((own_sums - total).exp_()[..., None]).add_(attended * (sums - total).exp_()[..., None])
            own_sums.copy_(total)
        ctx.save_for_backward(query, key, value, output, normalizers)
        ctx.layout, ctx.scaling = layout, scaling
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, normalizers = ctx.saved_tensors
        q, k, v = in_working_precision(query, key, value)
        grads = tuple(torch.empty_like(x) for x in (q, k, v))
        for run in ctx.layout.runs:
            parts = flash_backward(*map(run.stack, (grad, q, k, v, output, normalizers)), 0.0, True, scale=ctx.scaling)
            for whole, part in zip(grads, parts, strict=True):
                run.stack(whole).copy_(part)
        for queries, keys in ctx.layout.shared:
            of = ((grad, queries), (q, queries), (k, keys), (v, keys), (output, queries), (normalizers, queries))
            parts = flash_backward(*(x[:, :, some] for x, some in of), 0.0, False, scale=ctx.scaling)
            for whole, part, some in zip(grads, parts, (queries, keys, keys), strict=True):
                whole[:, :, some].add_(part)
        dtypes = (query.dtype, key.dtype, value.dtype)
        return *(x.to(dtype) for x, dtype in zip(grads, dtypes, strict=True)), None, None


def in_working_precision(*tensors: Tensor) -> list[Tensor]:
    """The tensors as float32; float64 ones as they are."""
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
