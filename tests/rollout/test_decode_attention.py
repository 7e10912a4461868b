"""The decoder's attention against torch's in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from rlvr.rollout.decode_attention import decode_attention


@given(
    rows=st.integers(1, 3),
    key_heads=st.integers(1, 3),
    shared=st.integers(1, 3),
    num_new=st.sampled_from([1, 4]),
    before=st.integers(0, 5),
    scaling=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 1000),
)
def test_it_is_the_attention_of_torch(
    rows: int, key_heads: int, shared: int, num_new: int, before: int, scaling: float | None, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    tokens = before + num_new
    query = torch.randn(rows, key_heads * shared, num_new, 8, generator=rng)
    key, value = (torch.randn(rows, key_heads, tokens, 8, generator=rng) for _ in range(2))
    hidden = torch.rand(rows, 1, num_new, tokens, generator=rng) < 0.3
    hidden[..., -1] = False
    mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    output, weights = decode_attention(nn.Module(), query, key, value, mask, scaling=scaling)
    assert weights is None
    expected = scaled_dot_product_attention(
        *(x.double() for x in (query, key, value, mask)), scale=scaling, enable_gqa=True
    )
    torch.testing.assert_close(output.double(), expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_new", [1, 2])
def test_bfloat16_goes_in_and_comes_out(num_new: int) -> None:
    query, key = torch.ones(2, 4, num_new, 8, dtype=torch.bfloat16), torch.ones(2, 2, 3, 8, dtype=torch.bfloat16)
    output, _ = decode_attention(nn.Module(), query, key, 2 * key, torch.zeros(2, 1, num_new, 3, dtype=torch.bfloat16))
    assert output.dtype == torch.bfloat16
    assert output.shape == (2, num_new, 4, 8)
    assert (output == 2).all()
