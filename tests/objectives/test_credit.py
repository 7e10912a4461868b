import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.objectives import build
from rlvr.objectives.segments import Segments, to_go

from . import golden
from .batches import layouts, make, seeds

PROCESS = {"advantage": {"credit": "process"}}


@given(lengths=st.lists(st.integers(1, 9), max_size=5), seed=seeds)
def test_to_go_is_the_recursion(lengths, seed):
    rng = torch.Generator().manual_seed(seed)
    row_ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    values = torch.randn(len(row_ids), generator=rng, dtype=torch.float64)
    factors = torch.rand(len(lengths), generator=rng, dtype=torch.float64)[row_ids]
    wanted = values.clone()
    for k in reversed(range(len(row_ids) - 1)):
        if row_ids[k] == row_ids[k + 1]:
            wanted[k] += factors[k] * wanted[k + 1]
    torch.testing.assert_close(to_go(values, factors, row_ids), wanted, rtol=1e-12, atol=1e-12)


def test_the_last_active_token_carries_the_row():
    rows = Segments(torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([True, True, False, False, False, True]), 3)
    assert rows.last(torch.tensor([5.0, 6.0, 7.0])).tolist() == [0, 5, 0, 0, 0, 7]


def worked_example():
    """Two rows of one group, the first with a hole; steps of rewards 1, 0 and 0, 3: mean 1, std sqrt(1.5)."""
    experience, _ = make([[1, 1]], 0)
    first = [True, False, True, True]
    mask = torch.tensor([*first, True, True])
    return replace(
        experience,
        row_ids=torch.tensor([0, 0, 0, 0, 1, 1]),
        loss_mask=mask,
        rollout_logprobs=torch.zeros(6, dtype=torch.float64),
        step_ends=torch.tensor([False, False, True, True, True, True]),
        step_rewards=torch.tensor([9.0, math.nan, 1.0, 0.0, 0.0, 3.0], dtype=torch.float64),
    )


def test_process_credit_sums_the_normalised_steps_to_come():
    prepared, _ = build(PROCESS).prepare(worked_example())
    high, low, best = 0.0, -1 / math.sqrt(1.5), 2 / math.sqrt(1.5)
    wanted = [high + low, 0.0, high + low, low, low + best, best]
    torch.testing.assert_close(prepared.advantages, torch.tensor(wanted, dtype=torch.float64), rtol=1e-7, atol=1e-7)


def test_tokens_after_the_last_step_and_groups_of_equal_steps_get_nothing():
    example = worked_example()
    late = replace(example, step_ends=torch.tensor([True, False, False, False, True, False]))
    prepared, _ = build(PROCESS).prepare(late)
    assert prepared.advantages[[2, 3, 5]].tolist() == [0.0] * 3
    equal = replace(example, step_rewards=torch.full((6,), 0.1, dtype=torch.float64))
    assert not build(PROCESS).prepare(equal)[0].advantages.any()


@given(layout=layouts, seed=seeds)
@settings(max_examples=30)
def test_other_baselines_and_scales_work_on_steps_as_on_rows(layout, seed):
    experience, _ = make(layout, seed)
    objective = build({"advantage": {"credit": "process", "baseline": "leave_one_out", "scale": "none"}})
    prepared, _ = objective.prepare(experience)
    ends = experience.step_ends
    steps = [
        golden.Row(float(experience.step_rewards[t]), int(experience.group_ids[experience.row_ids[t]]), [])
        for t in torch.nonzero(ends).flatten()
    ]
    each = torch.zeros(len(ends), dtype=torch.float64)
    each[ends] = torch.tensor(golden.others_centred(steps), dtype=torch.float64)
    for t in torch.nonzero(experience.loss_mask).flatten():
        later = each[t:][experience.row_ids[t:] == experience.row_ids[t]].sum()
        torch.testing.assert_close(prepared.advantages[t], later, rtol=1e-9, atol=1e-9)


def test_steps_of_rows_outside_the_baseline_do_not_count():
    spec = {**PROCESS, "filters": {"overlong_mask": True, "overlong_in_baseline": False}}
    example = replace(worked_example(), truncated=torch.tensor([True, False]))
    prepared, _ = build(spec).prepare(example)
    wanted = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)  # steps 0 and 3: -1 and 1
    torch.testing.assert_close(prepared.advantages, wanted)


def test_a_step_has_to_end_on_a_token_of_the_loss_mask():
    with pytest.raises(ValueError, match="step_ends"):
        build(PROCESS).prepare(replace(worked_example(), step_ends=torch.ones(6, dtype=torch.bool)))


def test_discounting_and_the_kl_of_each_token():
    spec = {
        "advantage": {"baseline": "none", "scale": "none", "credit": "discounted", "gamma": 0.5},
        "kl": {"placement": "reward", "estimator": "k1", "coef": 0.1},
    }
    example = worked_example()
    example.rewards = torch.tensor([8.0, 4.0], dtype=torch.float64)
    example.old_logprobs = torch.zeros(6, dtype=torch.float64)
    example.ref_logprobs = torch.tensor([-1.0, math.nan, -2.0, -3.0, 0.0, 1.0], dtype=torch.float64)
    prepared, _ = build(spec).prepare(example)
    third = 8 - 0.3
    second = -0.2 + 0.5 * third
    first = -0.1 + 0.5 * second
    wanted = torch.tensor([first, 0.0, second, third, 0.5 * 4.1, 4.1], dtype=torch.float64)
    torch.testing.assert_close(prepared.advantages, wanted)


@given(layout=layouts, seed=seeds)
@settings(max_examples=30)
def test_without_discount_and_kl_discounted_credit_is_the_outcomes(layout, seed):
    experience, _ = make(layout, seed)
    for scale in ("none", "group_std", "batch_std", "whiten_tokens"):
        plain, _ = build({"advantage": {"scale": scale}}).prepare(experience)
        discounted, _ = build({"advantage": {"scale": scale, "credit": "discounted"}}).prepare(experience)
        torch.testing.assert_close(discounted.advantages, plain.advantages, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ddof", [0, 1])
def test_token_advantages_are_whitened_over_the_tokens_that_are_left(ddof):
    spec = {
        "advantage": {**PROCESS["advantage"], "scale": "whiten_tokens", "ddof": ddof},
        "filters": {"overlong_mask": True},
    }
    example = replace(worked_example(), truncated=torch.tensor([False, True]))
    example.step_rewards[2] = 2.0
    example.step_rewards[3] = 0.5
    prepared, _ = build(spec).prepare(example)
    active = prepared.advantages[prepared.loss_mask]
    assert prepared.loss_mask.sum() == 3
    assert active.mean().item() == pytest.approx(0, abs=1e-12)
    assert active.std(correction=ddof).item() == pytest.approx(1, rel=1e-6)
    assert not prepared.advantages[~prepared.loss_mask].any()
