"""vLLM on the CPU: its fused norms give what its plain ones give, and it draws as the hf engine does."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

# In a process of its own: importing vLLM changes the process that does it.
NORMS = """
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

DRAWS = """
import torch
from rlvr.rollout import vllm_kernels
from rlvr.rollout.engine import Sampling
from rlvr.rollout.sampling import sample, uniforms

vllm_kernels.draw_by_inverse_transform()
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

sampler = TopKTopPSampler("processed_logprobs")
logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)) * 3
seeds = [7, 2**40, 9]
for top_p in (1.0, 0.6):
    generators = {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(seeds)}
    numbers = uniforms(seeds, 3)
    nucleus = None if top_p == 1.0 else torch.full((3,), top_p)
    for step in range(3):
        tokens, logprobs = sampler(logits.clone(), generators, None, nucleus)
        expected, expected_logprobs = sample(logits, numbers[:, step], Sampling(3, 1.0, top_p))
        assert tokens.equal(expected), (tokens, expected)
        torch.testing.assert_close(logprobs, expected_logprobs)
tokens, _ = sampler(logits[:1].expand(2000, -1).clone(), {0: torch.Generator().manual_seed(7)}, None, None)
observed = tokens.bincount(minlength=1000) / 2000
assert (observed - logits[0].softmax(-1)).abs().max() < 0.045  # four standard deviations
"""


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.vllm
@pytest.mark.parametrize("program", [NORMS, DRAWS], ids=["norms", "draws"])
def test_they_are_the_plain_ones(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
