"""Importance log-ratios of the current policy to the behaviour policy, per token or per row.

Shape legend: T tokens of all rows. log_ratio[t] = policy_logprobs[t] - behaviour_logprobs[t], gradient kept.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rlvr.objectives.segments import Segments

LOG_RATIO_BOUND = 20.0  # exp beyond it is an overflow to be, not an estimate; the gradient there is 0


def none(log_ratio: Tensor, rows: Segments) -> Tensor | None:
    """No ratio: the policy term is the log-prob's own (REINFORCE)."""
    return None


def token(log_ratio: Tensor, rows: Segments) -> Tensor:
    """log_ratio[t] (PPO)."""
    return bounded(log_ratio)


def sequence(log_ratio: Tensor, rows: Segments) -> Tensor:
    """Mean over the row's active tokens: exp of it is the geometric mean (GSPO, arXiv 2507.18071)."""
    return rows.spread(bounded(rows.row_mean(log_ratio)))


def sequence_product(log_ratio: Tensor, rows: Segments) -> Tensor:
    """Sum over the row's active tokens: exp of it is the ratio of the whole row's probabilities."""
    return rows.spread(bounded(rows.row_sum(log_ratio)))


def bounded(log_ratio: Tensor) -> Tensor:
    """Clamped to +-20, which changes nothing inside."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


LEVELS: dict[str, Callable[[Tensor, Segments], Tensor | None]] = {
    "none": none,
    "token": token,
    "sequence": sequence,
    "sequence_product": sequence_product,
}
