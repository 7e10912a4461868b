"""What a rollout engine keeps in memory, known from the model's configuration alone.

Shape legend: B sequences sampled at once, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlvr.config import ModelConfig, RolloutConfig
from rlvr.rollout.vllm_engine import BUCKET_BYTES, cache_bytes_per_token, settings
from rlvr.rollout.vllm_messages import CPU_PREFILL_TOKENS

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

VLLM_LIBRARIES = 480 * 2**20
"""Of the vLLM process on the CPU that the trainer does not share: Python's objects, 430 MiB with a tiny model, and what
only vLLM maps."""

VLLM_ALWAYS_HOLDS = ("weights", "packed head")
"""Also while it sleeps on the CPU."""

# Rows of [B, V] that are alive while a batch of tokens is drawn, in bytes a value. hf: logits as the model gives them,
# as float32 and divided by the temperature, log-probs, probabilities, their float64 sums. vLLM: logits, as float32,
# log-probs, probabilities, exponential noise.
HF_SAMPLER_BYTES = 4 + 4 + 4 + 4 + 8
VLLM_SAMPLER_BYTES = 4 + 4 + 4 + 4


def hf_bytes(config: PretrainedConfig, options: RolloutConfig, longest_prompt: int) -> dict[str, int]:
    """While completions are sampled, beside the weights: name -> bytes.

    Args:
        options: with `max_num_seqs` as the run gives it to the engine.
        longest_prompt: tokens; shorter ones are padded to it.
    """
    rows, tokens = options.max_num_seqs, longest_prompt + options.max_new_tokens
    itemsize: int = getattr(torch, options.dtype).itemsize
    cache = rows * tokens * cache_bytes_per_token(config, options.dtype)
    # The CPU's attention reads one layer as float32; only where the two differ is that a copy.
    copies = 0 if itemsize == 4 else cache * 4 // itemsize // config.num_hidden_layers
    return {
        "key/value cache": cache,
        "one layer of it in float32": copies,
        "sampler": rows * config.vocab_size * (itemsize + HF_SAMPLER_BYTES),
    }


def vllm_bytes(
    model: PreTrainedModel, source: ModelConfig, options: RolloutConfig, longest_prompt: int, adapters: int = 0
) -> dict[str, int]:
    """Of the child process on the CPU, beside its libraries: name -> bytes.

    Args:
        model: of any kind of tensors; only shapes are read.
        options: with `max_num_seqs` as the run gives it to the engine.
        adapters: their parameters, where those are handed over instead of the weights.
    """
    config: Any = model.config
    itemsize: int = getattr(torch, options.dtype).itemsize
    weights = sum(parameter.numel() for parameter in model.parameters()) * itemsize
    head = model.get_output_embeddings().weight.numel() * itemsize
    largest = max(parameter.numel() for parameter in model.parameters()) * itemsize
    return {
        "weights": weights,
        "packed head": head if config.tie_word_embeddings else 0,
        # The bucket, its copy, and the largest tensor as it is loaded and packed anew; or vLLM's slot for adapters.
        "hand-over": 3 * adapters * itemsize if adapters else 2 * max(BUCKET_BYTES, largest) + 2 * largest,
        "key/value cache": settings(options, source, longest_prompt).cache_bytes or 0,
        "prefill": CPU_PREFILL_TOKENS * (3 * config.intermediate_size + 5 * config.hidden_size) * itemsize,
        "sampler": options.max_num_seqs * config.vocab_size * (itemsize + VLLM_SAMPLER_BYTES),
    }
