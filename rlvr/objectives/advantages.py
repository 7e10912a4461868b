"""Advantages from row rewards: what is subtracted (baselines) and what it is divided by (scales).

Shape legend: N rows, P prompts (groups). Groups may differ in size. All numbers are float64 and carry no gradient.
A group of one, and a group whose rewards are all equal, has nothing to compare: under a group baseline or
`group_std` its advantages are exactly 0, not a rounding error divided by a rounding error. Likewise `batch_std`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rlvr.errors import ConfigError
from rlvr.objectives.segments import segment_sum
from rlvr.objectives.spec import AdvantageSpec


@dataclass(frozen=True)
class Rows:
    """The rewards of one rollout batch and how its rows are grouped."""

    rewards: Tensor
    """[N] float64."""
    groups: Tensor
    """[N] int64: 0..num_groups-1."""
    num_groups: int
    kept: Tensor
    """[N] bool: rows in the batch-wide scales; rows of groups that a filter dropped are not."""
    num_tokens: Tensor | None = None
    """[N] float64: active tokens; only `whiten_tokens` reads it."""
    previous_mean: float | None = None
    """The moving average of earlier steps; None at the first."""

    @cached_property
    def group_sizes(self) -> Tensor:
        """[N] float64: size of each row's group."""
        return self.group_sum(torch.ones_like(self.rewards))

    @cached_property
    def all_equal(self) -> Tensor:
        """[N] bool: every reward of the row's group is the same number."""
        return equal_in_groups(self.rewards, self.groups, self.num_groups)

    def group_sum(self, values: Tensor) -> Tensor:
        """[N] -> [N]: sum over the row's group, at each of its rows."""
        return segment_sum(values, self.groups, self.num_groups)[self.groups]

    def group_mean(self, values: Tensor) -> Tensor:
        """[N] -> [N]: mean over the row's group, at each of its rows."""
        return self.group_sum(values) / self.group_sizes


def equal_in_groups(values: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """[N] bool: max and min of `values` [N] over the row's group are the same number. Exact: no tolerance."""
    span = values.new_zeros(num_groups)
    highest = span.scatter_reduce(0, groups, values, "amax", include_self=False)
    lowest = span.scatter_reduce(0, groups, values, "amin", include_self=False)
    return (highest == lowest)[groups]


# ---- baselines: Rows -> centred rewards [N]


def none(rows: Rows) -> Tensor:
    """r_i."""
    return rows.rewards


def ema(rows: Rows) -> Tensor:
    """r_i - b, b the moving average over earlier steps; at the first step b is the batch's own mean."""
    return rows.rewards - (rows.rewards.mean() if rows.previous_mean is None else rows.previous_mean)


def batch_mean(rows: Rows) -> Tensor:
    """r_i - mean over all rows."""
    return rows.rewards - rows.rewards.mean()


def group_mean(rows: Rows) -> Tensor:
    """r_i - mean_g (GRPO, arXiv 2402.03300; Dr. GRPO, arXiv 2503.20783)."""
    return torch.where(rows.all_equal, 0.0, rows.rewards - rows.group_mean(rows.rewards))


def leave_one_out(rows: Rows) -> Tensor:
    """r_i - mean of the others = n_g/(n_g - 1) * (r_i - mean_g) (RLOO, arXiv 2402.14740)."""
    return group_mean(rows) * rows.group_sizes / (rows.group_sizes - 1).clamp(min=1)


BASELINES: dict[str, Callable[[Rows], Tensor]] = {
    "none": none,
    "ema": ema,
    "batch_mean": batch_mean,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "critic": none,  # the values are subtracted token by token: critic.py
}


def next_mean(rewards: Tensor, previous: float | None, decay: float) -> float | None:
    """The moving average after a step: decay * previous + (1 - decay) * mean; the first mean starts it."""
    if not rewards.numel():
        return previous
    mean = float(rewards.mean())
    return mean if previous is None else decay * previous + (1 - decay) * mean


# ---- scales: (centred [N], Rows, spec) -> advantages [N]


def unscaled(centred: Tensor, rows: Rows, spec: AdvantageSpec) -> Tensor:
    """c_i."""
    return centred


def group_std(centred: Tensor, rows: Rows, spec: AdvantageSpec) -> Tensor:
    """c_i / (std_g + eps), 0 where the group's rewards are all equal (GRPO)."""
    squares = rows.group_sum((rows.rewards - rows.group_mean(rows.rewards)).square())
    std = (squares / (rows.group_sizes - spec.ddof).clamp(min=1)).sqrt()
    return torch.where(rows.all_equal, 0.0, centred / (std + spec.eps))


def batch_std(centred: Tensor, rows: Rows, spec: AdvantageSpec) -> Tensor:
    """c_i / (std of the centred values over kept rows + eps) (ScaleRL, arXiv 2510.13786); 0 where all are equal."""
    kept = centred[rows.kept]
    if not kept.numel() or kept.max() == kept.min():
        return torch.zeros_like(centred)
    _, variance = weighted_moments(kept, torch.ones_like(kept), spec.ddof)
    return centred / (variance.sqrt() + spec.eps)


def success_rate(centred: Tensor, rows: Rows, spec: AdvantageSpec) -> Tensor:
    """c_i / mean_g, 0 where the mean is 0 (MaxRL, arXiv 2602.02710); rewards must be >= 0.

    These are for a mean over the group's n rows: (r_i - mean_g)/(n mean_g) would be for a sum.
    Without a baseline, 1/n sum_i A_i score_i is the mean score of the K successes, unbiased for the objective
    sum_{k=1..n} -(1-p)^k / k. With `success_order` T it stops at k = T: a success weighs pass@T / K, where
    pass@T = 1 - C(n-K, T) / C(n, T); T = 1 is REINFORCE, T = n the former.

    Raises:
        ConfigError: a reward is negative, or with `success_order` neither 0 nor 1.
    """
    if (rows.rewards < 0).any():
        lowest = float(rows.rewards.min())
        raise ConfigError(
            "objective.advantage.scale", "success_rate", f"needs rewards >= 0, found {lowest:g}; map to 0/1"
        )
    mean = rows.group_mean(rows.rewards)
    scaled = torch.where(mean > 0, centred / mean, 0.0)
    return scaled if spec.success_order is None else scaled * _pass_at(spec.success_order, rows)


def _pass_at(order: int, rows: Rows) -> Tensor:
    """[N]: estimate of pass@order from the row's group; a smaller group counts as order = its size."""
    odd = rows.rewards[(rows.rewards != 0) & (rows.rewards != 1)]
    if odd.numel():
        mend = f"counts successes, so rewards must be 0 or 1, found {float(odd[0]):g}; unset it"
        raise ConfigError("objective.advantage.success_order", order, mend)
    failures = rows.group_sizes - rows.group_sum(rows.rewards)
    missed = torch.ones_like(failures)
    for drawn in range(order):
        missed = missed * (failures - drawn).clamp(min=0) / (rows.group_sizes - drawn).clamp(min=1)
    return 1 - missed


def whiten_tokens(centred: Tensor, rows: Rows, spec: AdvantageSpec) -> Tensor:
    """(A_it - mean) / sqrt(var + eps) over active tokens of the whole batch: a row counts by its length."""
    if rows.num_tokens is None:
        raise ValueError("whiten_tokens needs num_tokens, the active tokens of each row")
    return whiten(centred, rows.num_tokens * rows.kept, spec)


def whiten(values: Tensor, counts: Tensor, spec: AdvantageSpec) -> Tensor:
    """(values - mean) / sqrt(var + eps) [K], each standing `counts` [K] times in the statistics."""
    mean, variance = weighted_moments(values, counts, spec.ddof)
    return (values - mean) / (variance + spec.eps).sqrt()


def weighted_moments(values: Tensor, counts: Tensor, ddof: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of `values` [K], each standing `counts` [K] times; both 0 when nothing counts."""
    total = counts.sum()
    mean = (counts * values).sum() / total.clamp(min=1)
    return mean, (counts * (values - mean).square()).sum() / (total - ddof).clamp(min=1)


SCALES: dict[str, Callable[[Tensor, Rows, AdvantageSpec], Tensor]] = {
    "none": unscaled,
    "group_std": group_std,
    "batch_std": batch_std,
    "success_rate": success_rate,
    "whiten_tokens": whiten_tokens,
}
