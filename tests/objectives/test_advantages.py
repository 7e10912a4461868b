import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import ConfigError
from rlvr.objectives import build

from . import golden


def make(baseline, scale="none", **options):
    spec = {"advantage": {"baseline": baseline, "scale": scale, **options}}
    return build({**spec, "aggregate": "sequence_sum"})


def rows_from(rewards, groups):
    return [golden.Row(r, g, []) for r, g in zip(rewards, groups, strict=True)]


batches = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]), st.integers(-2, 2)), min_size=1, max_size=24
).map(lambda pairs: ([r for r, _ in pairs], [g for _, g in pairs]))


def close(found, wanted):
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def run(objective, rewards, groups, **rest):
    return objective.advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), **rest)


@pytest.mark.parametrize(
    ("baseline", "scale", "formula"),
    [
        ("none", "none", lambda rows: [row.reward for row in rows]),
        ("batch_mean", "none", golden.batch_centred),
        ("group_mean", "none", golden.group_centred),
        ("leave_one_out", "none", golden.others_centred),
        ("group_mean", "group_std", golden.group_normalised),
    ],
)
@given(batch=batches)
def test_formulas(baseline, scale, formula, batch):
    close(run(make(baseline, scale), *batch), formula(rows_from(*batch)))


@given(batch=batches)
def test_batch_std_is_over_the_centred_values(batch):
    centred = golden.group_centred(rows_from(*batch))
    found = run(make("group_mean", "batch_std"), *batch)
    if golden.std(centred) < 1e-12:
        close(found, [0.0] * len(centred))
    else:
        close(found, [c / (golden.std(centred) + 1e-8) for c in centred])


def test_statistics_of_the_batch_leave_out_dropped_groups():
    kept = torch.tensor([True, True, False, False])
    found = run(make("group_mean", "batch_std"), [0.0, 1.0, 1.0, 1.0], [0, 0, 1, 1], kept=kept)
    close(found, [-1.0 / (1 + 2e-8), 1.0 / (1 + 2e-8), 0.0, 0.0])


@given(batch=batches, data=st.data())
def test_whitening_counts_a_row_by_its_length(batch, data):
    rewards, _ = batch
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=len(rewards), max_size=len(rewards)))
    found = run(make("batch_mean", "whiten_tokens"), *batch, num_tokens=torch.tensor(lengths).double())
    tokens = [r for r, n in zip(rewards, lengths, strict=True) for _ in range(n)]
    if tokens:
        root = math.sqrt(golden.std(tokens) ** 2 + 1e-8)
        close(found, [(r - golden.mean(tokens)) / root for r in rewards])


def test_whitening_asks_for_lengths():
    with pytest.raises(ValueError, match="num_tokens"):
        run(make("batch_mean", "whiten_tokens"), [0.0, 1.0], [0, 0])


@given(batch=batches)
def test_success_rate(batch):
    rows = rows_from(*batch)
    wanted = []
    for row in rows:
        rate = golden.mean([other.reward for other in golden.group_of(rows, row)])
        wanted.append((row.reward - rate) / rate if rate > 0 else 0.0)
    found = run(make("group_mean", "success_rate"), *batch)
    close(found, wanted)


def test_success_rate_refuses_negative_rewards():
    with pytest.raises(ConfigError, match="-1"):
        run(make("group_mean", "success_rate"), [1.0, -1.0], [0, 0])


def test_ddof_is_bessels_correction():
    rewards, groups = [0.0, 0.0, 0.0, 1.0], [0, 0, 0, 0]
    close(
        run(make("group_mean", "group_std", ddof=1), rewards, groups),
        [c / (math.sqrt(0.75 / 3) + 1e-8) for c in (-0.25, -0.25, -0.25, 0.75)],
    )


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std", "success_rate"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_a_group_of_one_and_equal_rewards_give_exactly_zero(baseline, scale, ddof):
    # Seven equal 0.1s have a mean that is not 0.1; 1e-17 / 1e-8 would already be a direction.
    found = run(make(baseline, scale, ddof=ddof), [0.1] * 7 + [1.0], [3] * 7 + [5])
    assert found.tolist() == [0.0] * 8


@pytest.mark.parametrize("baseline", ["none", "ema", "batch_mean"])
def test_a_batch_of_equal_rewards_has_no_scale(baseline):
    assert run(make(baseline, "batch_std"), [0.1] * 5, [0, 0, 1, 1, 1]).tolist() == [0.0] * 5


factors = st.floats(0.01, 100)


@given(batch=batches, a=factors, b=st.floats(-10, 10))
def test_grpo_is_unchanged_by_a_positive_affine_map_and_its_neighbours_scale(batch, a, b):
    rewards, groups = batch
    moved = [a * r + b for r in rewards]
    # A map can merge two rewards by rounding; none of these are that close.
    normalised = make("group_mean", "group_std", eps=0.0)
    torch.testing.assert_close(run(normalised, moved, groups), run(normalised, rewards, groups), rtol=1e-7, atol=1e-7)
    for baseline in ("group_mean", "leave_one_out"):
        centred = make(baseline)
        torch.testing.assert_close(run(centred, moved, groups), a * run(centred, rewards, groups), rtol=1e-9, atol=1e-9)


@given(batch=batches, a=factors)
def test_maxrl_is_unchanged_by_a_positive_factor(batch, a):
    rewards, groups = batch
    objective = make("group_mean", "success_rate")
    close(run(objective, [a * r for r in rewards], groups), run(objective, rewards, groups))


def test_maxrl_is_changed_by_a_shift():
    objective = make("group_mean", "success_rate")
    assert not torch.allclose(run(objective, [1.0, 2.0], [0, 0]), run(objective, [0.0, 1.0], [0, 0]))


@given(batch=batches)
def test_a_negative_factor_flips_the_sign(batch):
    rewards, groups = batch
    for objective in (make("group_mean", "group_std"), make("group_mean"), make("leave_one_out")):
        close(run(objective, [-r for r in rewards], groups), -run(objective, rewards, groups))


@given(batch=batches)
def test_rloo_is_dr_grpo_times_n_over_n_minus_1_and_both_sum_to_zero(batch):
    _, groups = batch
    others, centred = run(make("leave_one_out"), *batch), run(make("group_mean"), *batch)
    ids = torch.tensor(groups)
    for group in set(groups):
        size = groups.count(group)
        close(others[ids == group], centred[ids == group] * (size / (size - 1) if size > 1 else 0.0))
        close(centred[ids == group].sum(), 0.0)


@given(successes=st.integers(1, 15))
def test_grpo_on_binary_rewards(successes):
    size, p = 16, successes / 16
    rewards = [1.0] * successes + [0.0] * (size - successes)
    found = run(make("group_mean", "group_std", eps=0.0), rewards, [0] * size)
    close(found, [(r - p) / math.sqrt(p * (1 - p)) for r in rewards])
    close(found.square().sum(), float(size))


@given(batch=batches, seed=st.integers(0, 999))
@settings(max_examples=15)
def test_order_of_rows_and_names_of_groups_do_not_matter(batch, seed):
    rewards, groups = batch
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(seed)).tolist()
    renamed = {-2: 900, -1: 3, 0: -77, 1: 4, 2: 0}
    for baseline in ("batch_mean", "group_mean", "leave_one_out", "ema"):
        for scale in ("none", "group_std", "batch_std", "success_rate"):
            straight = run(make(baseline, scale), rewards, groups)
            shuffled = run(make(baseline, scale), [rewards[i] for i in order], [renamed[groups[i]] for i in order])
            torch.testing.assert_close(shuffled, straight[order], rtol=1e-7, atol=1e-7)


def test_the_moving_average_is_read_before_it_moves_and_survives_a_checkpoint():
    objective = make("ema", ema_decay=0.9)
    close(run(objective, [0.0, 1.0], [0, 1]), [-0.5, 0.5])
    close(run(objective, [1.0, 1.0], [0, 1]), [0.5, 0.5])
    resumed = make("ema", ema_decay=0.9)
    resumed.load_state_dict(objective.state_dict())
    for each in (objective, resumed):
        close(run(each, [0.0, 0.0], [0, 1]), [-0.55, -0.55])


@pytest.mark.parametrize("baseline", ["none", "ema", "batch_mean", "group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std", "success_rate", "whiten_tokens"])
def test_an_empty_batch_gives_no_advantages(baseline, scale):
    nothing = torch.zeros(0, dtype=torch.float64)
    found = make(baseline, scale).advantages(nothing, torch.zeros(0, dtype=torch.int64), num_tokens=nothing)
    assert found.shape == (0,)
