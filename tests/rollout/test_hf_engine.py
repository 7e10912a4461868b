"""What only the transformers engine has: batches of its own, and a module shared with the policy."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, PreTrainedModel, PreTrainedTokenizerBase

from rlvr.errors import ModelError
from rlvr.rollout.engine import Request, Sampling
from rlvr.rollout.hf_engine import HfEngine

SAMPLING = Sampling(max_new_tokens=32)


def test_batch_size_does_not_change_samples(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, requests_: list[Request]
) -> None:
    stops = tuple(range(20, 60))  # many rows finish early and at different steps, so rows move within the batch
    sampling = Sampling(32, stop_token_ids=stops)
    many = [Request(r.token_ids, [100 * i + j for j in range(8)]) for i, r in enumerate(requests_)]
    by_size = [dict(HfEngine(model, tokenizer, size).generate(many, sampling)) for size in (1, 3, 8, 64)]
    tokens = [{i: [c.token_ids for c in group] for i, group in found.items()} for found in by_size]
    assert tokens[0] == tokens[1] == tokens[2] == tokens[3]
    lengths = {len(c.token_ids) for group in by_size[3].values() for c in group}
    assert len(lengths) > 4


def test_a_shared_module_is_left_as_it_was(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, requests_: list[Request]
) -> None:
    engine = HfEngine(model, tokenizer)
    expected = dict(engine.generate(requests_, SAMPLING))
    model.train()
    model.config._attn_implementation = "eager"
    pointers = [p.data_ptr() for p in model.parameters()]
    running = engine.generate(requests_, SAMPLING)
    assert next(running)[1] in expected.values()
    assert model.training
    assert model.config._attn_implementation == "eager"
    running.close()
    engine.load_weights(model.named_parameters(), 1)
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_groups_are_given_as_they_finish(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, requests_: list[Request]
) -> None:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    model.register_forward_hook(count)
    sampling = Sampling(40, stop_token_ids=tuple(range(20, 110)))
    seen = [steps for _ in HfEngine(model, tokenizer).generate(requests_, sampling)]
    assert seen[0] < seen[-1]


def test_sliding_windows_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    config = Gemma3TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=16
    )
    with pytest.raises(ModelError, match=r"full attention only.*sliding_attention.*engine=vllm"):
        HfEngine(AutoModelForCausalLM.from_config(config), tokenizer)


def test_half_precision_samples_the_same_way(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, requests_: list[Request]
) -> None:
    half = HfEngine(model.bfloat16(), tokenizer)
    for _, group in half.generate(requests_, SAMPLING):
        for completion in group:
            assert torch.isfinite(torch.tensor(completion.logprobs)).all()
