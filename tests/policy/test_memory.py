"""What is said to be kept of a parameter against the tensors that are."""

from itertools import product

import pytest
import torch
from torch import nn

from rlvr.config import OptimizerConfig, PolicyConfig
from rlvr.policy.memory import bytes_per_parameter
from rlvr.policy.optimizer import MasterAdamW

FORMS = [
    (dtype, OptimizerConfig(*form))
    for dtype in ("float32", "bfloat16")
    for form in product(("float32", "int8"), ("float32", "stochastic_rounding"), (False, True))
]


def measured(dtype: str, options: OptimizerConfig) -> tuple[float, float, float]:
    """Bytes a parameter of master weights, gradients and moments, after a step and while gradients are summed."""
    parameter = nn.Parameter(torch.randn(64, 1024, dtype=getattr(torch, dtype)))
    optimizer = MasterAdamW([parameter], betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=1.0, state=options)
    for _ in range(2):
        (parameter.float() * 3).sum().backward()
        optimizer.step(1e-3)
    (parameter.float() * 3).sum().backward()
    (slot,) = optimizer._slots.values()
    gradients = {id(t): t for t in (parameter.grad, slot._summing, slot._total, slot._buffer) if t is not None}
    tensors = ([slot.master] if slot.master is not None else [], gradients.values(), slot.moments.tensors())
    return tuple(sum(tensor.nbytes for tensor in kind) / parameter.numel() for kind in tensors)


@pytest.mark.parametrize(("dtype", "options"), FORMS, ids=str)
def test_the_optimizer_keeps_what_is_said(dtype: str, options: OptimizerConfig) -> None:
    said = bytes_per_parameter(PolicyConfig(dtype=dtype, optimizer=options))
    if options.master_weights == "stochastic_rounding" and (dtype == "float32" or options.offload):
        return  # refused before a model is loaded
    assert measured(dtype, options) == (said.master_weights, said.gradients, said.moments)
    assert said.weights == getattr(torch, dtype).itemsize


def test_what_each_form_saves() -> None:
    def total(**form: object) -> float:
        kept = bytes_per_parameter(PolicyConfig(optimizer=OptimizerConfig(**form)))
        return kept.weights + kept.master_weights + kept.gradients + kept.moments

    assert total() == 18
    assert total(master_weights="stochastic_rounding") == 14
    assert total(moments="int8") == 12.03125
    assert total(moments="int8", master_weights="stochastic_rounding") == 8.03125
