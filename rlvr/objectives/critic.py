"""Generalised advantage estimation on flat tensors, and the value loss; the network itself is the policy's.

Shape legend: N rows, T tokens of all rows. V[t]: value of the state before token t. Tokens outside the loss mask are
no states: the one after t is that of the row's next active token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr.objectives.experience import Experience
from rlvr.objectives.segments import Segments
from rlvr.objectives.spec import CriticSpec


def gae(
    rewards: Tensor, values: Tensor, rows: Segments, gamma: float, lam: Tensor, final_values: Tensor | None = None
) -> Tensor:
    """A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = R_t + gamma V_{t+1} - V_t (arXiv 1506.02438, eq. 16).

    Args:
        rewards: [T] float64.
        values: [T]; anything where the mask is False.
        rows: the rows through their loss mask.
        gamma: discount a token.
        lam: [N] float64, one for each row.
        final_values: [N] value after the row's last token; None: 0, the row ends there.

    Returns:
        [T] float64, 0 where the mask is False.
    """
    current = rows.select(values.double())
    after_last = torch.zeros_like(lam) if final_values is None else final_values.double()
    delta = rewards + gamma * following(current, rows, after_last) - current
    return rows.to_go(delta, gamma * lam)


def following(values: Tensor, rows: Segments, after_last: Tensor) -> Tensor:
    """[T] -> [T]: the value at the row's next active token, `after_last` [N] at its last, 0 where masked."""
    active = values[rows.mask]
    shifted = torch.zeros_like(values)
    shifted[rows.mask] = torch.cat([active[1:], active.new_zeros(active[:1].shape)])
    is_last = rows.last(torch.ones_like(after_last)) > 0
    return torch.where(is_last, rows.spread(after_last), shifted)


def policy_lambda(spec: CriticSpec, rows: Segments) -> Tensor:
    """[N] float64: `lam_policy`, or 1 - 1/(alpha |y_i|) within [0, 1] (VAPO, arXiv 2504.05118)."""
    if spec.lam_alpha is None:
        return torch.full_like(rows.counts, spec.lam_policy)
    return (1 - 1 / (spec.lam_alpha * rows.counts)).clamp(0, 1)


def advantages_and_returns(
    rewards: Tensor, experience: Experience, rows: Segments, gamma: float, spec: CriticSpec
) -> tuple[Tensor, Tensor]:
    """[T] advantages by the policy's lambda and [T] value targets A_t + V_t by the critic's (VC-PPO, 2503.01491).

    Raises:
        ValueError: `values`, or with `bootstrap_truncated` `final_values`, are missing.
    """
    if experience.values is None or (spec.bootstrap_truncated and experience.final_values is None):
        raise ValueError("baseline=critic needs values, and final_values with critic.bootstrap_truncated")
    final = None
    if spec.bootstrap_truncated and experience.final_values is not None:
        final = torch.where(experience.truncated, experience.final_values, 0.0)
    values = experience.values
    advantages = gae(rewards, values, rows, gamma, policy_lambda(spec, rows), final)
    targets = gae(rewards, values, rows, gamma, torch.full_like(rows.counts, spec.lam_critic), final)
    return advantages, targets + rows.select(values.double())


def value_terms(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """[T] terms 0.5 max((V - target)^2, (clip(V, V_old +- clip) - target)^2) and [T] bool where the clip decided."""
    plain = (values - returns).square()
    if clip is None:
        return plain / 2, torch.zeros_like(plain, dtype=torch.bool)
    bounded = torch.clamp(values, old_values - clip, old_values + clip)
    clipped = (bounded - returns).square()
    return torch.maximum(plain, clipped) / 2, clipped > plain
