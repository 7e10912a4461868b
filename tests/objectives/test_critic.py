from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.objectives import build
from rlvr.objectives.critic import gae, policy_lambda, value_terms
from rlvr.objectives.segments import Segments
from rlvr.objectives.spec import CriticSpec

from . import golden
from .batches import layouts, make, seeds, take_rows, topk_now

CRITIC = {"advantage": {"baseline": "critic", "scale": "none"}}
unit = st.floats(0, 1)


def rows_through(experience):
    return Segments(experience.row_ids, experience.loss_mask, experience.num_rows)


def lams(experience, lam):
    return torch.full((experience.num_rows,), lam, dtype=torch.float64)


@given(layout=layouts, seed=seeds, gamma=unit, lam=unit)
@settings(max_examples=40)
def test_gae_is_the_backward_recursion_over_active_tokens(layout, seed, gamma, lam):
    experience, policy = make(layout, seed)
    rewards = torch.randn(len(policy), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = rows_through(experience)
    final = experience.final_values
    found = gae(rows.select(rewards), experience.values, rows, gamma, lams(experience, lam), final)
    for i in range(experience.num_rows):
        later, following = 0.0, float(final[i])
        active = torch.nonzero(experience.loss_mask & (experience.row_ids == i)).flatten().tolist()
        for t in reversed(active):
            value = float(experience.values[t])
            later = float(rewards[t]) + gamma * following - value + gamma * lam * later
            following = value
            assert found[t].item() == pytest.approx(later, rel=1e-9, abs=1e-9)
    assert not found[~experience.loss_mask].any()


@given(layout=layouts, seed=seeds)
@settings(max_examples=30)
def test_the_two_ends_of_lambda(layout, seed):
    experience, policy = make(layout, seed)
    rows = rows_through(experience)
    rewards, values = rows.last(experience.rewards), rows.select(experience.values)
    monte_carlo = gae(rewards, experience.values, rows, 1.0, lams(experience, 1.0))
    torch.testing.assert_close(monte_carlo, rows.spread(experience.rewards) - values, rtol=1e-9, atol=1e-9)
    one_step = gae(rewards, experience.values, rows, 0.9, lams(experience, 0.0))
    for i in range(experience.num_rows):
        active = torch.nonzero(experience.loss_mask & (experience.row_ids == i)).flatten()
        following = [*values[active[1:]].tolist(), 0.0]
        errors = rewards[active] + 0.9 * torch.tensor(following, dtype=torch.float64)[: len(active)] - values[active]
        torch.testing.assert_close(one_step[active], errors)
    nothing = torch.zeros_like(policy)
    to_go = gae(rewards, nothing, rows, 1.0, lams(experience, 1.0))
    torch.testing.assert_close(to_go, rows.spread(experience.rewards))


@given(layout=layouts, seed=seeds, lam=unit)
@settings(max_examples=30)
def test_an_exact_critic_leaves_no_advantage(layout, seed, lam):
    experience, _ = make(layout, seed)
    exact = replace(experience, values=experience.rewards[experience.row_ids])
    objective = build({**CRITIC, "critic": {"lam_policy": lam}})
    prepared, _ = objective.prepare(exact)
    torch.testing.assert_close(prepared.advantages, torch.zeros_like(prepared.advantages), rtol=0, atol=1e-12)


@given(layout=layouts, seed=seeds, lam=unit)
@settings(max_examples=30)
def test_holes_are_as_if_they_were_not_there(layout, seed, lam):
    experience, _ = make(layout, seed)
    objective = build({**CRITIC, "critic": {"lam_policy": lam, "lam_critic": 0.5}})
    prepared, _ = objective.prepare(experience)
    mask = experience.loss_mask
    short = replace(
        experience,
        row_ids=experience.row_ids[mask],
        loss_mask=mask[mask],
        values=experience.values[mask],
        rollout_logprobs=experience.rollout_logprobs[mask],
    )
    without, _ = objective.prepare(short)
    torch.testing.assert_close(prepared.advantages[mask], without.advantages)
    torch.testing.assert_close(prepared.returns[mask], without.returns)
    assert not prepared.returns[~mask].any()


def one_row(values, reward=1.0, truncated=False):
    experience, _ = make([[1]], 0)
    size = len(values)
    return replace(
        experience,
        rewards=torch.tensor([reward], dtype=torch.float64),
        truncated=torch.tensor([truncated]),
        row_ids=torch.zeros(size, dtype=torch.int64),
        loss_mask=torch.ones(size, dtype=torch.bool),
        rollout_logprobs=torch.zeros(size, dtype=torch.float64),
        values=torch.tensor(values, dtype=torch.float64),
        final_values=torch.tensor([0.8], dtype=torch.float64),
    )


def test_targets_have_a_lambda_of_their_own():
    prepared, _ = build({**CRITIC, "critic": {"lam_policy": 0.0, "lam_critic": 1.0}}).prepare(one_row([0.2, 0.5]))
    assert prepared.advantages.tolist() == pytest.approx([0.3, 0.5])
    assert prepared.returns.tolist() == pytest.approx([1.0, 1.0])


def test_targets_are_made_before_whitening():
    spec = {"advantage": {"baseline": "critic", "scale": "whiten_tokens"}}
    prepared, _ = build(spec).prepare(one_row([0.2, 0.5]))
    assert prepared.returns.tolist() == pytest.approx([1.0, 1.0])
    assert prepared.advantages.tolist() == pytest.approx([1.0, -1.0], rel=1e-5)


@pytest.mark.parametrize(("truncated", "bootstrap", "end"), [(True, True, 0.8), (True, False, 0), (False, True, 0)])
def test_a_truncated_row_may_go_on_at_the_value_of_its_last_state(truncated, bootstrap, end):
    objective = build({**CRITIC, "critic": {"bootstrap_truncated": bootstrap}})
    prepared, _ = objective.prepare(one_row([0.2, 0.5], truncated=truncated))
    assert prepared.returns.tolist() == pytest.approx([1 + end] * 2)
    if bootstrap:
        with pytest.raises(ValueError, match="final_values"):
            objective.prepare(replace(one_row([0.2, 0.5]), final_values=None))


def test_process_rewards_reach_the_critic_where_the_steps_end():
    spec = {"advantage": {"baseline": "critic", "scale": "none", "credit": "process"}}
    example = one_row([0.0, 0.0, 0.0], reward=100.0)
    example.step_rewards = torch.tensor([0.5, 7.0, -0.25], dtype=torch.float64)
    example.step_ends = torch.tensor([True, False, True])
    assert build(spec).prepare(example)[0].returns.tolist() == pytest.approx([0.25, -0.25, -0.25])


def test_the_length_adaptive_lambda():
    rows = Segments(torch.repeat_interleave(torch.arange(3), torch.tensor([1, 40, 100])), torch.ones(141) > 0, 3)
    assert policy_lambda(CriticSpec(lam_alpha=0.05), rows).tolist() == pytest.approx([0.0, 0.5, 0.8])
    empty = Segments(torch.zeros(1, dtype=torch.int64), torch.zeros(1) > 0, 1)
    assert policy_lambda(CriticSpec(lam_alpha=0.05), empty).tolist() == [0.0]


@given(layout=layouts, seed=seeds, clip=st.sampled_from([None, 0.0, 0.2, 1.0]))
@settings(max_examples=30)
def test_the_value_loss_is_the_larger_of_two_squares(layout, seed, clip):
    experience, current = make(layout, seed)
    objective = build({**CRITIC, "critic": {"value_clip": clip, "coef": 0.1}})
    prepared, _ = objective.prepare(experience)
    values = current.clone().requires_grad_()
    loss, metrics = objective.value_loss(values, prepared)
    loss.backward()
    rows = golden.rows_of(experience, current, topk_now(experience))
    num_tokens = sum(len(row.tokens) for row in rows)
    total, clipped, slopes = 0.0, 0, []
    for row in rows:
        for token in row.tokens:
            new, target = token.policy, row.reward
            held = new if clip is None else max(token.value - clip, min(new, token.value + clip))
            free, bound = (new - target) ** 2, (held - target) ** 2
            total += max(free, bound) / 2
            clipped += bound > free
            slopes.append(0.0 if bound > free and held != new else 0.1 * (new - target) / num_tokens)
    assert loss.item() == pytest.approx(0.1 * total / max(num_tokens, 1))
    assert metrics["critic/loss"].item() == pytest.approx(total / max(num_tokens, 1))
    assert metrics["critic/clip_fraction"].item() == pytest.approx(clipped / max(num_tokens, 1))
    assert values.grad[experience.loss_mask].tolist() == pytest.approx(slopes)
    assert not values.grad[~experience.loss_mask].any()


@given(layout=layouts, seed=seeds)
@settings(max_examples=20)
def test_the_value_loss_adds_over_rows(layout, seed):
    experience, current = make(layout, seed)
    objective = build(CRITIC)
    prepared, _ = objective.prepare(experience)
    weights = objective.weights(prepared)
    whole, _ = objective.value_loss(current, prepared, weights)
    parts = []
    for i in range(experience.num_rows):
        part, tokens = take_rows(prepared, [i])
        parts.append(objective.value_loss(current[tokens], part, weights[tokens])[0])
    torch.testing.assert_close(sum(parts), whole)


def test_values_fit_the_targets_by_descent():
    objective = build(CRITIC)
    prepared, _ = objective.prepare(one_row([0.2, 0.5, 0.9]))
    values = prepared.values.clone().requires_grad_()
    for _ in range(200):
        loss, _ = objective.value_loss(values, replace(prepared, values=values.detach()))
        (slope,) = torch.autograd.grad(loss, values)
        values = (values - slope).detach().requires_grad_()
    assert values.tolist() == pytest.approx([1.0] * 3, abs=1e-6)


def test_the_policy_waits_for_the_critics_warm_up():
    objective = build({**CRITIC, "critic": {"warmup_steps": 2}})
    seen = []
    for _ in range(3):
        seen.append(objective.trains_policy)
        objective.after_update({}, 8)
    assert seen == [False, False, True]
    resumed = build({**CRITIC, "critic": {"warmup_steps": 4}})
    resumed.load_state_dict(objective.state_dict())
    assert not resumed.trains_policy
    assert build({}).trains_policy


def test_a_value_that_moved_too_far_pays_for_the_clipped_one_where_that_is_worse():
    new, old, target = (torch.tensor([x], dtype=torch.float64) for x in (0.5, 0.1, 2.0))
    terms, clipped = value_terms(new, old, target, 0.2)
    assert terms.item() == pytest.approx(0.5 * (0.3 - 2.0) ** 2)
    assert clipped.item()
    terms, clipped = value_terms(new, old, -target, 0.2)
    assert terms.item() == pytest.approx(0.5 * (0.5 + 2.0) ** 2)
    assert not clipped.item()
