"""Causal attention over the segments of a layout on the CPU, in plain matrix products.

Segments of one shape are computed together, as many as keep their scores in the CPU's cache. Scores are float32, and so
is the gradient by the probabilities; all other products take their factors in the model's precision, as FlashAttention
does (Dao 2023, section 3.1). Backward computes the probabilities of long segments again.

Shape legend: S computed tokens, H query heads, K key/value heads, D head dimension; of a stack N segments of Q queries
and L keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr.policy.layout import Layout, Stack
from rlvr.policy.precision import exact_products, working_dtype

SCORES = 2**20  # at once, of all heads
KEPT_KEYS = 512  # of segments with more, backward computes the probabilities again: they would outgrow all else kept


class CpuAttention(torch.autograd.Function):
    """softmax(scaling * q k^T) v; keeps its inputs, and the probabilities of short segments."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None) -> Tensor:
        """query [1, H, S, D], key and value [1, K, S, D] -> [1, S, H, D], contiguous."""
        ctx.layout, ctx.scaling = layout, query.shape[-1] ** -0.5 if scaling is None else scaling
        num_heads, kept = key.shape[1], []
        output = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        with exact_products(query):
            for stack in _stacks(layout, query):
                q, k = _rows(query, stack.queries, num_heads), _rows(key, stack.keys, num_heads)
                p = _probabilities(q, k, stack, ctx.scaling).to(value.dtype)
                attended = torch.bmm(p, _rows(value, stack.keys, num_heads))
                output[0, stack.queries] = _tokens(attended, stack.queries, num_heads)
                if _is_kept(stack):
                    kept.append(p)
        ctx.save_for_backward(query, key, value, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *probabilities = ctx.saved_tensors
        kept = iter(probabilities)
        num_heads, exact = key.shape[1], working_dtype(query.dtype)
        of_query = torch.empty_like(grad)
        of_key, of_value = (x.new_zeros(x.shape[2], num_heads * x.shape[3], dtype=exact) for x in (key, value))
        with exact_products(query):
            for stack in _stacks(ctx.layout, query):
                q, up = (_rows(x, stack.queries, num_heads) for x in (query, grad.transpose(1, 2)))
                k, v = (_rows(x, stack.keys, num_heads) for x in (key, value))
                p = next(kept) if _is_kept(stack) else _probabilities(q, k, stack, ctx.scaling)
                slope = torch.bmm(up.to(exact), v.to(exact).mT)
                slope = torch._softmax_backward_data(slope, p.to(exact), -1, exact).mul_(ctx.scaling).to(q.dtype)
                of_query[0, stack.queries] = _tokens(torch.bmm(slope, k), stack.queries, num_heads)
                for whole, own in ((of_key, torch.bmm(slope.mT, q)), (of_value, torch.bmm(p.to(up.dtype).mT, up))):
                    rows = _tokens(own.to(exact), stack.keys, num_heads).flatten(0, 1).flatten(1)
                    whole.scatter_add_(0, stack.keys.flatten()[:, None].expand_as(rows), rows)
        heads = (x.to(query.dtype).unflatten(1, (num_heads, -1)) for x in (of_key, of_value))
        return of_query.transpose(1, 2), *(x.transpose(0, 1)[None] for x in heads), None, None


def _is_kept(stack: Stack) -> bool:
    return stack.keys.shape[1] <= KEPT_KEYS


def _stacks(layout: Layout, query: Tensor) -> list[Stack]:
    return [part for stack in layout.stacks for part in stack.split(SCORES // query.shape[1])]


def _rows(heads: Tensor, index: Tensor, num_heads: int) -> Tensor:
    """[1, H, S, D] -> [N * K, H / K * Q, D]: the tokens of each segment, heads that share keys one after the other."""
    tokens: Tensor = heads[0].transpose(0, 1)[index].unflatten(2, (num_heads, -1))
    return tokens.permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)


def _tokens(rows: Tensor, index: Tensor, num_heads: int) -> Tensor:
    """[N * K, H / K * Q, D] -> [N, Q, H, D]."""
    segments: Tensor = rows.unflatten(0, (len(index), num_heads)).unflatten(2, (-1, index.shape[1]))
    return segments.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _probabilities(q: Tensor, k: Tensor, stack: Stack, scaling: float) -> Tensor:
    """[N * K, H / K * Q, L]; query Q - i sees the keys up to L - i."""
    exact, num_queries = working_dtype(q.dtype), stack.queries.shape[1]
    scores = torch.baddbmm(q.new_empty((), dtype=exact), q.to(exact), k.to(exact).mT, beta=0, alpha=scaling)
    own = scores.unflatten(1, (-1, num_queries))[..., -num_queries:]
    own += torch.full((num_queries, num_queries), -torch.inf, dtype=exact).triu_(1)
    return torch.softmax(scores, -1, out=scores)
