"""The Triton kernels: in the interpreter beside float64, compiled for GPUs that are not here, and on one that is."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlvr.policy.logprobs import ChunkedTokenLogprobs, Head, _function, token_logprobs

from .interpreted import OfHidden, OfProducts
from .test_logprobs import inputs, plain

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

SETTINGS = [(1.0, None), (0.6, None), (1.7, 3.0)]  # temperature and soft-cap


def spread(shape: tuple[int, int]) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


PRODUCTS: dict[str, Callable[[], Tensor]] = {
    "less than a block": lambda: spread((5, 31)),
    "one block": lambda: spread((3, 4096)),
    "blocks and a rest": lambda: spread((3, 9001)),
    "one token": lambda: spread((1, 4097)),
    "one entry": lambda: spread((2, 1)),
    "all equal": lambda: torch.full((2, 5000), 7.0),
    "large": lambda: 1e4 * spread((2, 5000)),
    "far below zero": lambda: spread((2, 5000)) - 2e4,
    "rising, so that every block has a new largest": lambda: torch.linspace(-300, 300, 9001).repeat(2, 1),
    "falling": lambda: torch.linspace(300, -300, 9001).repeat(2, 1),
}


def of_products(name: str, setting: tuple[float, float | None], with_entropy: bool, dtype: torch.dtype) -> OfProducts:
    products = PRODUCTS[name]()
    num_tokens, vocabulary = products.shape
    targets = torch.linspace(0, vocabulary - 1, num_tokens).flip(0).long()
    up = torch.randn(2, num_tokens, generator=torch.Generator().manual_seed(1))
    return OfProducts(products, targets, *setting, up[0], up[1] if with_entropy else None, dtype)


KERNEL_CASES = {
    (name, setting, with_entropy, dtype): of_products(name, setting, with_entropy, dtype)
    for name in PRODUCTS
    for setting in SETTINGS
    for with_entropy, dtype in ((False, torch.float32), (True, torch.float32), (True, torch.bfloat16))
}


def of_hidden(with_entropy: bool, takes_weight_grad: bool) -> OfHidden:
    rng = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(7, 8, generator=rng), torch.randn(4100, 8, generator=rng)
    up = torch.randn(2, 7, generator=rng)
    total = torch.ones_like(weight) if takes_weight_grad else None
    head = Head(torch.empty(0), 0.7, 3.0, chunk_tokens=3, weight_grad=total)
    targets = torch.randint(4100, (7,), generator=rng)
    return OfHidden(hidden, weight, targets, head, up[0], up[1] if with_entropy else None)


FUNCTION_CASES = {(e, w): of_hidden(e, w) for e in (False, True) for w in (False, True)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[object, dict[str, Tensor]]:
    """What the interpreter makes of all cases, by their keys."""
    cases = KERNEL_CASES | FUNCTION_CASES
    folder: Path = tmp_path_factory.mktemp("interpreted")
    torch.save(list(cases.values()), folder / "cases.pt")
    subprocess.run(
        [sys.executable, "-m", "policy.interpreted", str(folder / "cases.pt"), str(folder / "results.pt")],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
    )
    return dict(zip(cases, torch.load(folder / "results.pt"), strict=True))


@pytest.mark.parametrize("key", KERNEL_CASES, ids=str)
def test_kernels_give_values_and_slope_of_the_plain_computation(
    key: object, results: dict[object, dict[str, Tensor]]
) -> None:
    case, actual = KERNEL_CASES[key], results[key]
    products = case.products.double().requires_grad_()
    logits = products if case.softcap is None else case.softcap * torch.tanh(products / case.softcap)
    all_logprobs = torch.log_softmax(logits / case.temperature, -1)
    logprobs = all_logprobs.gather(-1, case.targets[:, None]).squeeze(-1)
    entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
    loss = (case.logprobs_grad * logprobs).sum()
    if case.entropy_grad is not None:
        loss = loss + (case.entropy_grad * entropy).sum()
    (slope,) = torch.autograd.grad(loss, products)

    # float32 holds a logit to 6e-8 of its size.
    atol = 5e-7 * max(float(logits.detach().abs().max()) / case.temperature, 10.0)
    torch.testing.assert_close(actual["logprobs"].double(), logprobs.detach(), rtol=1e-6, atol=atol)
    torch.testing.assert_close(actual["entropy"].double(), entropy.detach(), rtol=1e-6, atol=atol)
    assert actual["slope"].dtype == case.dtype
    rtol = 2**-7 if case.dtype == torch.bfloat16 else 1e-4  # the interpreter cuts bits off, a GPU rounds
    torch.testing.assert_close(actual["slope"].double(), slope, rtol=rtol, atol=atol)


@pytest.mark.parametrize("key", FUNCTION_CASES, ids=str)
def test_values_and_gradients_are_those_of_the_cpu_implementation(
    key: object, results: dict[object, dict[str, Tensor]]
) -> None:
    case, actual = FUNCTION_CASES[key], results[key]
    hidden, weight = case.hidden.double().requires_grad_(), case.weight.double().requires_grad_()
    head = Head(weight, case.head.temperature, case.head.softcap)
    logprobs, entropy = ChunkedTokenLogprobs.apply(hidden, weight, case.targets, head, case.entropy_grad is not None)
    loss = (case.logprobs_grad * logprobs).sum()
    if case.entropy_grad is not None:
        loss = loss + (case.entropy_grad * entropy).sum()
    loss.backward()
    taken = case.head.weight_grad is not None
    expected = {"logprobs": logprobs, "entropy": entropy, "hidden": hidden.grad}
    expected["weight_sum" if taken else "weight"] = weight.grad + taken
    for name, value in expected.items():
        torch.testing.assert_close(actual[name].double(), value.detach(), rtol=1e-5, atol=1e-5, msg=name)
    assert actual["weight" if taken else "weight_sum"] is None


def test_cuda_takes_the_kernels_and_float64_does_not() -> None:
    from rlvr.policy.logprobs_triton import FusedTokenLogprobs

    assert _function("cuda", torch.bfloat16) is _function("cuda", torch.float32) is FusedTokenLogprobs
    assert _function("cuda", torch.float64) is _function("cpu", torch.bfloat16) is ChunkedTokenLogprobs


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("kernel", ["_reduce", "_differentiate"])
def test_kernels_compile_for_gpus(kernel: str, capped: bool, architecture: int) -> None:
    """The interpreter runs Python that the compiler may refuse."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rlvr.policy import logprobs_triton

    function = getattr(logprobs_triton, kernel)
    constants = {"capped": capped, "block": logprobs_triton.BLOCK, "with_entropy": True}
    constants = {name: value for name, value in constants.items() if name in function.arg_names}
    types = {"targets": "*i64", "slopes": "*bf16", "vocabulary": "i32", "slope_stride": "i32"}
    types |= {"per_temperature": "fp32", "cap": "fp32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, {name: types.get(name, "*fp32") for name in function.arg_names}, constants)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": logprobs_triton.NUM_WARPS}
    )
    assert compiled.asm["cubin"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("vocabulary", [151936, 50257])
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_on_a_gpu_values_and_gradients_are_those_of_float64(
    vocabulary: int, entropy_grad: bool, softcap: float | None
) -> None:
    drawn = [x.detach().cuda() for x in inputs(5, tokens=200, size=128, vocabulary=vocabulary)]
    hidden, weight = ((0.3 * x).bfloat16().requires_grad_() for x in drawn[:2])
    token_ids, wanted = drawn[2:]
    up = torch.randn(2, 200, generator=torch.Generator().manual_seed(6)).cuda()
    exact = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()

    def gradients(values: tuple[Tensor, Tensor], by: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad((up[0] * values[0]).sum() + (up[1] * values[1]).sum() * entropy_grad, by)

    expected = plain(*exact, token_ids, wanted, 0.8, softcap)
    total = torch.zeros(weight.shape, device="cuda")
    head = Head(weight, 0.8, softcap, chunk_tokens=64, weight_grad=total)
    actual = token_logprobs(hidden, head, token_ids, wanted, entropy_grad=entropy_grad)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-5)
    loss = (up[0] * actual[0]).sum() + ((up[1] * actual[1]).sum() if entropy_grad else 0)
    (hidden_grad,) = torch.autograd.grad(loss, hidden)
    for ours, theirs in zip((hidden_grad, total), gradients(expected, exact), strict=True):
        assert (ours.double() - theirs).norm() < 0.01 * theirs.norm()
