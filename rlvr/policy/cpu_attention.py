"""Causal attention over the segments of a layout on the CPU, in parts that share one softmax.

Each block of a segment attends to itself, causally, and to all before it in the segment; the segments that follow a
shared beginning attend to all of it besides, those of a group together. So no key is copied and no mask is made. The
parts are put together by their log-sum-exps, and backward takes each part with the log-sum-exp of the whole, as
FlashAttention's backward does (Dao 2023, section 3.1).

Shape legend: S computed tokens, H query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr.policy.layout import Layout
from rlvr.policy.precision import working_dtype

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class CpuAttention(torch.autograd.Function):
    """In float32 (float64 for such inputs): the CPU's kernel is slower in bfloat16, above all its backward.

    What backward keeps has the inputs' precision.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None) -> Tensor:
        """query [1, H, S, D], key and value [1, K, S, D] -> [1, S, H, D], contiguous."""
        exact = working_dtype(query.dtype)
        q, k, v = (x.to(exact) for x in (query, key, value))
        output = torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format)
        normalizers = q.new_empty(q.shape[:-1])  # [1, H, S]
        for part in layout.parts:
            of_queries, of_keys = part.queries.of, part.keys.of
            attended, sums = flash(of_queries(q), of_keys(k), of_keys(v), 0.0, part.causal, scale=scaling)
            own, own_sums = of_queries(output.transpose(1, 2)), of_queries(normalizers)
            if part.causal:
                own.copy_(attended)
                own_sums.copy_(sums)
                continue
            total = torch.logaddexp(own_sums, sums)
            own.mul_((own_sums - total).exp_()[..., None]).add_(attended * (sums - total).exp_()[..., None])
            own_sums.copy_(total)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, normalizers)
        ctx.layout, ctx.scaling = layout, scaling
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, normalizers = ctx.saved_tensors
        exact = working_dtype(query.dtype)
        q, k, v = (x.to(exact) for x in (query, key, value))
        output, grad = (x.transpose(1, 2).to(exact) for x in (output, grad))
        grads = [torch.empty_like(x) for x in (q, k, v)]
        for part in ctx.layout.parts:
            of_queries, of_keys = part.queries.of, part.keys.of
            given = of_queries(grad), of_queries(q), of_keys(k), of_keys(v), of_queries(output), of_queries(normalizers)
            found = flash_backward(*given, 0.0, part.causal, scale=ctx.scaling)
            for whole, of, own in zip(grads, (of_queries, of_keys, of_keys), found, strict=True):
                (of(whole).copy_ if part.causal else of(whole).add_)(own)
        return *(x.to(query.dtype) for x in grads), None, None
