"""Random ragged batches in float64 with holes, empty rows and garbage outside the mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from rlvr.objectives.experience import Experience
from rlvr.objectives.objective import Objective

TOKEN_FIELDS = (
    "loss_mask",
    "rollout_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "step_rewards",
    "step_ends",
    "values",
    "topk_logprobs",
    "advantages",
    "returns",
)
ROW_FIELDS = ("rewards", "correct", "truncated", "group_ids", "final_values", "kept")
GARBAGE = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30], dtype=torch.float64)

# Groups -> rows -> active tokens; groups of one, unequal groups and rows without an active token are among them.
layouts = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=4)
seeds = st.integers(0, 2**31)
# Each row has an active token, each group two rows at least.
full_layouts = st.lists(st.lists(st.integers(1, 5), min_size=2, max_size=4), min_size=1, max_size=4)


def make(layout: Sequence[Sequence[int]], seed: int, spread: float = 0.3) -> tuple[Experience, Tensor]:
    """An experience without advantages, and current log-probs [T] that differ from the old ones by about `spread`."""
    rng = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=rng)

    def normal(size: int) -> Tensor:
        return torch.randn(size, generator=rng, dtype=torch.float64)

    labels = torch.randperm(100, generator=rng)[: len(layout)] - 50
    rows = [(int(label), active) for label, group in zip(labels, layout, strict=True) for active in group]
    rows = [rows[i] for i in torch.randperm(len(rows), generator=rng)]
    masks = []
    for _, active in rows:
        inactive = int(integers(4, 1)) + (active == 0)
        mask = torch.tensor([True] * active + [False] * inactive)
        masks.append(mask[torch.randperm(len(mask), generator=rng)])
    mask = torch.cat(masks)
    size = mask.numel()
    old = -normal(size).abs() - 0.1
    near = [-(old + spread * normal(size)).abs() for _ in range(3)]
    rubbish = GARBAGE[integers(4, 4, size)]
    policy, rollout, ref, old = (torch.where(mask, x, bad) for x, bad in zip((*near, old), rubbish, strict=True))
    rewards = integers(3, len(rows)).double() / 2
    values, step_rewards = (torch.where(mask, normal(size), rubbish[i]) for i in range(2))
    topk = torch.randn(size, 6, generator=rng, dtype=torch.float64).log_softmax(-1).topk(3).values
    return (
        Experience(
            rewards=rewards,
            correct=rewards == 1,
            truncated=integers(4, len(rows)) == 0,
            group_ids=torch.tensor([label for label, _ in rows]),
            row_ids=torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(m) for m in masks])),
            loss_mask=mask,
            rollout_logprobs=rollout,
            old_logprobs=old,
            ref_logprobs=ref,
            step_rewards=step_rewards,
            step_ends=mask & (integers(2, size) == 0),
            values=values,
            final_values=normal(len(rows)),
            topk_logprobs=torch.where(mask[:, None], topk, rubbish[2][:, None]),
        ),
        policy,
    )


def topk_now(experience: Experience) -> Tensor:
    """[T, K] current log-probs of the sampler's likeliest tokens: some are less likely now, none more."""
    then = experience.topk_logprobs
    return then - 0.4 * (50 * then).sin().square()


def take_rows(experience: Experience, rows: Sequence[int]) -> tuple[Experience, Tensor]:
    """These rows in this order, and the index [t] of their tokens."""
    tokens = torch.cat([torch.nonzero(experience.row_ids == row).flatten() for row in rows])
    lengths = torch.tensor([int((experience.row_ids == row).sum()) for row in rows])
    picked = {"row_ids": torch.repeat_interleave(torch.arange(len(rows)), lengths)}
    for field in fields(experience):
        value = getattr(experience, field.name)
        if value is not None and field.name in TOKEN_FIELDS:
            picked[field.name] = value[tokens]
        elif value is not None and field.name in ROW_FIELDS:
            picked[field.name] = value[torch.tensor(rows)]
    return replace(experience, **picked), tokens


def gradient(
    objective: Objective, policy: Tensor, experience: Experience, **rest: Any
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss, its gradient by the current log-probs [T], and the metrics."""
    policy = policy.detach().clone().requires_grad_()
    if objective.needs_top_k:
        rest.setdefault("topk_logprobs", topk_now(experience))
    loss, metrics = objective.loss(policy, experience, **rest)
    loss.backward()
    return loss.detach(), policy.grad, metrics
