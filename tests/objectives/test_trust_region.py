import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rlvr.objectives import trust_region
from rlvr.objectives.segments import Segments
from rlvr.objectives.spec import TrustSpec
from rlvr.objectives.trust_region import Step

from .golden_presets import sigmoid

log_ratios = st.floats(-2, 2)
advantages = st.sampled_from([-1.5, -0.3, 0.0, 0.4, 2.0])
bounds = st.floats(0.01, 0.9)


def gradient(kind, log_ratio, advantage, start=-1.0, picked=False, coef=1.0, **options):
    """Value, derivative by the current log-prob, whether the trust region acted."""
    logprob = torch.tensor([start], dtype=torch.float64, requires_grad=True)
    anchor = torch.tensor([start - log_ratio], dtype=torch.float64)
    step = Step(
        policy_logprobs=logprob,
        anchor_logprobs=anchor,
        log_ratio=logprob - anchor,
        advantages=torch.tensor([advantage], dtype=torch.float64),
        rows=Segments(torch.tensor([0]), torch.tensor([True]), 1),
        coef=coef,
        picked=torch.tensor([picked]),
    )
    terms, outside = trust_region.KINDS[kind](step, TrustSpec(kind=kind, **options))
    terms.sum().backward()
    return terms.item(), logprob.grad.item(), outside.item()


def off_the_edge(log_ratio, *edges):
    assume(all(abs(math.exp(log_ratio) - edge) > 1e-6 for edge in edges))


@given(log_ratio=log_ratios, advantage=advantages, low=bounds, high=bounds)
def test_clip_is_ppos_minimum_and_its_gradient_is_zero_on_two_cells_only(log_ratio, advantage, low, high):
    off_the_edge(log_ratio, 1 - low, 1 + high)
    ratio = math.exp(log_ratio)
    value, slope, outside = gradient("clip", log_ratio, advantage, low=low, high=high)
    assert value == pytest.approx(-min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage))
    cut = (advantage > 0 and ratio > 1 + high) or (advantage < 0 and ratio < 1 - low)
    assert slope == pytest.approx(0.0 if cut else -ratio * advantage, abs=0 if cut else 1e-12)
    assert outside == cut


@given(log_ratio=log_ratios, advantage=advantages, cap=st.floats(1.05, 5))
def test_dual_clip_adds_one_cell(log_ratio, advantage, cap):
    off_the_edge(log_ratio, 0.8, 1.2, cap)
    ratio = math.exp(log_ratio)
    single, slope, outside = gradient("clip", log_ratio, advantage)
    value, dual_slope, dual_outside = gradient("clip", log_ratio, advantage, dual=cap)
    assert value == pytest.approx(min(single, -cap * advantage) if advantage < 0 else single)
    beyond = advantage < 0 and ratio > cap
    assert dual_slope == pytest.approx(0.0 if beyond else slope)
    assert dual_outside == (outside or beyond)


@given(log_ratio=log_ratios, advantage=advantages)
def test_infinite_bounds_clip_nothing(log_ratio, advantage):
    free = gradient("none", log_ratio, advantage)
    assert gradient("clip", log_ratio, advantage, low=math.inf, high=math.inf) == pytest.approx(free)


@given(log_ratio=log_ratios, advantage=advantages, low=bounds, high=bounds)
def test_weight_clip_never_loses_a_gradient(log_ratio, advantage, low, high):
    off_the_edge(log_ratio, 1 - low, 1 + high)
    weight = min(max(math.exp(log_ratio), 1 - low), 1 + high)
    value, slope, outside = gradient("weight_clip", log_ratio, advantage, low=low, high=high)
    assert slope == pytest.approx(-weight * advantage)
    assert value == pytest.approx(-weight * advantage * -1.0)
    assert outside == (weight != math.exp(log_ratio) and advantage != 0)


@given(log_ratio=st.floats(math.log(0.81), math.log(1.19)), advantage=advantages)
def test_inside_the_bounds_all_kinds_have_the_same_gradient(log_ratio, advantage):
    free = gradient("none", log_ratio, advantage)[1]
    assert gradient("clip", log_ratio, advantage)[1] == pytest.approx(free)
    assert gradient("clip", log_ratio, advantage, dual=3.0)[1] == pytest.approx(free)
    assert gradient("weight_clip", log_ratio, advantage)[1] == pytest.approx(free)


def test_without_a_ratio_the_term_is_reinforces():
    logprob = torch.tensor([-0.7], dtype=torch.float64, requires_grad=True)
    rows = Segments(torch.tensor([0]), torch.tensor([True]), 1)
    step = Step(
        policy_logprobs=logprob, anchor_logprobs=logprob, log_ratio=None, advantages=torch.tensor([2.0]), rows=rows
    )
    terms, outside = trust_region.none(step, TrustSpec(kind="none"))
    assert terms.item() == pytest.approx(1.4)
    assert not outside.item()


probabilities = st.floats(0.02, 0.98)


def far_apart(divergence, p, q):
    if divergence == "tv":
        return abs(p - q)
    return q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))


@pytest.mark.parametrize("divergence", ["tv", "kl"])
@given(p=probabilities, q=probabilities, advantage=advantages, low=st.floats(0.01, 0.5), high=st.floats(0.01, 0.5))
def test_divergence_mask_stops_what_goes_on_beyond_the_threshold(divergence, p, q, advantage, low, high):
    assume(all(abs(far_apart(divergence, p, q) - edge) > 1e-6 for edge in (low, high)))
    options = {"divergence": divergence, "low": low, "high": high, "cap": 20.0}
    _, slope, outside = gradient("divergence_mask", math.log(p / q), advantage, start=math.log(p), **options)
    goes_on = (advantage > 0 and p > q) or (advantage < 0 and p < q)
    stopped = goes_on and far_apart(divergence, p, q) > (high if advantage > 0 else low)
    assert slope == pytest.approx(0.0 if stopped else -min(p / q, 20) * advantage)
    assert outside == (stopped or (p / q > 20 and advantage != 0))


@given(p=probabilities, q=probabilities, advantage=advantages)
def test_the_ends_of_the_divergence_threshold(p, q, advantage):
    assume(abs(p - q) > 1e-3)
    where = {"start": math.log(p), "cap": math.inf}
    free = gradient("none", math.log(p / q), advantage, start=math.log(p))[1]
    for divergence, never in (("tv", 1.0), ("kl", math.inf)):
        options = {"divergence": divergence, "low": never, "high": never, **where}
        assert gradient("divergence_mask", math.log(p / q), advantage, **options)[1] == pytest.approx(free)
        options |= {"low": 0.0, "high": 0.0}
        moving_on = advantage * (p - q) > 0
        _, slope, outside = gradient("divergence_mask", math.log(p / q), advantage, **options)
        assert slope == pytest.approx(0.0 if moving_on else free)
        assert outside == moving_on


@given(p=probabilities, q=probabilities, advantage=advantages)
def test_the_two_sides_of_the_divergence_mask_mirror_each_other(p, q, advantage):
    """Rising under A > 0 is masked by `high` as falling by as much under A < 0 by `low`."""
    start = {"start": math.log(p)}
    up = gradient("divergence_mask", math.log(p / q), advantage, low=0.1, high=0.3, **start)
    assume(abs(abs(p - q) - 0.1) > 1e-6)
    assume(abs(abs(p - q) - 0.3) > 1e-6)
    mirrored = {"start": math.log(1 - p), "low": 0.3, "high": 0.1}
    down = gradient("divergence_mask", math.log((1 - p) / (1 - q)), -advantage, **mirrored)
    assert (up[1] == 0) == (down[1] == 0)


@given(log_ratio=log_ratios, advantage=advantages, positive=bounds, negative=bounds)
def test_soft_gate_fades_without_an_edge(log_ratio, advantage, positive, negative):
    tau = positive if advantage > 0 else negative
    ratio = math.exp(log_ratio)
    s = sigmoid(tau * (ratio - 1))
    value, slope, _ = gradient("soft_gate", log_ratio, advantage, tau_positive=positive, tau_negative=negative)
    assert value == pytest.approx(-4 / tau * s * advantage)
    assert slope == pytest.approx(-4 * s * (1 - s) * ratio * advantage)
    assert abs(slope) <= abs(ratio * advantage) + 1e-12


@given(log_ratio=log_ratios, advantage=advantages, coef=st.floats(0, 3))
def test_kl_penalty_pulls_back(log_ratio, advantage, coef):
    ratio = math.exp(log_ratio)
    value, slope, outside = gradient("kl_penalty", log_ratio, advantage, coef=coef)
    assert value == pytest.approx(-ratio * advantage + coef * (ratio - 1 - log_ratio))
    assert slope == pytest.approx(-ratio * advantage + coef * (ratio - 1))
    assert not outside


@given(log_ratio=log_ratios, advantage=advantages)
def test_the_picked_tokens_of_the_covariance_kinds(log_ratio, advantage):
    ratio = math.exp(log_ratio)
    assert gradient("clip_cov", log_ratio, advantage) == gradient("clip", log_ratio, advantage)
    value, slope, outside = gradient("clip_cov", log_ratio, advantage, picked=True)
    assert (value, slope) == (0, 0)
    assert outside == (advantage != 0)
    assert gradient("kl_cov", log_ratio, advantage)[:2] == pytest.approx((-ratio * advantage, -ratio * advantage))
    assume(abs(log_ratio) > 1e-9)
    value, slope, outside = gradient("kl_cov", log_ratio, advantage, picked=True, coef=0.5)
    assert value == pytest.approx(-ratio * advantage + 0.5 * abs(log_ratio))
    assert slope == pytest.approx(-ratio * advantage + math.copysign(0.5, log_ratio))
    assert outside


@given(log_ratio=log_ratios, advantage=advantages)
def test_on_one_token_geo_mean_is_a_clip_in_log_space(log_ratio, advantage):
    off_the_edge(log_ratio, math.exp(-0.4), math.exp(0.3))
    low, high = 1 - math.exp(-0.4), math.exp(0.3) - 1
    clipped = gradient("clip", log_ratio, advantage, low=low, high=high)
    assert gradient("geo_mean", log_ratio, advantage, low=0.4, high=0.3) == pytest.approx(clipped)
