"""What holds for any objective on any ragged batch, through `build`, `prepare`, `weights` and `loss` alone."""

import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.objectives import build
from rlvr.objectives.aggregation import AGGREGATES

from . import presets
from .batches import GARBAGE, TOKEN_FIELDS, full_layouts, gradient, layouts, make, seeds, take_rows, topk_now

every_preset = pytest.mark.parametrize("name", presets.NAMES)
GROUPED = {"group_mean", "leave_one_out"}
TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}


def loss_of(objective, experience, policy):
    """Loss, gradient and metrics of a whole batch."""
    prepared, _ = objective.prepare(experience)
    return gradient(objective, policy, prepared)


# ---- what is not in the mask


def padded(experience, policy, seed):
    """The batch with garbage tokens outside the mask put between any two tokens, and the index [T] of the old ones."""
    rng = torch.Generator().manual_seed(seed)
    copies = 1 + (torch.rand(len(policy), generator=rng) < 0.5).long()
    source = torch.arange(len(policy)).repeat_interleave(copies)
    first = torch.cat([torch.tensor([True]), source[1:] != source[:-1]])
    rubbish = GARBAGE[torch.randint(4, (len(source),), generator=rng)]
    changes = {"row_ids": experience.row_ids[source]}
    for field in fields(experience):
        value = getattr(experience, field.name)
        if value is None or field.name not in TOKEN_FIELDS:
            continue
        outside = torch.zeros_like(source) > 0 if value.dtype == torch.bool else rubbish
        shape = (-1, *[1] * (value.dim() - 1))
        changes[field.name] = torch.where(first.view(shape), value[source], outside.view(shape))
    return replace(experience, **changes), torch.where(first, policy[source], rubbish), first


@every_preset
@given(layout=layouts, seed=seeds)
@settings(max_examples=8)
def test_padding_anywhere_changes_nothing(name, layout, seed):
    experience, policy = make(layout, seed)
    wider, wide_policy, old = padded(experience, policy, seed)
    loss, slope, _ = loss_of(presets.preset(name), experience, policy)
    wide_loss, wide_slope, _ = loss_of(presets.preset(name), wider, wide_policy)
    torch.testing.assert_close(wide_loss, loss, **TOLERANCE)
    torch.testing.assert_close(wide_slope[old], slope, **TOLERANCE)
    assert not wide_slope[~old].any()


@every_preset
def test_a_batch_without_a_loss_token_has_loss_zero_and_finite_metrics(name):
    experience, policy = make([[0, 0], [0]], 3)
    objective = presets.preset(name)
    loss, slope, metrics = loss_of(objective, experience, policy)
    assert loss.item() == 0
    assert not slope.any()
    assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize("name", [n for n in presets.NAMES if presets.preset(n).spec.advantage.baseline in GROUPED])
@given(seed=seeds)
@settings(max_examples=3)
def test_groups_of_one_and_of_equal_rewards_have_no_advantage(name, seed):
    objective = presets.preset(name)
    experience, _ = make([[3], [2], [2, 4, 1]], seed)
    experience.rewards = torch.full_like(experience.rewards, 0.1)
    experience.step_rewards = torch.full_like(experience.step_rewards, 0.1)
    experience.ref_logprobs = experience.old_logprobs  # no KL in the reward
    assert not objective.prepare(experience)[0].advantages.any()


# ---- splits


@every_preset
@given(layout=layouts, seed=seeds, data=st.data())
@settings(max_examples=5)
def test_ranks_and_their_microbatches_sum_to_the_whole_gradient(name, layout, seed, data):
    """Of a shared weight: each rank holds some rows and cuts them once more; its weights are those of all ranks."""
    experience, policy = make(layout, seed)
    objective = presets.preset(name)
    prepared, _ = objective.prepare(experience)
    weights = objective.weights(prepared)
    shared = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    offset = torch.where(experience.loss_mask, policy, 0.0).detach()

    def backward(rows):
        part, tokens = take_rows(prepared, rows)
        logprobs = offset[tokens] * shared
        topk = topk_now(part) if objective.needs_top_k else None
        loss, _ = objective.loss(logprobs, part, weights[tokens], topk_logprobs=topk)
        return torch.autograd.grad(loss, shared)[0]

    everyone = range(experience.num_rows)
    whole = backward(list(everyone))
    world_size = data.draw(st.integers(1, 3))
    rank_of = [data.draw(st.integers(0, world_size - 1)) for _ in everyone]
    per_rank = []
    for rank in range(world_size):
        mine = [row for row in everyone if rank_of[row] == rank]
        per_rank.append(sum((backward(part) for part in (mine[::2], mine[1::2]) if part), torch.zeros_like(whole)))
    torch.testing.assert_close(sum(per_rank), whole, **TOLERANCE)
    averaged = torch.stack([gradient * world_size for gradient in per_rank]).mean()  # where the backend averages
    torch.testing.assert_close(averaged, whole, **TOLERANCE)


@pytest.mark.parametrize("aggregate", list(AGGREGATES))
@given(layout=layouts, seed=seeds, a=st.floats(-2, 2), b=st.floats(-2, 2))
@settings(max_examples=15)
def test_an_aggregate_is_linear_in_its_terms(aggregate, layout, seed, a, b):
    objective = build({"ratio": {"level": "none"}, "trust": {"kind": "none"}, "aggregate": aggregate}, max_new_tokens=7)
    experience, policy = make(layout, seed)
    one = objective.prepare(experience)[0]
    other = replace(one, advantages=torch.where(one.loss_mask, policy.square(), 0.0))
    both = replace(one, advantages=a * one.advantages + b * other.advantages)
    losses = [objective.loss(policy, batch)[0] for batch in (one, other, both)]
    torch.testing.assert_close(losses[2], a * losses[0] + b * losses[1], **TOLERANCE)


# ---- ratios


@pytest.mark.parametrize("aggregate", list(AGGREGATES))
@given(rows=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=seeds)
@settings(max_examples=15)
def test_on_one_token_rows_all_ratios_are_the_tokens(aggregate, rows, seed):
    experience, policy = make([[1] * n for n in rows], seed)
    found = []
    for level in ("token", "sequence", "sequence_product"):
        spec = {"ratio": {"level": level}, "aggregate": aggregate}
        found.append(loss_of(build(spec, max_new_tokens=7), experience, policy)[:2])
    for loss, slope in found[1:]:
        torch.testing.assert_close(loss, found[0][0], **TOLERANCE)
        torch.testing.assert_close(slope, found[0][1], **TOLERANCE)


@given(layout=full_layouts, seed=seeds)
@settings(max_examples=20)
def test_a_sequence_ratio_does_not_see_which_token_moved(layout, seed):
    experience, policy = make(layout, seed)
    moved = policy - experience.old_logprobs
    swapped = moved.clone()
    for row in range(experience.num_rows):
        (active,) = torch.nonzero(experience.loss_mask & (experience.row_ids == row), as_tuple=True)
        swapped[active] = moved[active.flip(0)]
    objective = presets.preset("gspo")
    loss, slope, _ = loss_of(objective, experience, policy)
    other_loss, other_slope, _ = loss_of(objective, experience, experience.old_logprobs + swapped)
    torch.testing.assert_close(other_loss, loss, **TOLERANCE)
    torch.testing.assert_close(other_slope, slope, **TOLERANCE)


@given(layout=full_layouts, seed=seeds)
@settings(max_examples=20)
def test_inside_the_bounds_clip_and_weight_clip_are_importance_weighted_reinforce(layout, seed):
    experience, policy = make(layout, seed, spread=0.1)
    free = loss_of(build({"trust": {"kind": "none"}}), experience, policy)[1]
    wide = {"low": 1.0, "high": 1e3}
    for trust in ({"kind": "clip", **wide}, {"kind": "weight_clip", **wide}, {"kind": "clip", "low": 1e9, "high": 1e9}):
        torch.testing.assert_close(loss_of(build({"trust": trust}), experience, policy)[1], free, **TOLERANCE)


def test_a_ratio_beyond_e_to_the_20_is_finite_and_has_no_gradient():
    experience, policy = make([[2, 2]], 1)
    experience.rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    first, second = torch.nonzero(experience.loss_mask).flatten()[:2]
    experience.old_logprobs[first], experience.old_logprobs[second] = policy[first] - 800, policy[second] + 800
    loss, slope, metrics = loss_of(build({"trust": {"kind": "none"}}), experience, policy)
    assert loss.isfinite()
    assert metrics["policy/ratio_max"].item() == pytest.approx(math.exp(20))
    assert slope[first] == slope[second] == 0
    assert slope[experience.loss_mask].count_nonzero() == 2


# ---- where the trust region stops the gradient


def ratio_cells(low, high, dual=math.inf):
    """The cells of the clip, by the ratio: too high already for A > 0, too low already for A < 0."""
    return lambda p, q, a: (a > 0 and p / q > 1 + high) or (a < 0 and (p / q < 1 - low or p / q > dual))


def divergence_cells(divergence, low, high):
    return lambda p, q, a: a * (p - q) > 0 and divergence(p, q) > (high if a > 0 else low)


def binary_kl(p, q):
    return q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))


CELLS = {
    "none": ({"kind": "none"}, lambda p, q, a: False),
    "clip": ({"kind": "clip", "low": 0.1, "high": 0.3}, ratio_cells(0.1, 0.3)),
    "dual clip": ({"kind": "clip", "dual": 1.5}, ratio_cells(0.2, 0.2, 1.5)),
    "weight clip": ({"kind": "weight_clip", "low": 0.5, "high": 0.1}, lambda p, q, a: False),
    "soft gate": ({"kind": "soft_gate"}, lambda p, q, a: False),
    "tv": (
        {"kind": "divergence_mask", "divergence": "tv", "low": 0.05, "high": 0.1},
        divergence_cells(lambda p, q: abs(p - q), 0.05, 0.1),
    ),
    "kl": (
        {"kind": "divergence_mask", "divergence": "kl", "low": 0.02, "high": 0.05},
        divergence_cells(binary_kl, 0.02, 0.05),
    ),
    # On its own log-ratio each token stops at e^0.2 or e^-0.1, though the row's mean goes on.
    "geometric mean": (
        {"kind": "geo_mean", "low": 0.1, "high": 0.2},
        ratio_cells(1 - math.exp(-0.1), math.exp(0.2) - 1),
    ),
}


@pytest.mark.parametrize("name", list(CELLS))
@given(layout=full_layouts, seed=seeds)
@settings(max_examples=25)
def test_the_gradient_is_zero_exactly_where_the_trust_region_says_so(name, layout, seed):
    trust, cut = CELLS[name]
    objective = build({"trust": trust})
    experience, policy = make(layout, seed)
    prepared, _ = objective.prepare(experience)
    _, slope, metrics = gradient(objective, policy, prepared)
    outside, num_cut = ~experience.loss_mask, 0
    for token in torch.nonzero(experience.loss_mask).flatten().tolist():
        p, q = math.exp(policy[token]), math.exp(experience.old_logprobs[token])
        advantage = float(prepared.advantages[token])
        stopped = cut(p, q, advantage)
        num_cut += stopped
        assert (slope[token] == 0) == (stopped or advantage == 0)
    assert not slope[outside].any()
    if name != "weight clip":
        share = num_cut / int(experience.loss_mask.sum())
        assert metrics["policy/clip_fraction"].item() == pytest.approx(share)


@given(layout=full_layouts, seed=seeds)
@settings(max_examples=25)
def test_a_sequence_clip_stops_whole_rows(layout, seed):
    objective = build({"ratio": {"level": "sequence"}, "trust": {"kind": "clip", "low": 0.02, "high": 0.03}})
    experience, policy = make(layout, seed)
    prepared, _ = objective.prepare(experience)
    slope = gradient(objective, policy, prepared)[1]
    for row in range(experience.num_rows):
        mine = experience.loss_mask & (experience.row_ids == row)
        ratio = math.exp((policy - experience.old_logprobs)[mine].mean())
        advantage = float(prepared.advantages[mine][0])
        stopped = ratio_cells(0.02, 0.03)(ratio, 1.0, advantage) or advantage == 0
        assert (slope[mine] == 0).tolist() == [stopped] * int(mine.sum())


# ---- precision


# What Clip-Cov draws and KL-Cov picks among near-equals is for rounding to decide.
@pytest.mark.parametrize("name", [name for name in presets.NAMES if not name.endswith("_cov")])
@given(layout=full_layouts, seed=seeds)
@settings(max_examples=4)
def test_float32_agrees_with_float64(name, layout, seed):
    experience, policy = make(layout, seed)
    loss, slope, metrics = loss_of(presets.preset(name), experience, policy)
    names = ("rollout_logprobs", "old_logprobs", "ref_logprobs", "values", "final_values", "topk_logprobs")
    single = replace(experience, **{name: getattr(experience, name).float() for name in names})
    found_loss, found_slope, found_metrics = loss_of(presets.preset(name), single, policy.float())
    assert found_loss.dtype == found_slope.dtype == torch.float32
    torch.testing.assert_close(found_loss.double(), loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found_slope.double(), slope, rtol=1e-5, atol=1e-5)
    for key, value in metrics.items():
        torch.testing.assert_close(found_metrics[key].double(), value, rtol=1e-4, atol=1e-5)
