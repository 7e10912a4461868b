"""From row and step rewards to the advantage of each token.

Shape legend: N rows, T tokens of all rows, S step rewards of all rows. All numbers are float64 without gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rlvr.objectives.experience import Experience
from rlvr.objectives.filters import Filtered
from rlvr.objectives.segments import Segments


class Compare(Protocol):
    """Baseline and scale: `Objective.advantages`."""

    def __call__(
        self, rewards: Tensor, group_ids: Tensor, *, num_tokens: Tensor | None = None, kept: Tensor | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Scored:
    """One rollout batch after its filters."""

    experience: Experience
    left: Filtered
    rows: Segments
    """Seen through the mask that the filters left."""
    penalty: Tensor
    """[T]: coef * KL(old||reference), sampled, where it is in the reward; else 0."""
    compare: Compare
    gamma: float

    def row_advantages(self, rewards: Tensor) -> Tensor:
        """[N] -> [N]: baseline and scale over the counted rows, 0 for the others."""
        counted = self.left.counted
        result = torch.zeros_like(rewards)
        result[counted] = self.compare(
            rewards[counted],
            self.experience.group_ids[counted],
            num_tokens=self.rows.counts[counted],
            kept=self.left.kept[counted],
        )
        return result


def outcome_rewards(scored: Scored) -> Tensor:
    """[T]: the row's advantage at its last token, minus each token's KL penalty."""
    rewards = scored.row_advantages(scored.experience.rewards.double())
    return scored.rows.last(rewards) - scored.rows.select(scored.penalty)


def step_rewards(scored: Scored) -> Tensor:
    """[T]: each step's advantage at its end: baseline and scale over all step rewards [S] of the group.

    Raises:
        ValueError: no step rewards, or a step that ends on a token outside the loss mask.
    """
    experience = scored.experience
    if experience.step_rewards is None or experience.step_ends is None:
        raise ValueError("credit=process needs step_rewards and step_ends: a verifier that rewards steps")
    if (experience.step_ends & ~experience.loss_mask).any():
        raise ValueError("step_ends: a step must end on a token of the loss mask")
    counted = experience.step_ends & scored.left.counted[experience.row_ids]
    rows = experience.row_ids[counted]
    result = torch.zeros_like(experience.step_rewards, dtype=torch.float64)
    result[counted] = scored.compare(
        experience.step_rewards[counted].double(), experience.group_ids[rows], kept=scored.left.kept[rows]
    )
    return scored.rows.select(result)


def outcome(scored: Scored) -> Tensor:
    """A_i at each of the row's tokens; the KL penalty of the whole row is part of the reward that is compared."""
    penalty = torch.zeros_like(scored.rows.counts).index_add(0, scored.rows.row_ids, scored.penalty)
    return scored.rows.spread(scored.row_advantages(scored.experience.rewards.double() - penalty))


def process(scored: Scored) -> Tensor:
    """A_it = sum over the steps that end at t or later (GRPO with process supervision, arXiv 2402.03300, 4.1.3)."""
    return scored.rows.to_go(step_rewards(scored), torch.ones_like(scored.rows.counts))


def discounted(scored: Scored) -> Tensor:
    """A_it = sum_{l>=t} gamma^(l-t) R_il, R the KL penalties and, at the last token, A_i (REINFORCE++, 2501.03262)."""
    return scored.rows.to_go(outcome_rewards(scored), torch.full_like(scored.rows.counts, scored.gamma))


CREDITS: dict[str, Callable[[Scored], Tensor]] = {"outcome": outcome, "process": process, "discounted": discounted}
REWARDS: dict[str, Callable[[Scored], Tensor]] = {"outcome": outcome_rewards, "process": step_rewards}
"""Token rewards as the critic's baseline reads them."""
