"""The least time that each part of a GRPO step can take on this machine: its arithmetic and its memory traffic.

Rates are measured here and now: a bfloat16 matrix product, and a copy in memory. What is counted is what any trainer
must do: prompts of a group once, no padding, no recomputation, no attention (a few per cent at these lengths).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

SIDE = {"cpu": 2048, "cuda": 8192}  # of the square matrices
COPY_BYTES = 2**29
BYTES = 2  # of a bfloat16


@dataclass(frozen=True)
class Rates:
    """What this machine does at its best, of five tries each."""

    flops: float
    """Floating-point operations a second in a bfloat16 matrix product."""
    bandwidth: float
    """Bytes a second, read and written ones added, of a copy in memory."""


def measure(device: str = "cpu") -> Rates:
    side = SIDE[device]
    matrix = torch.randn(side, side, device=device).bfloat16()
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Rates(
        flops=2 * side**3 / best(lambda: matrix @ matrix),
        bandwidth=2 * COPY_BYTES / best(lambda: target.copy_(source)),
    )


def best(work: Callable[[], Any], tries: int = 5) -> float:
    """Seconds of the quickest try, after one that does not count."""
    seconds_of(work)
    return min(seconds_of(work) for _ in range(tries))


def seconds_of(work: Callable[[], Any]) -> float:
    """From idle to idle, on a GPU too."""
    wait_for_gpu()
    began = time.perf_counter()
    work()
    wait_for_gpu()
    return time.perf_counter() - began


def wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Work:
    """The size of a step for one model."""

    body: int
    """Parameters that every token goes through: all but embedding and head."""
    head: int
    """Parameters of the head."""
    rows: int
    prompt_tokens: int
    """Of all groups, each prompt once."""
    new_tokens: int
    """Of all rows."""

    def floors(self, rates: Rates) -> dict[str, float]:
        """Seconds of `generate`, `update` and `sync`.

        generate: prefill and decoding, the slower of its products and of reading the weights once for each token of a
        row. update: forward (2 operations a parameter and token) and backward (4), the head for new tokens only. sync:
        every weight read and written once.
        """
        new = self.new_tokens * 2 * (self.body + self.head)
        prefill = self.prompt_tokens * 2 * self.body
        weights = BYTES * (self.body + self.head)
        reading = self.new_tokens / self.rows * weights / rates.bandwidth
        update = 6 * (self.body * (self.prompt_tokens + self.new_tokens) + self.head * self.new_tokens)
        return {
            "generate": prefill / rates.flops + max(new / rates.flops, reading),
            "update": update / rates.flops,
            "sync": 2 * weights / rates.bandwidth,
        }


def work_of(model_path: str, rows: int, prompt_tokens: int, new_tokens: int) -> Work:
    """The work of a step with the model in a Hugging Face folder; `prompt_tokens` with each prompt once."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_path))
    return Work(body_of(model), model.get_output_embeddings().weight.numel(), rows, prompt_tokens, new_tokens)


def body_of(model: Any) -> int:
    """Parameters of a transformers model that every token goes through: all but embedding and head."""
    outside = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in outside)
