"""Sums and means over the rows of a flat token layout.

Shape legend: N rows, T tokens of all rows end to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


def segment_sum(values: Tensor, ids: Tensor, num_segments: int) -> Tensor:
    """Sum of `values` [K] over equal `ids` [K] (0..num_segments-1) -> [num_segments]; differentiable."""
    return values.new_zeros(num_segments).index_add(0, ids, values)


def dense_ids(ids: Tensor) -> tuple[Tensor, int]:
    """Arbitrary integers [K] -> (the same partition numbered 0..P-1 [K], P)."""
    names, dense = torch.unique(ids, return_inverse=True)
    return dense, names.shape[0]


def to_go(values: Tensor, factors: Tensor, row_ids: Tensor) -> Tensor:
    """y[k] = values[k] + factors[k] * y[k + 1] within a row, by doubling: log2(longest row) passes over all tokens.

    Args:
        values: [K] tokens of all rows end to end, without holes.
        factors: [K], equal within a row.
        row_ids: [K] int64, ascending.
    """
    total, power, shift = values, factors, 1
    longest = int(torch.bincount(row_ids).max()) if row_ids.numel() else 0
    while shift < longest:
        same_row = row_ids[:-shift] == row_ids[shift:]
        ahead = torch.where(same_row, power[:-shift] * total[shift:], 0.0)
        total = torch.cat([total[:-shift] + ahead, total[-shift:]])
        power, shift = power.square(), 2 * shift
    return total


@dataclass(frozen=True)
class Segments:
    """The rows of a flat layout, seen through its loss mask."""

    row_ids: Tensor
    """[T] int64: 0..num_rows-1."""
    mask: Tensor
    """[T] bool: active tokens."""
    num_rows: int

    @cached_property
    def counts(self) -> Tensor:
        """[N] float64: active tokens of each row."""
        return segment_sum(self.mask.double(), self.row_ids, self.num_rows)

    def select(self, values: Tensor) -> Tensor:
        """[T]: `values` at active tokens and 0 elsewhere, whatever stood there (0 * nan would stay nan)."""
        return torch.where(self.mask, values, 0.0)

    def row_sum(self, values: Tensor) -> Tensor:
        """[T] -> [N]: sum over the row's active tokens."""
        return segment_sum(self.select(values), self.row_ids, self.num_rows)

    def row_mean(self, values: Tensor) -> Tensor:
        """[T] -> [N]: mean over the row's active tokens; 0 for a row without any."""
        return self.row_sum(values) / self.counts.clamp(min=1).to(values.dtype)

    def spread(self, row_values: Tensor) -> Tensor:
        """[N] -> [T]: each row's value at its active tokens, 0 elsewhere."""
        return self.select(row_values[self.row_ids])

    def last(self, row_values: Tensor) -> Tensor:
        """[N] -> [T]: each row's value at its last active token, 0 elsewhere."""
        (active,) = self.mask.nonzero(as_tuple=True)
        ids = self.row_ids[active]
        ends = torch.cat([ids[1:] != ids[:-1], torch.ones_like(ids[:1], dtype=torch.bool)])
        placed = row_values.new_zeros(self.mask.shape[0])
        placed[active[ends]] = row_values[ids[ends]]
        return placed

    def to_go(self, values: Tensor, row_factors: Tensor) -> Tensor:
        """[T] -> [T]: sum of `values` from each active token to the row's last, each further one times the row's
        factor [N] once more; tokens that are not active do not count as steps and get 0."""
        ids = self.row_ids[self.mask]
        sums = torch.zeros_like(values)
        sums[self.mask] = to_go(values[self.mask], row_factors[ids], ids)
        return sums
