import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.objectives import build, kl
from rlvr.objectives.experience import Experience

differences = st.floats(-3, 3)


def value_and_slope(name, difference):
    """The estimate, and its derivative by the current log-prob (the difference's negative)."""
    logprob = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    estimate = kl.ESTIMATORS[name](difference - 1.0 - logprob)
    estimate.backward()
    return estimate.item(), logprob.grad.item()


@given(d=differences)
def test_values_and_slopes(d):
    assert value_and_slope("k1", d) == pytest.approx((-d, 1.0))
    assert value_and_slope("k2", d) == pytest.approx((d * d / 2, -d))
    assert value_and_slope("k3", d) == pytest.approx((math.exp(d) - d - 1, 1 - math.exp(d)))
    assert value_and_slope("k3_straight", d) == pytest.approx((math.exp(d) - d - 1, -d))


@given(d=differences)
def test_k2_and_k3_are_never_negative(d):
    assert value_and_slope("k2", d)[0] >= 0
    assert value_and_slope("k3", d)[0] >= -1e-15


@pytest.mark.parametrize("name", list(kl.ESTIMATORS))
def test_zero_at_the_reference(name):
    assert value_and_slope(name, 0.0)[0] == 0.0


def test_k3_does_not_overflow():
    assert math.isfinite(value_and_slope("k3", 800.0)[0])


@given(seed=st.integers(0, 999))
def test_expected_values_and_gradients_over_all_outcomes(seed):
    """E k1 = E k3 = KL(p||q); E grad k1 = 0, E grad k2 = grad KL(p||q), E grad k3 = grad KL(q||p)."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, generator=rng, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(5, generator=rng, dtype=torch.float64).log_softmax(0)

    def expected_gradient(name):
        logprobs = logits.log_softmax(0)
        estimate = kl.ESTIMATORS[name](reference - logprobs)
        return torch.autograd.grad((logprobs.detach().exp() * estimate).sum(), logits)[0]

    def exact_gradient(p_is_policy):
        policy = logits.log_softmax(0)
        p, q = (policy, reference) if p_is_policy else (reference, policy)
        return torch.autograd.grad((p.exp() * (p - q)).sum(), logits)[0]

    policy = logits.log_softmax(0).detach()
    divergence = (policy.exp() * (policy - reference)).sum()
    for name in ("k1", "k3", "k3_straight"):
        torch.testing.assert_close((policy.exp() * kl.ESTIMATORS[name](reference - policy)).sum(), divergence)
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros(5, dtype=torch.float64))
    for name in ("k2", "k3_straight"):
        torch.testing.assert_close(expected_gradient(name), exact_gradient(p_is_policy=True))
    torch.testing.assert_close(expected_gradient("k3"), exact_gradient(p_is_policy=False))


@given(seed=st.integers(0, 999))
def test_the_exact_divergence_and_the_weighted_estimates_off_policy(seed):
    """Over all outcomes of the old policy, E rho k is KL(p||q) in value for k1 and k3, and in gradient for k3."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, generator=rng, dtype=torch.float64, requires_grad=True)
    old, reference = (torch.randn(5, generator=rng, dtype=torch.float64).log_softmax(0) for _ in range(2))
    policy = logits.log_softmax(0)
    exact = kl.exact(policy, reference)
    pairs = zip(policy.tolist(), reference.tolist(), strict=True)
    assert exact.item() == pytest.approx(sum(math.exp(p) * (p - q) for p, q in pairs))
    weighted = (old.exp() * (policy - old).exp() * kl.k3(reference - policy)).sum()
    torch.testing.assert_close(weighted, exact)
    slopes = [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (weighted, exact)]
    torch.testing.assert_close(slopes[0], slopes[1])


def one_token_rows(logits, old, reference):
    """All outcomes of a distribution as rows of one token, in one group of equal rewards."""
    size = len(old)
    experience = Experience(
        rewards=torch.zeros(size, dtype=torch.float64),
        correct=torch.zeros(size, dtype=torch.bool),
        truncated=torch.zeros(size, dtype=torch.bool),
        group_ids=torch.zeros(size, dtype=torch.int64),
        row_ids=torch.arange(size),
        loss_mask=torch.ones(size, dtype=torch.bool),
        rollout_logprobs=old,
        old_logprobs=old,
        ref_logprobs=reference,
    )
    return experience, logits.log_softmax(0)


def test_the_loss_weighs_the_estimate_by_the_ratio_and_takes_the_exact_one():
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([0.1, 0.4, -0.3], dtype=torch.float64).log_softmax(0)
    reference = torch.tensor([0.0, 0.2, -0.5], dtype=torch.float64).log_softmax(0)
    experience, policy = one_token_rows(logits, old, reference)
    spec = {"aggregate": "sequence_sum", "kl": {"placement": "loss", "coef": 2.0, "ratio_weighted": True}}
    objective = build(spec)
    found = objective.loss(policy, objective.prepare(experience)[0])[0]
    wanted = 2.0 * ((policy - old).exp() * kl.k3(reference - policy)).mean()
    torch.testing.assert_close(found, wanted)
    spec["kl"] = {"placement": "loss", "coef": 2.0, "estimator": "exact"}
    objective = build(spec)
    divergence = kl.exact(policy, reference)
    found = objective.loss(policy, objective.prepare(experience)[0], exact_kl=divergence.expand(3))[0]
    torch.testing.assert_close(found, 2.0 * divergence)
    slopes = [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (found, 2 * divergence)]
    torch.testing.assert_close(slopes[0], slopes[1])
