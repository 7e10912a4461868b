import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvr.policy.exact_kl import exact_kl
from rlvr.policy.logprobs import Head

from .test_logprobs import LargestTensor


def plain(hidden: Tensor, head: Head, ref_hidden: Tensor, ref_head: Head, wanted: Tensor) -> Tensor:
    """From all logits at once, in the inputs' precision."""

    def distributions(states: Tensor, head: Head) -> Tensor:
        logits = states @ head.weight.T
        if head.softcap is not None:
            logits = head.softcap * torch.tanh(logits / head.softcap)
        return torch.log_softmax(logits / head.temperature, -1)

    policy, reference = distributions(hidden, head), distributions(ref_hidden, ref_head)
    kl = (policy.exp() * (policy - reference)).sum(-1)
    return torch.where(wanted, torch.cat([kl.new_zeros(1), kl[:-1]]), 0.0)


def inputs(seed: int, tokens: int = 23, vocabulary: int = 31) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states and weights of policy and reference, whose sizes differ, and the wanted tokens."""
    rng = torch.Generator().manual_seed(seed)
    shapes = ((tokens, 8), (vocabulary, 8), (tokens, 5), (vocabulary, 5))
    hidden, weight, ref_hidden, ref_weight = (torch.randn(*s, generator=rng, dtype=torch.float64) for s in shapes)
    wanted = torch.rand(tokens, generator=rng) < 0.6
    wanted[0] = False
    return hidden.requires_grad_(), weight.requires_grad_(), ref_hidden, ref_weight, wanted


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31),
    chunk=st.sampled_from([1, 4, 7, 64]),
    temperature=st.sampled_from([1.0, 0.6, 1.7]),
    softcap=st.sampled_from([None, 3.0]),
)
def test_value_and_gradients_are_those_of_the_plain_computation(
    seed: int, chunk: int, temperature: float, softcap: float | None
) -> None:
    hidden, weight, ref_hidden, ref_weight, wanted = inputs(seed)
    head, ref_head = Head(weight, temperature, softcap, chunk), Head(ref_weight, temperature, None, chunk)
    up = torch.randn(len(wanted), generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    expected = plain(hidden, head, ref_hidden, ref_head, wanted)
    actual = exact_kl(hidden, head, ref_hidden, ref_head, wanted)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    wanted_grads = torch.autograd.grad((up * expected).sum(), (hidden, weight))
    for ours, theirs in zip(torch.autograd.grad((up * actual).sum(), (hidden, weight)), wanted_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_it_is_0_with_no_gradient_where_the_models_are_one() -> None:
    hidden, weight, *_, wanted = inputs(0)
    head = Head(weight, 0.7)
    kl = exact_kl(hidden, head, hidden.detach(), Head(weight.detach(), 0.7), wanted)
    assert kl.eq(0).all()
    assert all(grad.abs().max() < 1e-15 for grad in torch.autograd.grad(kl.sum(), (hidden, weight)))


def test_the_weights_gradient_goes_into_the_given_sum() -> None:
    hidden, weight, ref_hidden, ref_weight, wanted = inputs(1)
    (expected,) = torch.autograd.grad(
        exact_kl(hidden, Head(weight), ref_hidden, Head(ref_weight), wanted).sum(), weight
    )
    total = torch.ones_like(weight)
    exact_kl(hidden, Head(weight, weight_grad=total), ref_hidden, Head(ref_weight), wanted).sum().backward()
    torch.testing.assert_close(total, 1 + expected)
    assert weight.grad is None


def test_bfloat16_is_as_exact_as_its_inputs() -> None:
    hidden, weight, ref_hidden, ref_weight, wanted = (x.detach() for x in inputs(3, tokens=64, vocabulary=512))
    states = [x.bfloat16() for x in (hidden, weight, ref_hidden, ref_weight)]
    a, b, c, d = (x.double() for x in states)
    expected = plain(a, Head(b), c, Head(d), wanted)
    actual = exact_kl(states[0], Head(states[1]), states[2], Head(states[3]), wanted)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("tokens", [200, 800])
def test_no_tensor_grows_with_tokens_times_vocabulary(tokens: int) -> None:
    hidden, weight, ref_hidden, ref_weight, wanted = inputs(0, tokens=tokens, vocabulary=1000)
    with LargestTensor() as largest:
        head, ref_head = Head(weight, chunk_tokens=16), Head(ref_weight, chunk_tokens=16)
        exact_kl(hidden, head, ref_hidden, ref_head, wanted).sum().backward()
    assert largest.elements == 16 * 1000
