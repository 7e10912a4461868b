"""In which precision is computed what the model's own is too coarse for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32; float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def exact_products(values: Tensor) -> Iterator[None]:
    """Lets the CPU multiply float32 copies of bfloat16 numbers by its bfloat16 instructions, summed in float32.

    The products lose nothing, for the copies convert back exactly, and take half the time where the CPU has them.
    """
    if values.is_cuda or values.dtype != torch.bfloat16:
        yield
        return
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
