"""Causal attention over packed rows, in the form that transformers models call.

Shape legend: N rows, T tokens of all rows end to end, H query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlvr.errors import ModelError

NAME = "rlvr_packed"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_starts: Tensor,
    longest_row: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Each row attends to itself only, causally; there is no [T, T] mask and no padding.

    Args:
        query: [1, H, T, D]; `key` and `value` are [1, K, T, D] with H a multiple of K.
        attention_mask: unused, the rows say all.
        row_starts: [N + 1] int32: row i is the tokens row_starts[i]:row_starts[i + 1].
        longest_row: its length in tokens.
        scaling: factor of the scores; None is D ** -0.5.
        sliding_window: tokens a query sees; rows must not be longer.
        softcap: cap on the scores; must be None.
        s_aux: attention sinks; must be None.

    Returns:
        [1, T, H, D] and None in the place of the attention weights.

    Raises:
        ModelError: a row is longer than the model's sliding window, or the model's scores have another form.
    """
    if softcap is not None or s_aux is not None:
        raise ModelError("the model's attention has soft-caps or sinks, which packed rows do not support")
    if sliding_window is not None and longest_row > sliding_window:
        raise ModelError(
            f"rows of {longest_row} tokens are longer than the model's sliding window of {sliding_window}: "
            "lower data.max_prompt_tokens + rollout.max_new_tokens"
        )
    if query.is_cuda and query.dtype != torch.float32:
        return _flash(query, key, value, row_starts, longest_row, scaling), None
    return _by_length(query, key, value, row_starts, scaling), None


def register() -> None:
    """Makes the function known to transformers under `NAME`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)


def _by_length(query: Tensor, key: Tensor, value: Tensor, row_starts: Tensor, scaling: float | None) -> Tensor:
    """SDPA once for all rows of one length: many short rows would cost more in calls than in arithmetic."""
    lengths = row_starts.diff()
    order = lengths.argsort(stable=True)
    index = torch.cat([torch.arange(a, b) for a, b in zip(row_starts[order], row_starts[order + 1], strict=True)])
    sizes, counts = (x.tolist() for x in lengths[order].unique_consecutive(return_counts=True))
    parts = [n * length for n, length in zip(counts, sizes, strict=True)]
    # The CPU kernel is slower in bfloat16 than in float32, above all its backward.
    q, k, v = (x[0].float()[:, index].split(parts, 1) for x in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    outputs = []
    for number, (n, length) in enumerate(zip(counts, sizes, strict=True)):
        rows_q, rows_k, rows_v = (x[number].unflatten(1, (n, length)).transpose(0, 1) for x in (q, k, v))
        attended = functional.scaled_dot_product_attention(
            rows_q, rows_k, rows_v, is_causal=True, scale=scaling, enable_gqa=grouped
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[index.argsort()][None].to(query.dtype)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, row_starts: Tensor, longest_row: int, scaling: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    output = varlen_attn(
        q,
        k,
        v,
        row_starts,
        row_starts,
        longest_row,
        longest_row,
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    assert isinstance(output, Tensor)
    return output[None]
