"""A tiny model's folder, and both engines on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlvr.config import ModelConfig, RolloutConfig
from rlvr.policy.tiny import write_tiny_model
from rlvr.rollout.engine import Request, RolloutEngine
from rlvr.rollout.factory import build_engine

from .reference import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    write_tiny_model(path, seed=3)
    return str(path)


@pytest.fixture(scope="session")
def tokenizer(folder: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def base_model(folder: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture
def model(base_model: PreTrainedModel) -> PreTrainedModel:
    """The policy: a copy that the test may change, sharper than random weights are."""
    changed = copy.deepcopy(base_model)
    with torch.no_grad():
        changed.model.norm.weight.mul_(3)
    return changed


def _vllm_is_installed() -> bool:
    return find_spec("vllm") is not None


@pytest.fixture(scope="session", params=["hf", pytest.param("vllm", marks=pytest.mark.vllm)])
def started_engine(
    request: pytest.FixtureRequest, folder: str, tokenizer: PreTrainedTokenizerBase
) -> Iterator[RolloutEngine]:
    if request.param == "vllm" and not _vllm_is_installed():
        pytest.skip("vLLM is not installed")
    options = RolloutConfig(engine=request.param, dtype="float32", max_new_tokens=MAX_NEW_TOKENS, max_num_seqs=64)
    engine = build_engine(options, ModelConfig(path=folder), tokenizer, MAX_PROMPT_TOKENS)
    yield engine
    engine.close()
    engine.close()  # safe twice


@pytest.fixture
def engine(started_engine: RolloutEngine, model: PreTrainedModel) -> RolloutEngine:
    """The engine, holding the weights of `model` as version 7."""
    started_engine.load_weights(model.named_parameters(), 7)
    return started_engine


@pytest.fixture(scope="session")
def requests_(tokenizer: PreTrainedTokenizerBase) -> list[Request]:
    """Ragged prompts, four samples each."""
    prompts = ["12 + 30 =", "What is 7 times 8? Think first.", "1", "a long one: " + "7 + 8 = 15, " * 10]
    return [Request(tokenizer(prompt).input_ids, [1000 * i + j for j in range(4)]) for i, prompt in enumerate(prompts)]
