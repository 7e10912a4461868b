"""Adapters in both engines: they alone are handed over, replace those before, and give the policy's log-probs."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from rlvr.config import LoraConfig, ModelConfig, RolloutConfig
from rlvr.errors import HandoverError
from rlvr.lora import add_adapters, without_adapters
from rlvr.rollout import vllm_engine
from rlvr.rollout.engine import Request, RolloutEngine, Sampling
from rlvr.rollout.factory import build_engine
from rlvr.rollout.handover import Probe
from rlvr.rollout.vllm_messages import fingerprint

from .reference import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS
from .test_handover import ModelPolicy

# A rank that vLLM has no kernel of, a scale that is no power of two, and layers of which vLLM makes one with others.
LORA = LoraConfig(rank=3, alpha=10, targets=["q_proj", "v_proj", "up_proj", "down_proj"])
TOLERANCE = 1e-5
SEQUENCE = list(range(10, 60))


@pytest.fixture(scope="module", params=["hf", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request: pytest.FixtureRequest, folder: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[RolloutEngine]:
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    options = RolloutConfig(engine=request.param, dtype="float32", max_new_tokens=MAX_NEW_TOKENS, max_num_seqs=16)
    engine = build_engine(options, ModelConfig(path=folder), tokenizer, MAX_PROMPT_TOKENS, lora=LORA)
    yield engine
    engine.close()


def policy(folder: str, lora: LoraConfig = LORA, seed: int = 1) -> PreTrainedModel:
    """The start model with adapters that change its log-probs by much."""
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    add_adapters(module, lora, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, weight in adapters(module):
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return module


def adapters(module: PreTrainedModel) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]


def test_each_handover_replaces_the_adapters(engine: RolloutEngine, folder: str, requests_: list[Request]) -> None:
    probe = Probe([SEQUENCE, *(r.token_ids for r in requests_ if len(r.token_ids) > 1)], TOLERANCE)
    sampling = Sampling(12)
    first, second = policy(folder, seed=1), policy(folder, seed=2)
    samples = []
    for version, module in enumerate((first, second, first), start=1):
        engine.load_weights(adapters(module), version)
        probe.check(engine, ModelPolicy(module, version))
        groups = dict(engine.generate(requests_, sampling))
        assert {c.policy_version for group in groups.values() for c in group} == {version}
        samples.append([(c.token_ids, c.logprobs) for index in sorted(groups) for c in groups[index]])
    assert samples[0] == samples[2]
    assert samples[0] != samples[1]
    with pytest.raises(HandoverError, match="log-probs differ from the policy's"):
        probe.check(engine, ModelPolicy(second, 3))


def test_new_adapters_give_the_start_models_log_probs(
    engine: RolloutEngine, folder: str, base_model: PreTrainedModel
) -> None:
    fresh = copy.deepcopy(base_model)
    add_adapters(fresh, LORA)
    engine.load_weights(adapters(fresh), 1)
    Probe([SEQUENCE], TOLERANCE).check(engine, ModelPolicy(base_model, 1))
    with without_adapters(fresh):
        Probe([SEQUENCE], TOLERANCE).check(engine, ModelPolicy(fresh, 1))


def test_an_incomplete_or_foreign_handover_is_refused(engine: RolloutEngine, folder: str) -> None:
    module = policy(folder)
    given = adapters(module)
    with pytest.raises(HandoverError, match=r"incomplete: 1 of \d+ parameters never came.*lora_B"):
        engine.load_weights(given[:-1], 1)
    with pytest.raises(HandoverError, match="did not end"):
        next(engine.generate([Request(SEQUENCE, [1])], Sampling(1)))
    with pytest.raises(HandoverError, match=r"no parameter 'model\.norm\.weight'"):
        engine.load_weights([*given, ("model.norm.weight", module.model.norm.weight)], 1)
    with pytest.raises(HandoverError, match=r"shape \[4, 128\], the engine's has \[3, 128\]"):
        engine.load_weights(adapters(policy(folder, LoraConfig(rank=4, targets=LORA.targets))), 1)
    engine.load_weights(given, 2)
    Probe([SEQUENCE], TOLERANCE).check(engine, ModelPolicy(module, 2))


def test_a_layer_that_vllm_does_not_have_is_not_left_out_silently(
    engine: RolloutEngine, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(engine, vllm_engine.VllmEngine):
        pytest.skip("of vLLM")
    given = adapters(policy(folder))
    monkeypatch.setattr(vllm_engine, "checked", lambda weights, model, version: weights)
    with pytest.raises(HandoverError, match=r"no layer 'model\.layers\.9\.mlp\.down_proj'.*lora\.targets"):
        engine.load_weights([(name.replace("layers.0.mlp.down", "layers.9.mlp.down"), w) for name, w in given], 1)
    monkeypatch.undo()
    engine.load_weights(given, 1)


def test_bits_that_change_on_the_way_are_named(
    engine: RolloutEngine, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(engine, vllm_engine.VllmEngine):
        pytest.skip("nothing is on a way")
    given = adapters(policy(folder))
    monkeypatch.setattr(vllm_engine, "fingerprint", lambda t: fingerprint(t) + (t.shape == (3, 512)))
    with pytest.raises(HandoverError, match=r"'model\.layers\.0\.mlp\.down_proj\.lora_A.* other bits"):
        engine.load_weights(given, 1)
    monkeypatch.undo()
    engine.load_weights(given, 1)
