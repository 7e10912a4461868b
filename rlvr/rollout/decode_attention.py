"""Attention of the hf engine on CPU, in the form that transformers models call.

Shape legend: B rows, H query heads, K key/value heads, S new tokens, T tokens so far, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NAME = "rlvr_decode"


def decode_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Plain products in float32: torch's CPU kernel takes two to three times as long for one new token a row.

    Args:
        query: [B, H, S, D]; `key` and `value` are [B, K, T, D] with H a multiple of K.
        attention_mask: [B, 1, S, T], added to the scores.
        scaling: factor of the scores; None is D ** -0.5.

    Returns:
        [B, S, H, D] in the query's dtype, and None in the place of the attention weights.
    """
    rows, heads, num_new, size = query.shape
    shared = heads // key.shape[1]
    q, k, v, mask = (x.float() for x in (query, key, value, attention_mask))
    if num_new > 1:
        output = functional.scaled_dot_product_attention(q, k, v, mask, scale=scaling, enable_gqa=shared > 1)
    else:
        scores = q.view(rows, -1, shared, size) @ k.transpose(-1, -2)
        scores = scores.mul_(size**-0.5 if scaling is None else scaling).add_(mask)
        output = (torch.softmax(scores, -1) @ v).view(rows, heads, 1, size)
    return output.transpose(1, 2).to(query.dtype), None


def register() -> None:
    """Makes the function known to transformers under `NAME`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, decode_attention)
