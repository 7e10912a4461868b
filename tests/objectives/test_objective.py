from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.objectives import build
from rlvr.objectives.aggregation import AGGREGATES

from . import golden, presets
from .batches import GARBAGE, full_layouts, gradient, layouts, make, seeds, take_rows, topk_now
from .golden_presets import PRESETS

every_preset = pytest.mark.parametrize("name", list(PRESETS))
KL_IN_LOSS = {"kl": {"placement": "loss", "coef": 0.1}, "entropy": {"coef": 0.01}}


@every_preset
@given(layout=layouts, seed=seeds)
@settings(max_examples=30)
def test_presets_are_the_papers_formulas(name, layout, seed):
    experience, policy = make(layout, seed)
    objective = presets.preset(name)
    prepared, _ = objective.prepare(experience)
    weights = objective.weights(prepared)
    loss, slope, metrics = gradient(objective, policy, prepared, weights=weights)
    rows = golden.rows_of(experience, policy, topk_now(experience), weights.picked)
    value, slopes = PRESETS[name](rows)
    torch.testing.assert_close(loss, torch.tensor(value, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    wanted = torch.tensor([g for row in slopes for g in row], dtype=torch.float64)
    torch.testing.assert_close(slope[experience.loss_mask], wanted, rtol=1e-9, atol=1e-9)
    assert not slope[~experience.loss_mask].any()
    assert all(value.isfinite() for value in metrics.values())


def test_every_preset_has_a_golden_formula():
    assert set(presets.NAMES) == set(PRESETS)


@every_preset
@given(layout=full_layouts, seed=seeds)
@settings(max_examples=10)
def test_on_policy_a_preset_is_its_advantages_alone(name, layout, seed):
    """At old = rollout = ref = current no trust region, no KL and no correction is felt."""
    experience, policy = make(layout, seed)
    experience = replace(experience, old_logprobs=policy, rollout_logprobs=policy, ref_logprobs=policy)
    objective = presets.preset(name)
    prepared, _ = objective.prepare(experience)
    weights = objective.weights(prepared)
    slope = gradient(objective, policy, prepared, weights=weights, topk_logprobs=experience.topk_logprobs)[1]
    wanted = -prepared.advantages * weights.aggregate
    if name == "clip_cov":
        wanted[weights.picked] = 0.0
    if name == "vapo":
        wanted = wanted - 0.1 * weights.correct
    torch.testing.assert_close(slope, wanted, rtol=1e-9, atol=1e-12)


ON_POLICY = {
    "reinforce": {"ratio": {"level": "none"}, "trust": {"kind": "none"}},
    "ratio alone": {"trust": {"kind": "none"}},
    "clip": {"trust": {"kind": "clip", "low": 0.1, "high": 0.5}},
    "dual clip": {"trust": {"kind": "clip", "dual": 3.0}},
    "weight clip": {"trust": {"kind": "weight_clip", "low": 1.0, "high": 4.0}},
    "divergence mask": {"trust": {"kind": "divergence_mask", "divergence": "kl", "low": 0.0, "high": 0.0}},
    "soft gate": {"trust": {"kind": "soft_gate", "tau_positive": 2.0, "tau_negative": 0.5}},
    "kl penalty": {"trust": {"kind": "kl_penalty", "coef": 3.0}},
    "kl cov": {"trust": {"kind": "kl_cov", "cov_share": 0.5}},
}


@given(layout=full_layouts, seed=seeds)
@settings(max_examples=8)
def test_on_policy_all_trust_regions_have_the_same_gradient(layout, seed):
    experience, policy = make(layout, seed)
    experience = replace(experience, old_logprobs=policy)
    for aggregate in AGGREGATES:
        slopes = {}
        for name, choice in ON_POLICY.items():
            objective = build({**choice, "aggregate": aggregate}, max_new_tokens=7)
            prepared, _ = objective.prepare(experience)
            slopes[name] = gradient(objective, policy, prepared)[1]
        wanted = -prepared.advantages * objective.weights(prepared).aggregate
        for slope in slopes.values():
            torch.testing.assert_close(slope, wanted, rtol=1e-9, atol=1e-12)


@given(layout=full_layouts, seed=seeds)
def test_on_policy_the_means_over_a_row_agree_under_sequence_mean(layout, seed):
    experience, policy = make(layout, seed)
    experience = replace(experience, old_logprobs=policy)
    token, sequence = build({}), build({"ratio": {"level": "sequence"}})
    prepared, _ = token.prepare(experience)
    wanted = gradient(token, policy, prepared)[1]
    for other in (sequence, build({"trust": {"kind": "geo_mean"}})):
        torch.testing.assert_close(gradient(other, policy, prepared)[1], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("aggregate", list(AGGREGATES))
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_product"])
@given(layout=layouts, seed=seeds, data=st.data())
@settings(max_examples=15)
def test_any_split_into_microbatches_sums_to_the_same(aggregate, level, layout, seed, data):
    spec = {"aggregate": aggregate, "ratio": {"level": level}, **KL_IN_LOSS, "filters": {"overlong_mask": True}}
    spec["correction"] = {"kind": "truncate", "level": "sequence", "high": 1.5}
    spec["filters"]["off_policy_mask"] = 0.1
    assert_same_in_parts(build(spec, max_new_tokens=7), *make(layout, seed), data)


@every_preset
@given(layout=layouts, seed=seeds, data=st.data())
@settings(max_examples=10)
def test_any_split_of_a_preset_sums_to_the_same(name, layout, seed, data):
    assert_same_in_parts(presets.preset(name), *make(layout, seed), data)


def assert_same_in_parts(objective, experience, policy, data):
    entropy = torch.where(experience.loss_mask, policy.square(), policy)
    prepared, _ = objective.prepare(experience)
    weights = objective.weights(prepared)
    whole, slope, metrics = gradient(objective, policy, prepared, weights=weights, entropy=entropy)
    order = data.draw(st.permutations(range(experience.num_rows)))
    cuts = sorted(data.draw(st.sets(st.integers(1, experience.num_rows))) | {0, experience.num_rows})
    total, parts = torch.zeros_like(policy), []
    for start, stop in pairwise(cuts):
        part, tokens = take_rows(prepared, order[start:stop])
        loss, part_slope, part_metrics = gradient(
            objective, policy[tokens], part, weights=weights[tokens], entropy=entropy[tokens]
        )
        total[tokens] += part_slope
        parts.append((loss, part_metrics))
    torch.testing.assert_close(total, slope)
    torch.testing.assert_close(sum(loss for loss, _ in parts), whole)
    for name, value in metrics.items():
        values = torch.stack([part_metrics[name] for _, part_metrics in parts])
        torch.testing.assert_close(values.max() if name.endswith("_max") else values.sum(), value)


# What Clip-Cov draws depends on the order of the rows, and so does KL-Cov's choice among equals.
@pytest.mark.parametrize("name", [name for name in PRESETS if not name.endswith("_cov")])
@given(layout=layouts, seed=seeds)
@settings(max_examples=12)
def test_order_names_and_garbage_outside_the_mask_change_nothing(name, layout, seed):
    experience, policy = make(layout, seed)
    objective = presets.preset(name)
    loss, slope, _ = gradient(objective, policy, objective.prepare(experience)[0])
    rng = torch.Generator().manual_seed(seed)
    moved, tokens = take_rows(experience, torch.randperm(experience.num_rows, generator=rng).tolist())
    other = GARBAGE[torch.randint(4, (len(tokens),), generator=rng)]
    moved = replace(moved, group_ids=7 - 3 * moved.group_ids)
    for field in ("rollout_logprobs", "old_logprobs", "ref_logprobs", "values", "step_rewards"):
        setattr(moved, field, torch.where(moved.loss_mask, getattr(moved, field), other))
    moved.topk_logprobs = torch.where(moved.loss_mask[:, None], moved.topk_logprobs, other[:, None])
    moved_policy = torch.where(moved.loss_mask, policy[tokens], other)
    moved_loss, moved_slope, _ = gradient(objective, moved_policy, objective.prepare(moved)[0])
    torch.testing.assert_close(moved_loss, loss)
    torch.testing.assert_close(moved_slope, slope[tokens])


@pytest.mark.parametrize("aggregate", list(AGGREGATES))
@given(layout=layouts, seed=seeds)
@settings(max_examples=40)
def test_doubling_the_batch_keeps_the_loss_and_halves_each_gradient(aggregate, layout, seed):
    objective = build({"aggregate": aggregate, **KL_IN_LOSS, "entropy": {"coef": 0.0}}, max_new_tokens=7)
    experience, policy = make(layout, seed)
    twice, tokens = take_rows(experience, list(range(experience.num_rows)) * 2)
    last = torch.arange(twice.num_rows) >= experience.num_rows
    twice = replace(twice, group_ids=torch.where(last, twice.group_ids + 1000, twice.group_ids))
    loss, slope, _ = gradient(objective, policy, objective.prepare(experience)[0])
    double_loss, double_slope, _ = gradient(objective, policy[tokens], objective.prepare(twice)[0])
    torch.testing.assert_close(double_loss, loss)
    torch.testing.assert_close(double_slope, torch.cat([slope, slope]) / 2)


@every_preset
@given(layout=full_layouts, seed=seeds)
@settings(max_examples=5)
def test_missing_old_logprobs_are_the_current_ones(name, layout, seed):
    objective = presets.preset(name)
    experience, policy = make(layout, seed)
    prepared, _ = objective.prepare(replace(experience, old_logprobs=policy))
    stored = gradient(objective, policy, prepared)
    if objective.needs_old:
        with pytest.raises(ValueError, match="old_logprobs"):
            gradient(objective, policy, replace(prepared, old_logprobs=None))
    else:
        fast = gradient(objective, policy, replace(prepared, old_logprobs=None))
        torch.testing.assert_close(fast[0], stored[0])
        torch.testing.assert_close(fast[1], stored[1])


@pytest.mark.parametrize(
    ("spec", "old", "reference"),
    [
        ({}, False, False),
        ({"minibatches": 2}, True, False),
        ({"epochs": 2, "ratio": {"anchor": "rollout"}}, False, False),
        ({"epochs": 2, "ratio": {"level": "none"}, "trust": {"kind": "none"}}, False, False),
        (
            {
                "epochs": 2,
                "ratio": {"level": "none"},
                "trust": {"kind": "none"},
                "correction": {"kind": "truncate"},
            },
            True,
            False,
        ),
        ({"correction": {"kind": "truncate"}}, False, False),
        ({"kl": {"placement": "loss", "coef": 0.1}}, False, True),
        ({"kl": {"placement": "loss", "coef": 0.0}}, False, False),
        ({"kl": {"placement": "reward", "estimator": "k1", "coef": 0.1}}, True, True),
        ({"trust": {"kind": "kl_cov"}}, True, False),
        ({"trust": {"kind": "kl_cov"}, "ratio": {"anchor": "rollout"}}, False, False),
    ],
)
def test_nothing_is_computed_that_is_not_needed(spec, old, reference):
    objective = build(spec)
    assert (objective.needs_old, objective.needs_reference) == (old, reference)


def test_entropy_enters_as_a_token_mean_bonus():
    objective = build({"aggregate": "sequence_sum", "entropy": {"coef": 0.5}})
    assert objective.needs_entropy
    experience, policy = make([[2, 3]], 0)
    prepared, _ = objective.prepare(experience)
    entropy = torch.full_like(policy, 2.0).requires_grad_()
    loss, metrics = objective.loss(policy, prepared, entropy=entropy)
    loss.backward()
    assert metrics["policy/entropy"].item() == pytest.approx(2.0)
    assert entropy.grad[prepared.loss_mask].tolist() == pytest.approx([-0.1] * 5)
    with pytest.raises(ValueError, match="entropy"):
        objective.loss(policy, prepared)


def test_what_is_missing_is_named():
    experience, policy = make([[2, 2]], 0)
    with pytest.raises(ValueError, match="prepare"):
        build({}).loss(policy, experience)
    for name, missing in [
        ("rloo", "ref_logprobs"),
        ("rloo", "old_logprobs"),
        ("ppo", "values"),
        ("grpo_process", "step_ends"),
    ]:
        with pytest.raises(ValueError, match=missing):
            presets.preset(name).prepare(replace(experience, **{missing: None}))
    for name, missing in [("dppo_topk_tv", "topk_logprobs"), ("grpo", "ref_logprobs"), ("kl_cov", "old_logprobs")]:
        objective = presets.preset(name)
        prepared, _ = objective.prepare(experience)
        with pytest.raises(ValueError, match=missing):
            objective.loss(policy, replace(prepared, **{missing: None}))
    exact = build({"kl": {"placement": "loss", "estimator": "exact", "coef": 0.1}})
    with pytest.raises(ValueError, match="exact_kl"):
        exact.loss(policy, exact.prepare(experience)[0])
    critic = presets.preset("ppo")
    with pytest.raises(ValueError, match="returns"):
        critic.value_loss(policy, experience, critic.weights(experience))


def test_what_is_needed_beyond_log_probs():
    assert presets.preset("dppo_topk_kl").needs_top_k == 20
    assert presets.preset("dppo_tv").needs_top_k == 0
    assert presets.preset("a2c").needs_critic
    assert not presets.preset("grpo").needs_critic
    assert presets.preset("grpo_process").needs_step_rewards
    assert not presets.preset("grpo").needs_step_rewards
    assert build({"kl": {"placement": "loss", "estimator": "exact", "coef": 0.1}}).needs_exact_kl
    assert not build({"kl": {"placement": "loss", "estimator": "exact"}}).needs_exact_kl


def test_metrics_of_a_batch_worked_by_hand():
    objective = build({"aggregate": "token_mean"})
    experience, policy = make([[1, 1]], 0)
    experience.rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    mask = experience.loss_mask
    experience.old_logprobs[mask] = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    experience.rollout_logprobs[mask] = torch.tensor([-1.0, -1.5], dtype=torch.float64)
    policy[mask] = torch.tensor([-0.5, -1.0], dtype=torch.float64)
    prepared, rows = objective.prepare(experience)
    _, metrics = objective.loss(policy, prepared)
    e = torch.tensor(0.5, dtype=torch.float64).exp().item()
    assert rows == {"groups/zero_variance": 0.0}
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(
        {
            "policy/loss": (-1.2 + 1.0) / 2,
            "policy/ratio_max": e,
            "policy/clip_fraction": 0.5,
            "policy/kl_anchor": (e - 1.5 + 0.0) / 2,
            "mismatch/kl": (e - 1.5) / 2,
            "mismatch/ratio_max": e,
        }
    )


def test_likelihood_of_correct_rows_is_a_mean_over_their_tokens():
    objective = build({"nll_coef": 0.5, "advantage": {"baseline": "none", "scale": "none"}})
    experience, policy = make([[1, 3, 2]], 4)
    experience = replace(experience, rewards=torch.zeros(3, dtype=torch.float64), old_logprobs=policy)
    lengths = [int((experience.loss_mask & (experience.row_ids == i)).sum()) for i in range(3)]
    experience.correct = torch.tensor([True, False, True])
    prepared, _ = objective.prepare(experience)
    loss, slope, metrics = gradient(objective, policy, prepared)
    right = experience.loss_mask & (experience.row_ids != 1)
    assert loss.item() == pytest.approx(-0.5 * policy[right].mean().item())
    assert metrics["policy/nll"].item() == pytest.approx(-policy[right].mean().item())
    assert slope[right].tolist() == pytest.approx([-0.5 / (lengths[0] + lengths[2])] * int(right.sum()))
    assert not slope[~right].any()
    experience.correct = torch.zeros(3, dtype=torch.bool)
    assert gradient(objective, policy, objective.prepare(experience)[0])[0].item() == 0


def test_a_checkpoint_keeps_what_outlives_a_step():
    spec = {"kl": {"placement": "loss", "coef": 1.0}, "controller": {"kind": "band", "target": 0.1}}
    spec |= {"trust": {"kind": "clip_cov", "cov_low": -9.0, "cov_high": 9.0, "cov_share": 0.3}}
    objective, resumed = build(spec), build(spec)
    experience, _ = make([[4, 4], [5, 3]], 2)
    prepared, _ = objective.prepare(experience)
    objective.weights(prepared)
    objective.after_update({"policy/kl_ref": 1.0}, 4)
    assert objective.kl_coef == 2.0
    resumed.load_state_dict(objective.state_dict())
    for one, other in [(objective, resumed)] * 2:
        assert torch.equal(one.weights(prepared).picked, other.weights(prepared).picked)
        one.after_update({"policy/kl_ref": 0.0}, 4)
        other.after_update({"policy/kl_ref": 0.0}, 4)
    assert objective.state_dict() == resumed.state_dict()
    assert resumed.kl_coef == 0.5


def test_a_fixed_coefficient_is_the_configured_one_also_after_resuming():
    before, after = (build({"kl": {"placement": "loss", "coef": coef}}) for coef in (0.1, 0.2))
    before.after_update({"policy/kl_ref": 9.0}, 64)
    after.load_state_dict(before.state_dict())
    assert after.kl_coef == 0.2
