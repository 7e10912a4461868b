import math

import pytest
import torch

from rlvr.objectives import ratios
from rlvr.objectives.segments import Segments

ROWS = Segments(torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([True, False, True, True, True, False]), 3)
LOG_RATIO = torch.tensor([0.5, math.nan, -0.1, 0.2, 0.4, math.inf], dtype=torch.float64)


@pytest.mark.parametrize(
    ("level", "wanted"),
    [("sequence", [0.2, 0.0, 0.2, 0.3, 0.3, 0.0]), ("sequence_product", [0.4, 0.0, 0.4, 0.6, 0.6, 0.0])],
)
def test_rows_are_pooled_over_active_tokens_only(level, wanted):
    found = ratios.LEVELS[level](LOG_RATIO, ROWS)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


def test_token_level_keeps_each_token():
    values = torch.tensor([0.5, -19.9, 25.0, -30.0])
    rows = Segments(torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool), 1)
    assert ratios.token(values, rows).tolist() == pytest.approx([0.5, -19.9, 20.0, -20.0])


def test_permuting_log_ratios_within_a_row_leaves_the_sequence_ratio():
    swapped = LOG_RATIO[torch.tensor([2, 1, 0, 4, 3, 5])]
    torch.testing.assert_close(ratios.sequence(swapped, ROWS), ratios.sequence(LOG_RATIO, ROWS))


def test_one_token_rows_make_all_levels_equal():
    values = torch.tensor([0.3, -0.2, 0.1])
    rows = Segments(torch.arange(3), torch.ones(3, dtype=torch.bool), 3)
    for level in ("sequence", "sequence_product"):
        torch.testing.assert_close(ratios.LEVELS[level](values, rows), ratios.token(values, rows))


def test_gradient_of_the_sequence_ratio_is_shared_by_the_rows_active_tokens():
    values = LOG_RATIO.clone().requires_grad_()
    ratios.sequence(values, ROWS)[0].exp().backward()
    share = math.exp(0.2) / 2
    torch.testing.assert_close(values.grad, torch.tensor([share, 0, share, 0, 0, 0], dtype=torch.float64))
