"""Causal attention over the segments of a layout, in the form that transformers models call.

Shape legend: S computed tokens, H query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlvr.errors import ModelError
from rlvr.policy.cpu_attention import CpuAttention
from rlvr.policy.layout import Layout
from rlvr.policy.precision import working_dtype

NAME = "rlvr_packed"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Each segment attends to its own keys only, causally; there is no [S, S] mask and no padding.

    Args:
        query: [1, H, S, D]; `key` and `value` are [1, K, S, D] with H a multiple of K.
        attention_mask: unused, the layout says all.
        scaling: factor of the scores; None is D ** -0.5.
        sliding_window: tokens a query sees; segments must not have more keys.
        softcap: cap on the scores; must be None.
        s_aux: attention sinks; must be None.

    Returns:
        [1, S, H, D] and None in the place of the attention weights.

    Raises:
        ModelError: a row is longer than the model's sliding window, or the model's scores have another form.
    """
    if softcap is not None or s_aux is not None:
        raise ModelError("the model's attention has soft-caps or sinks, which packed rows do not support")
    if sliding_window is not None and layout.longest[1] > sliding_window:
        raise ModelError(
            f"rows of {layout.longest[1]} tokens are longer than the model's sliding window of {sliding_window}: "
            "lower data.max_prompt_tokens + rollout.max_new_tokens"
        )
    if query.is_cuda and _flash_takes(query):
        return _flash(query, key, value, layout, scaling), None
    if query.device.type == "cpu" and query.shape[-1] == value.shape[-1]:
        return CpuAttention.apply(query, key, value, layout, scaling), None  # type: ignore[no-untyped-call]
    return _by_shape(query, key, value, layout, scaling), None


def register() -> None:
    """Makes the function known to transformers under `NAME`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)


def _by_shape(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None) -> Tensor:
    """SDPA once for all segments of one shape: many short ones would cost more in calls than in arithmetic."""
    q, k, v = (x[0].to(working_dtype(x.dtype)) for x in (query, key, value))
    outputs = []
    for stack in layout.stacks:
        indices = stack.queries, stack.keys, stack.keys
        rows_q, rows_k, rows_v = (x[:, index].transpose(0, 1) for x, index in zip((q, k, v), indices, strict=True))
        num_queries, num_keys = rows_q.shape[2], rows_k.shape[2]
        seen = None
        if num_queries < num_keys:
            seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).tril(num_keys - num_queries)
        attended = functional.scaled_dot_product_attention(
            rows_q, rows_k, rows_v, seen, is_causal=seen is None, scale=scaling, enable_gqa=len(q) != len(k)
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[layout.unstacked][None].to(query.dtype)


def _flash_takes(query: Tensor) -> bool:
    """What FlashAttention 2 asks for; it refuses the rest with an error."""
    newer = torch.cuda.get_device_capability(query.device) >= (8, 0)
    head_dim = query.shape[-1]
    return newer and query.dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= 256


def _flash(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    most_queries, most_keys = layout.longest
    # (-1, 0) is causal; with fewer queries than keys FlashAttention aligns it at the ends, as the layout says.
    output = varlen_attn(
        q,
        k[layout.key_index],
        v[layout.key_index],
        layout.query_starts,
        layout.key_starts,
        most_queries,
        most_keys,
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    assert isinstance(output, Tensor)
    return output[None]
