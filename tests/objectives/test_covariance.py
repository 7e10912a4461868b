from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings

from rlvr.objectives import build
from rlvr.objectives.covariance import pick
from rlvr.objectives.spec import TrustSpec

from .batches import full_layouts, make, seeds


def by_loops(advantages, logprobs):
    num = len(advantages)
    mean_a, mean_l = sum(advantages) / num, sum(logprobs) / num
    return [(a - mean_a) * (x - mean_l) for a, x in zip(advantages, logprobs, strict=True)]


def prepared_batch(layout, seed):
    experience, _ = make(layout, seed)
    return build({}).prepare(experience)[0]


@given(layout=full_layouts, seed=seeds)
@settings(max_examples=40)
def test_kl_cov_picks_the_largest(layout, seed):
    batch = prepared_batch(layout, seed)
    mask = batch.loss_mask
    spec = TrustSpec(kind="kl_cov", cov_share=0.3)
    picked = pick(batch.advantages, batch.old_logprobs, mask, spec, torch.Generator())
    values = by_loops(batch.advantages[mask].tolist(), batch.old_logprobs[mask].tolist())
    num = max(1, int(0.3 * len(values)))
    ordered = sorted(values)
    threshold = ordered[-num]
    assume(threshold - ordered[-num - 1] > 1e-12)  # else rounding decides which of two is the larger
    assert not picked[~mask].any()
    assert picked[mask].tolist() == [value >= threshold for value in values]


@given(layout=full_layouts, seed=seeds)
@settings(max_examples=40)
def test_clip_cov_draws_its_share_from_the_band(layout, seed):
    batch = prepared_batch(layout, seed)
    mask = batch.loss_mask
    spec = TrustSpec(kind="clip_cov", cov_low=0.1, cov_high=0.8, cov_share=0.2)
    draws = [
        pick(batch.advantages, batch.old_logprobs, mask, spec, torch.Generator().manual_seed(i)) for i in range(20)
    ]
    values = by_loops(batch.advantages[mask].tolist(), batch.old_logprobs[mask].tolist())
    inside = torch.tensor([0.1 < value < 0.8 for value in values])
    wanted = min(max(1, int(0.2 * len(values))), int(inside.sum()))
    for picked in draws:
        assert not picked[~mask].any()
        assert int(picked.sum()) == wanted
        assert inside[picked[mask]].all()
    if wanted > 0 and int(inside.sum()) > 2 * wanted:
        assert len({tuple(picked.tolist()) for picked in draws}) > 1


def test_nothing_active_picks_nothing():
    nothing = torch.zeros(3, dtype=torch.float64)
    mask = torch.zeros(3, dtype=torch.bool)
    for kind in ("clip_cov", "kl_cov"):
        assert not pick(nothing, nothing, mask, TrustSpec(kind=kind), torch.Generator()).any()


WIDE = {"trust": {"kind": "clip_cov", "cov_low": -9.0, "cov_high": 9.0, "cov_share": 0.3}}


def test_draws_differ_by_step_and_by_seed_and_repeat():
    batch = prepared_batch([[9, 9], [9, 9]], 1)
    first, second, other = build(WIDE), build(WIDE), build(WIDE, seed=1)
    one, two = first.weights(batch).picked, first.weights(batch).picked
    assert not torch.equal(one, two)
    assert torch.equal(one, second.weights(batch).picked)
    assert not torch.equal(one, other.weights(batch).picked)


def test_the_anchor_says_whose_log_probs():
    batch = prepared_batch([[9, 9]], 1)
    batch = replace(batch, old_logprobs=None)
    with pytest.raises(ValueError, match="old_logprobs"):
        build(WIDE).weights(batch)
    spec = {"trust": {"kind": "kl_cov", "cov_share": 0.1}, "ratio": {"anchor": "rollout"}}
    picked = build(spec).weights(batch).picked
    mask = batch.loss_mask
    values = by_loops(batch.advantages[mask].tolist(), batch.rollout_logprobs[mask].tolist())
    assert picked[mask].tolist() == [value == max(values) for value in values]
