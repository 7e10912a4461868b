"""Rows and groups that leave the update: before advantages are taken, or once the policy has moved too far.

Shape legend: N rows, T tokens of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.objectives.advantages import equal_in_groups
from rlvr.objectives.experience import Experience
from rlvr.objectives.segments import Segments, dense_ids
from rlvr.objectives.spec import FilterSpec


@dataclass(frozen=True)
class Filtered:
    """What the filters left."""

    counted: Tensor
    """[N] bool: rows whose reward is in the baselines."""
    kept: Tensor
    """[N] bool: rows in the normalisers; False for dropped groups."""
    loss_mask: Tensor
    """[T] bool."""


def apply(experience: Experience, spec: FilterSpec) -> Filtered:
    """Filters one whole rollout batch.

    overlong_mask: truncated rows leave the loss (DAPO, arXiv 2503.14476, section 3.4) and, unless
    `overlong_in_baseline`, the statistics of their group. They stay in the row count of `constant`.
    zero_variance: groups in which nothing differs leave loss and normalisers, groups of one among them.
    """
    everything = torch.ones_like(experience.truncated)
    cut = experience.truncated if spec.overlong_mask else ~everything
    counted = everything if spec.overlong_in_baseline else ~cut
    kept = everything
    if spec.zero_variance:
        judged = experience.correct.double() if spec.zero_variance_on == "outcome" else experience.rewards
        kept = ~uniform(judged, experience.group_ids, counted)
    return Filtered(counted, kept, experience.loss_mask & (kept & ~cut)[experience.row_ids])


def uniform(values: Tensor, group_ids: Tensor, counted: Tensor) -> Tensor:
    """[N] bool: the row's group has no two different `values` [N] among its counted rows."""
    groups, num_groups = dense_ids(group_ids)
    varied = torch.zeros(num_groups, dtype=torch.bool, device=groups.device)
    inside = groups[counted]
    varied[inside] = ~equal_in_groups(values[counted], inside, num_groups)
    return ~varied[groups]


def off_policy(log_ratio: Tensor, advantages: Tensor, rows: Segments, limit: float) -> Tensor:
    """[T] bool: negative advantages of rows whose mean of -log_ratio [T] (current to rollout) is above `limit`.

    They leave the policy term and stay in the normalisers (DeepSeek-V3.2, arXiv 2512.02556).
    """
    return (advantages < 0) & (rows.spread(rows.row_mean(-log_ratio)) > limit)
