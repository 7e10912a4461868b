"""The hand-over is sabotaged in ways that no name check sees, and the probe sees them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from rlvr.errors import HandoverError
from rlvr.rollout.engine import Request, RolloutEngine
from rlvr.rollout.handover import Probe, default_tolerance

from .reference import forward_logprobs

Weights = Iterable[tuple[str, torch.Tensor]]


class ModelPolicy:
    """The policy's side of the probe: a plain transformers forward."""

    def __init__(self, model: PreTrainedModel, version: int) -> None:
        self.model, self.version = model, version

    def sequence_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [
            forward_logprobs(self.model, list(s)).gather(-1, torch.tensor(s)[1:, None])[:, 0].tolist()
            for s in sequences
        ]


@pytest.fixture
def trained(model: PreTrainedModel) -> PreTrainedModel:
    """The policy after a step: every weight has moved by a hundredth of its spread."""
    changed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.01 * parameter.abs().mean())
    return changed


@pytest.fixture
def probe(requests_: list[Request]) -> Probe:
    return Probe([r.token_ids for r in requests_ if len(r.token_ids) > 1], default_tolerance("float32", "float32"))


def test_a_whole_handover_passes(engine: RolloutEngine, trained: PreTrainedModel, probe: Probe) -> None:
    engine.load_weights(trained.named_parameters(), 8)
    metrics = probe.check(engine, ModelPolicy(trained, 8))
    assert 0 <= metrics["mismatch/handover"] < 1e-4


def stale(old: PreTrainedModel, new: PreTrainedModel) -> Weights:
    return old.named_parameters()


def half_loaded(old: PreTrainedModel, new: PreTrainedModel) -> Weights:
    for index, (name, tensor) in enumerate(new.named_parameters()):
        yield name, tensor if index % 2 else dict(old.named_parameters())[name]


def one_layer_scaled(old: PreTrainedModel, new: PreTrainedModel) -> Weights:
    for name, tensor in new.named_parameters():
        yield name, tensor * 1.5 if name == "model.layers.3.self_attn.v_proj.weight" else tensor


def transposed(old: PreTrainedModel, new: PreTrainedModel) -> Weights:
    for name, tensor in new.named_parameters():
        yield name, tensor.T if name == "model.layers.0.self_attn.q_proj.weight" else tensor


def not_a_number(old: PreTrainedModel, new: PreTrainedModel) -> Weights:
    for name, tensor in new.named_parameters():
        yield name, tensor * math.nan if name == "model.norm.weight" else tensor


@pytest.mark.parametrize("sabotage", [stale, half_loaded, one_layer_scaled, transposed, not_a_number])
def test_a_sabotaged_handover_is_caught(
    engine: RolloutEngine, model: PreTrainedModel, trained: PreTrainedModel, probe: Probe, sabotage: object
) -> None:
    assert callable(sabotage)
    engine.load_weights(sabotage(model, trained), 8)
    with pytest.raises(HandoverError, match=r"version 8 .*\(tolerance 0\.001\).* at token \d+ of probe sequence \d"):
        probe.check(engine, ModelPolicy(trained, 8))


def test_the_tolerance_is_wider_when_either_side_rounds() -> None:
    assert default_tolerance("float32", "float32") == 1e-3
    assert default_tolerance("bfloat16", "float32") == default_tolerance("float32", "bfloat16") == 0.1
