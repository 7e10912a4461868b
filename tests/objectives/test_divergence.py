import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.objectives.divergence import binary_kl, binary_tv, topk_kl, topk_tv

seeds = st.integers(0, 2**31)
SIZE = 7


def two_distributions(seed):
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(SIZE, generator=rng, dtype=torch.float64).log_softmax(0) for _ in range(2))


def exact_tv(policy, behaviour):
    return sum(abs(math.exp(p) - math.exp(q)) for p, q in zip(policy.tolist(), behaviour.tolist(), strict=True)) / 2


def exact_kl(policy, behaviour):
    return sum(math.exp(q) * (q - p) for p, q in zip(policy.tolist(), behaviour.tolist(), strict=True))


def at_top(policy, behaviour, k):
    ids = behaviour.topk(k).indices
    return policy[ids][None], behaviour[ids][None]


@given(seed=seeds, k=st.integers(1, SIZE - 1), sampled=st.integers(0, SIZE - 1))
def test_coarser_partitions_see_less(seed, k, sampled):
    policy, behaviour = two_distributions(seed)
    exact = exact_tv(policy, behaviour), exact_kl(policy, behaviour)
    top = at_top(policy, behaviour, k)
    listed = topk_tv(*top).item(), topk_kl(*top).item()
    token = behaviour.topk(k).indices[sampled % k]
    binary = [f(policy[token], behaviour[token]).item() for f in (binary_tv, binary_kl)]
    for coarse, middle, full in zip(binary, listed, exact, strict=True):
        assert coarse <= middle + 2e-8
        assert middle <= full + 1e-12
        assert coarse >= -1e-7


@given(seed=seeds)
def test_the_whole_vocabulary_is_exact(seed):
    policy, behaviour = two_distributions(seed)
    top = at_top(policy, behaviour, SIZE)
    assert topk_tv(*top).item() == pytest.approx(exact_tv(policy, behaviour), rel=1e-9)
    assert topk_kl(*top).item() == pytest.approx(exact_kl(policy, behaviour), rel=1e-9, abs=1e-10)


@given(seed=seeds)
def test_two_tokens_are_all_there_is(seed):
    """The binary forms on a vocabulary of two are the full divergences, but for the 1e-8 inside the logarithm."""
    policy, behaviour = (x[:2].log_softmax(0) for x in two_distributions(seed))
    assert binary_tv(policy[0], behaviour[0]).item() == pytest.approx(exact_tv(policy, behaviour))
    assert binary_kl(policy[0], behaviour[0]).item() == pytest.approx(exact_kl(policy, behaviour), abs=1e-6)


def test_a_shorter_list_of_the_sampler_is_padded_with_minus_infinity():
    policy, behaviour = two_distributions(3)
    short = at_top(policy, behaviour, 3)
    fills = [torch.tensor([[fill]], dtype=torch.float64) for fill in (-40.0, -math.inf)]
    padded = [torch.cat(pair, dim=1) for pair in zip(short, fills, strict=True)]
    assert topk_kl(*padded).item() == pytest.approx(topk_kl(*short).item())
    assert topk_tv(*padded).item() == pytest.approx(topk_tv(*short).item())


def test_certain_tokens_are_finite():
    sure, unlikely = torch.tensor([0.0]), torch.tensor([-30.0])
    for f in (binary_tv, binary_kl):
        assert f(sure, unlikely).isfinite()
        assert f(unlikely, sure).isfinite()
        assert f(sure, sure).item() == 0
