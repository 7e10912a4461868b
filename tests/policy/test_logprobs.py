from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlvr.policy.logprobs import Head, token_logprobs


def plain(
    hidden: Tensor, weight: Tensor, token_ids: Tensor, wanted: Tensor, temperature: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """All logits at once, in the inputs' precision."""
    logits = hidden @ weight.T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    all_logprobs = torch.log_softmax(logits / temperature, -1)
    previous = all_logprobs[:-1]
    logprobs = previous.gather(-1, token_ids[1:, None]).squeeze(-1)
    entropy = -(previous.exp() * previous).sum(-1)
    first = logprobs.new_zeros(1)
    return tuple(torch.where(wanted, torch.cat([first, x]), 0.0) for x in (logprobs, entropy))


def inputs(seed: int, tokens: int = 23, size: int = 8, vocabulary: int = 31) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, size, generator=rng, dtype=torch.float64)
    weight = torch.randn(vocabulary, size, generator=rng, dtype=torch.float64)
    token_ids = torch.randint(vocabulary, (tokens,), generator=rng)
    wanted = torch.rand(tokens, generator=rng) < 0.6
    wanted[0] = False
    return hidden.requires_grad_(), weight.requires_grad_(), token_ids, wanted


@pytest.mark.parametrize("entropy_grad", [False, True])
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31),
    chunk=st.sampled_from([1, 4, 7, 64]),
    temperature=st.sampled_from([1.0, 0.6, 1.7]),
    softcap=st.sampled_from([None, 3.0]),
)
def test_values_and_gradients_are_those_of_the_plain_computation(
    entropy_grad: bool, seed: int, chunk: int, temperature: float, softcap: float | None
) -> None:
    hidden, weight, token_ids, wanted = inputs(seed)
    up = torch.randn(2, len(token_ids), generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    expected = plain(hidden, weight, token_ids, wanted, temperature, softcap)
    actual = token_logprobs(
        hidden, Head(weight, temperature, softcap, chunk), token_ids, wanted, entropy_grad=entropy_grad
    )

    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    loss = (up[0] * expected[0]).sum() + (up[1] * expected[1]).sum() * entropy_grad
    expected_grads = torch.autograd.grad(loss, (hidden, weight))
    loss = (up[0] * actual[0]).sum() + ((up[1] * actual[1]).sum() if entropy_grad else 0)
    for ours, theirs in zip(torch.autograd.grad(loss, (hidden, weight)), expected_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


class Products(TorchDispatchMode):
    """Counts the products that make logits."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.count = vocabulary, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.mm.out and kwargs["out"].shape[-1] == self.vocabulary
        return func(*args, **(kwargs or {}))


def test_backward_takes_the_last_chunk_as_forward_left_it() -> None:
    hidden, weight, token_ids, wanted = inputs(0)
    chunks = -(-int(wanted.sum()) // 4)
    with Products(len(weight)) as products:
        logprobs, _ = token_logprobs(hidden, Head(weight, chunk_tokens=4), token_ids, wanted)
        assert products.count == chunks
        first = torch.autograd.grad(logprobs.sum(), hidden, retain_graph=True)[0]
        assert products.count == 2 * chunks - 1
        again = torch.autograd.grad(logprobs.sum(), hidden)[0]
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_entropy_has_no_gradient_unless_asked() -> None:
    hidden, weight, token_ids, wanted = inputs(0)
    assert not token_logprobs(hidden, Head(weight), token_ids, wanted)[1].requires_grad


def test_weight_gradient_goes_into_the_given_sum() -> None:
    hidden, weight, token_ids, wanted = inputs(0)
    (expected,) = torch.autograd.grad(token_logprobs(hidden, Head(weight), token_ids, wanted)[0].sum(), weight)
    total = torch.ones_like(weight)
    token_logprobs(hidden, Head(weight, weight_grad=total), token_ids, wanted)[0].sum().backward()
    torch.testing.assert_close(total, 1 + expected)
    assert weight.grad is None


def test_no_wanted_token_gives_zeros_and_no_gradient() -> None:
    hidden, weight, token_ids, wanted = inputs(0)
    logprobs, entropy = token_logprobs(hidden, Head(weight), token_ids, torch.zeros_like(wanted))
    assert logprobs.eq(0).all()
    assert entropy.eq(0).all()
    assert torch.autograd.grad(logprobs.sum(), hidden)[0].eq(0).all()


def test_bfloat16_inputs_give_float32_logits() -> None:
    hidden, weight, token_ids, wanted = (x.detach() for x in inputs(3, tokens=64, size=64, vocabulary=512))
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    exact = plain(hidden.double(), weight.double(), token_ids, wanted, 1.0, None)
    logprobs, entropy = token_logprobs(hidden, Head(weight), token_ids, wanted)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), exact[0], rtol=0, atol=2e-5)
    torch.testing.assert_close(entropy.double(), exact[1], rtol=0, atol=2e-5)
    assert (logprobs.double() - plain(hidden, weight, token_ids, wanted, 1.0, None)[0].double()).abs().max() > 1e-2


def test_bfloat16_gradients_are_close_to_the_exact_ones() -> None:
    hidden, weight, token_ids, wanted = (x.detach() for x in inputs(4, tokens=64, size=64, vocabulary=512))
    hidden, weight = hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()
    up = torch.linspace(-1, 1, 64)
    exact = plain(hidden.double(), weight.double(), token_ids, wanted, 1.0, None)[0]
    expected = torch.autograd.grad((up * exact).sum(), (hidden, weight))
    total = torch.zeros(weight.shape)
    logprobs, _ = token_logprobs(hidden, Head(weight, chunk_tokens=16, weight_grad=total), token_ids, wanted)
    (hidden_grad,) = torch.autograd.grad((up * logprobs).sum(), hidden)
    for ours, theirs in ((hidden_grad, expected[0]), (total, expected[1])):
        assert (ours.double() - theirs.double()).norm() < 0.01 * theirs.double().norm()


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation gave back."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result


@pytest.mark.parametrize("tokens", [200, 800])
def test_no_tensor_grows_with_tokens_times_vocabulary(tokens: int) -> None:
    hidden, weight, token_ids, wanted = inputs(0, tokens=tokens, size=4, vocabulary=1000)
    with LargestTensor() as largest:
        logprobs, _ = token_logprobs(hidden, Head(weight, chunk_tokens=16), token_ids, wanted, entropy_grad=True)
        logprobs.sum().backward()
    assert largest.elements == 16 * 1000


@pytest.mark.parametrize("tokens", [200])
def test_the_counter_sees_the_plain_computation(tokens: int) -> None:
    hidden, weight, token_ids, wanted = inputs(0, tokens=tokens, size=4, vocabulary=1000)
    with LargestTensor() as largest:
        plain(hidden, weight, token_ids, wanted, 1.0, None)
    assert largest.elements == tokens * 1000
