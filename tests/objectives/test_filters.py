from dataclasses import replace

import pytest
import torch
from hypothesis import given

from rlvr.objectives import build

from .batches import layouts, make, seeds


def gradient(objective, experience, policy):
    prepared, metrics = objective.prepare(experience)
    policy = policy.clone().requires_grad_()
    objective.loss(policy, prepared)[0].backward()
    return policy.grad, prepared, metrics


@pytest.mark.parametrize("aggregate", ["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"])
@given(layout=layouts, seed=seeds)
def test_dropping_groups_without_signal_changes_the_scale_only(aggregate, layout, seed):
    experience, policy = make(layout, seed)
    on = {"zero_variance": True, "zero_variance_on": "reward"}
    plain = build({"aggregate": aggregate}, max_new_tokens=7)
    dropping = build({"aggregate": aggregate, "filters": on}, max_new_tokens=7)
    without, _, _ = gradient(plain, experience, policy)
    with_, prepared, metrics = gradient(dropping, experience, policy)
    norms = without.norm(), with_.norm()
    if norms[0] == 0:
        assert norms[1] == 0
    else:
        torch.testing.assert_close(without / norms[0], with_ / norms[1])
        assert norms[1] >= norms[0] - 1e-12
    groups = {int(g) for g in experience.group_ids}
    flat = {g for g in groups if experience.rewards[experience.group_ids == g].unique().numel() == 1}
    assert metrics["groups/zero_variance"] == metrics["groups/dropped"] == pytest.approx(len(flat) / len(groups))
    assert prepared.kept.tolist() == [int(g) not in flat for g in experience.group_ids]
    assert not prepared.loss_mask[~prepared.kept[prepared.row_ids]].any()


def batch():
    """Two groups of three rows of two tokens each, nothing masked."""
    experience, policy = make([[2, 2, 2], [2, 2, 2]], 5)
    group_ids = torch.tensor([0, 0, 0, 1, 1, 1])
    return replace(experience, group_ids=group_ids), policy


def test_zero_variance_looks_at_the_outcome_unless_told_otherwise():
    experience, _ = batch()
    experience.rewards = torch.tensor([0.0, -0.5, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    experience.correct = experience.rewards == 1
    outcome, _ = build({"filters": {"zero_variance": True}}).prepare(experience)
    assert outcome.kept.tolist() == [False] * 3 + [True] * 3
    reward, _ = build({"filters": {"zero_variance": True, "zero_variance_on": "reward"}}).prepare(experience)
    assert reward.kept.all()


def test_truncated_rows_leave_the_loss_but_not_the_baseline():
    experience, policy = batch()
    experience.rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.0], dtype=torch.float64)
    experience.truncated = torch.tensor([False, True, False, False, False, False])
    spec = {"advantage": {"baseline": "group_mean", "scale": "none"}, "filters": {"overlong_mask": True}}
    slope, prepared, _ = gradient(build(spec), experience, policy)
    assert not slope[prepared.row_ids == 1].any()
    assert prepared.kept.all()
    first = prepared.advantages[(prepared.row_ids == 0) & prepared.loss_mask]
    assert first.tolist() == pytest.approx([0.5, 0.5])
    spec["filters"]["overlong_in_baseline"] = False
    _, prepared, _ = gradient(build(spec), experience, policy)
    first = prepared.advantages[(prepared.row_ids == 0) & prepared.loss_mask]
    assert first.tolist() == pytest.approx([0.25, 0.25])


def test_when_everything_is_dropped_the_loss_is_zero_and_finite():
    experience, policy = batch()
    experience.rewards = torch.ones(6, dtype=torch.float64)
    experience.correct = torch.ones(6, dtype=torch.bool)
    for aggregate in ("sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"):
        spec = {"aggregate": aggregate, "filters": {"zero_variance": True}}
        slope, _, metrics = gradient(build(spec, max_new_tokens=7), experience, policy)
        assert not slope.any()
        assert metrics["groups/dropped"] == 1.0


def test_rows_that_have_moved_away_lose_their_negative_advantages():
    experience, policy = batch()
    experience.rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.0], dtype=torch.float64)
    experience.rollout_logprobs = policy.clone()
    experience.rollout_logprobs[experience.row_ids <= 1] += 0.6  # on average less likely now, by 0.6 a token
    spec = {"advantage": {"scale": "none"}, "aggregate": "token_mean", "filters": {"off_policy_mask": 0.5}}
    experience.old_logprobs = policy.clone()
    masked, prepared, _ = gradient(build(spec), experience, policy)
    spec["filters"]["off_policy_mask"] = 0.7
    free, _, _ = gradient(build(spec), experience, policy)
    moved = prepared.loss_mask & (prepared.row_ids == 1)
    assert free[moved].all()
    assert not masked[moved].any()
    torch.testing.assert_close(masked[~moved], free[~moved])  # the normaliser counts them still
    metrics = build({**spec, "filters": {"off_policy_mask": 0.5}}).loss(policy, prepared)[1]
    assert metrics["policy/off_policy_fraction"].item() == pytest.approx(2 / 12)
