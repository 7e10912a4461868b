from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.errors import ConfigError
from rlvr.objectives import build
from rlvr.objectives.aggregation import AGGREGATES

from . import golden
from .batches import layouts, make, seeds, topk_now

everywhere = pytest.mark.parametrize("aggregate", list(AGGREGATES))


def weights_of(aggregate, experience, length=7):
    return build({"aggregate": aggregate}, max_new_tokens=length).weights(experience)


@everywhere
@given(layout=layouts, seed=seeds)
def test_weights_are_the_formulas(aggregate, layout, seed):
    experience, policy = make(layout, seed)
    rows = golden.rows_of(experience, policy, topk_now(experience))
    wanted = [golden.WEIGHTS[aggregate](rows, row) for row in rows for _ in row.tokens]
    weights = weights_of(aggregate, experience)
    found, wanted = weights.aggregate[experience.loss_mask], torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    assert not weights.aggregate[~experience.loss_mask].any()
    assert not weights.mean[~experience.loss_mask].any()
    if experience.loss_mask.any():
        assert weights.mean.sum().item() == pytest.approx(1.0)


@everywhere
def test_nothing_active_weighs_nothing(aggregate):
    experience, _ = make([[0, 0], [0]], 0)
    assert not weights_of(aggregate, experience).aggregate.any()


def test_constant_counts_masked_rows_but_not_dropped_ones():
    experience, _ = make([[2, 0], [3, 1]], 0)
    assert weights_of("constant", experience).aggregate.max().item() == pytest.approx(1 / (4 * 7))
    kept = torch.tensor([True, False, True, False])
    assert weights_of("constant", replace(experience, kept=kept)).aggregate.max().item() == pytest.approx(1 / (2 * 7))


def test_constant_asks_for_its_length():
    experience, _ = make([[2, 2]], 0)
    with pytest.raises(ConfigError) as caught:
        build({"aggregate": "constant"}).weights(experience)
    assert caught.value.key == "objective.constant_length"


@given(prompts=st.integers(1, 4), rows=st.integers(1, 4), length=st.integers(1, 5), seed=seeds)
def test_equal_lengths_and_groups_make_the_means_equal(prompts, rows, length, seed):
    experience, _ = make([[length] * rows] * prompts, seed)
    token_mean = weights_of("token_mean", experience).aggregate
    for aggregate in ("sequence_mean", "prompt_mean", "constant"):
        torch.testing.assert_close(weights_of(aggregate, experience, length).aggregate, token_mean)
    torch.testing.assert_close(weights_of("sequence_sum", experience).aggregate, length * token_mean)


def test_length_bias():
    """With equal advantages a row's gradient has L1 norm sum_t w: equal over rows for sequence_mean only."""
    experience, _ = make([[1, 4, 2]], 3)
    lengths = torch.stack([(experience.loss_mask & (experience.row_ids == i)).sum() for i in range(3)]).double()
    for aggregate in AGGREGATES:
        weights = weights_of(aggregate, experience).aggregate
        norms = torch.stack([weights[experience.row_ids == i].sum() for i in range(3)])
        shape = torch.ones(3, dtype=torch.float64) if aggregate == "sequence_mean" else lengths
        torch.testing.assert_close(norms / norms.sum(), shape / shape.sum())
