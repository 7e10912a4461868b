"""What passes between `VllmEngine` and the process that holds vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlvr.config import LoraConfig
from rlvr.records import FinishReason

CPU_BLOCK_TOKENS = 32  # smallest cache block that the CPU kernels like; only whole blocks of a prompt are shared
CPU_PREFILL_TOKENS = 4096  # most prompt tokens in one scheduler step on CPU, unless a sequence is longer


@dataclass(frozen=True)
class Settings:
    """What the process needs to start the engine."""

    model_path: str
    revision: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    cache_bytes: int | None
    gpu_memory: float
    sleep: bool
    compile: bool
    lora: LoraConfig
    """With a rank, the engine keeps the weights it loaded and takes adapters."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in a bucket; its dtype is the engine's."""

    name: str
    offset: int
    shape: tuple[int, ...]
    fingerprint: int


@dataclass(frozen=True)
class Bucket:
    """Tensors side by side in memory that both processes see."""

    slots: list[Slot]
    num_bytes: int
    cuda_handle: Any
    """Arguments to rebuild the CUDA tensor; None: the bytes are in the shared memory file."""


@dataclass(frozen=True)
class Sample:
    """One completion as plain lists."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    cached_prompt_tokens: int
    topk_ids: NDArray[np.int32] | None
    topk_logprobs: NDArray[np.float32] | None


def fingerprint(tensor: torch.Tensor) -> int:
    """Sum of a contiguous tensor's bytes, eight at a time (60 times faster than two at a time); wraps round."""
    data = tensor.view(-1).view(torch.uint8)
    whole = len(data) // 8 * 8
    return int(data[:whole].view(torch.int64).sum()) + int(data[whole:].sum())
