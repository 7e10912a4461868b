"""Builds the rollout engine that the options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.config import LoraConfig, ModelConfig, RolloutConfig
from rlvr.rollout.engine import RolloutEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def build_engine(
    options: RolloutConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int,
    policy_model: PreTrainedModel | None = None,
    lora: LoraConfig | None = None,
) -> RolloutEngine:
    """The engine named by `options.engine`, holding the weights of `model`.

    Args:
        options: how to sample.
        model: Hugging Face folder or hub id, and the revision there.
        tokenizer: the model's.
        max_prompt_tokens: longest prompt; with `options.max_new_tokens` it sizes context and cache.
        policy_model: shared by the `hf` engine where its dtype is the rollout's, so that no second copy is held.
        lora: the policy's adapters, which are handed over instead of its weights.

    Raises:
        ConfigError: the engine is not installed.
        ModelError: the engine cannot run this model.
    """
    return ENGINES[options.engine](options, model, tokenizer, max_prompt_tokens, policy_model, lora or LoraConfig())


def _hf(
    options: RolloutConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int,
    policy_model: PreTrainedModel | None,
    lora: LoraConfig,
) -> RolloutEngine:
    import torch
    from transformers import AutoModelForCausalLM

    from rlvr.lora import add_adapters
    from rlvr.rollout.hf_engine import HfEngine

    dtype: torch.dtype = getattr(torch, options.dtype)
    if policy_model is None or policy_model.dtype != dtype:
        device = torch.device("cpu") if policy_model is None else policy_model.device
        policy_model = AutoModelForCausalLM.from_pretrained(model.path, revision=model.revision or "main", dtype=dtype)
        torch.nn.Module.to(policy_model, device)
        add_adapters(policy_model, lora)
    return HfEngine(policy_model, tokenizer, options.max_num_seqs)


def _vllm(
    options: RolloutConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int,
    policy_model: PreTrainedModel | None,
    lora: LoraConfig,
) -> RolloutEngine:
    from rlvr.rollout.vllm_engine import VllmEngine, settings

    return VllmEngine(settings(options, model, max_prompt_tokens, lora), tokenizer)


# Each imports its library only when it is chosen.
ENGINES = {"hf": _hf, "vllm": _vllm}
