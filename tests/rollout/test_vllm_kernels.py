"""vLLM's fused norms give what its plain ones give, on the CPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

# In a process of its own: importing vLLM changes the process that does it.
PROGRAM = """
import torch
from rlvr.rollout import vllm_kernels

given = vllm_kernels.arguments()["ir_op_priority"]
assert given == {"rms_norm": [vllm_kernels.PROVIDER], "fused_add_rms_norm": [vllm_kernels.PROVIDER]}
from vllm import ir

torch.manual_seed(0)
for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2**-6)):
    for tokens, size in ((1, 64), (5, 576), (3, 112)):
        x, residual = torch.randn(2, tokens, size).to(dtype)
        weight = torch.randn(size).to(dtype)
        for operation, inputs in ((ir.ops.rms_norm, [x]), (ir.ops.fused_add_rms_norm, [x, residual])):
            ours, plain = operation.impls[vllm_kernels.PROVIDER], operation.impls["native"]
            assert ours.supports_args(*inputs, weight, 1e-5)
            assert not ours.supports_args(*inputs, weight.double(), 1e-5)
            assert not ours.supports_args(*[value[:, 4:].contiguous() for value in inputs], weight[4:], 1e-5)
            assert not ours.supports_args(*inputs, weight, 1e-5, size // 2)
            expected = plain.impl_fn(*inputs, weight, 1e-5)
            found = ours.impl_fn(*[value.clone() for value in inputs], weight, 1e-5)
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
"""


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.vllm
def test_fused_norms_are_the_plain_ones() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
