"""The papers' formulas in float64 with plain loops over rows and tokens; shares no code with `rlvr.objectives`.

A case is a list of rows; a row is its reward, group, and one dict of log-probs a token. Only active tokens are here.
Each loss returns (value, gradient by each token's current log-prob, row by row).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rlvr.objectives.experience import Experience


@dataclass
class Token:
    policy: float
    old: float
    rollout: float
    ref: float
    value: float
    step: float | None
    """Reward of the step that ends here."""
    topk: list[tuple[float, float]]
    """(Current, sampler's) probabilities of the sampler's likeliest tokens."""
    picked: bool
    """By covariance; the choice itself has its own test."""


@dataclass
class Row:
    reward: float
    group: int
    tokens: list[Token]
    correct: bool = False


Result = tuple[float, list[list[float]]]
Term = Callable[[Token, float], tuple[float, float]]
RowTerm = Callable[[Row, float], tuple[float, list[float]]]


def rows_of(experience: Experience, policy: Tensor, topk: Tensor, picked: Tensor | None = None) -> list[Row]:
    rows = []
    for i in range(experience.num_rows):
        mine = [t for t in range(len(policy)) if experience.row_ids[t] == i and experience.loss_mask[t]]
        sources = (
            policy,
            experience.old_logprobs,
            experience.rollout_logprobs,
            experience.ref_logprobs,
            experience.values,
        )
        tokens = [
            Token(
                *(float(source[t]) for source in sources),
                step=float(experience.step_rewards[t]) if experience.step_ends[t] else None,
                topk=[(math.exp(p), math.exp(q)) for p, q in zip(topk[t], experience.topk_logprobs[t], strict=True)],
                picked=picked is not None and bool(picked[t]),
            )
            for t in mine
        ]
        rows.append(
            Row(float(experience.rewards[i]), int(experience.group_ids[i]), tokens, bool(experience.correct[i]))
        )
    return rows


def group_of(rows: list[Row], row: Row) -> list[Row]:
    return [other for other in rows if other.group == row.group]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def std(values: list[float]) -> float:
    return math.sqrt(mean([(v - mean(values)) ** 2 for v in values]))


def group_normalised(rows: list[Row]) -> list[float]:
    advantages = []
    for row in rows:
        rewards = [other.reward for other in group_of(rows, row)]
        flat = len(set(rewards)) == 1
        advantages.append(0.0 if flat else (row.reward - mean(rewards)) / (std(rewards) + 1e-8))
    return advantages


def group_centred(rows: list[Row]) -> list[float]:
    return [row.reward - mean([other.reward for other in group_of(rows, row)]) for row in rows]


def batch_centred(rows: list[Row]) -> list[float]:
    return [row.reward - mean([other.reward for other in rows]) for row in rows]


def others_centred(rows: list[Row]) -> list[float]:
    advantages = []
    for row in rows:
        others = [other.reward for other in group_of(rows, row) if other is not row]
        advantages.append(row.reward - mean(others) if others else 0.0)
    return advantages


def clipped(low: float, high: float) -> Term:
    """PPO's term and its derivative by the current log-prob, by cases."""

    def term(token: Token, advantage: float) -> tuple[float, float]:
        ratio = math.exp(token.policy - token.old)
        if advantage > 0 and ratio > 1 + high:
            return -(1 + high) * advantage, 0.0
        if advantage < 0 and ratio < 1 - low:
            return -(1 - low) * advantage, 0.0
        return -ratio * advantage, -ratio * advantage

    return term


def capped_weight(cap: float, anchor: str = "old") -> Term:
    def term(token: Token, advantage: float) -> tuple[float, float]:
        weight = min(math.exp(token.policy - getattr(token, anchor)), cap)
        return -weight * advantage * token.policy, -weight * advantage

    return term


def score(token: Token, advantage: float) -> tuple[float, float]:
    return -advantage * token.policy, -advantage


def k3(token: Token) -> tuple[float, float]:
    gap = token.ref - token.policy
    return math.exp(gap) - gap - 1, 1 - math.exp(gap)


def k2(token: Token) -> tuple[float, float]:
    gap = token.ref - token.policy
    return gap * gap / 2, -gap


def total(
    rows: list[Row],
    advantages: list[float] | list[list[float]],
    term: Term,
    weight: Callable[[list[Row], Row], float],
    kl_coef: float = 0.0,
    estimator: Callable[[Token], tuple[float, float]] = k3,
) -> Result:
    value, gradients = 0.0, []
    for row, advantage in zip(rows, advantages, strict=True):
        each = advantage if isinstance(advantage, list) else [advantage] * len(row.tokens)
        gradient = []
        for token, a in zip(row.tokens, each, strict=True):
            x, dx = term(token, a)
            kl, dkl = estimator(token)
            value += weight(rows, row) * (x + kl_coef * kl)
            gradient.append(weight(rows, row) * (dx + kl_coef * dkl))
        gradients.append(gradient)
    return value, gradients


def nonempty(rows: list[Row]) -> int:
    return sum(bool(row.tokens) for row in rows)


def per_row(rows: list[Row], row: Row) -> float:
    return 1 / nonempty(rows)


def per_row_and_length(rows: list[Row], row: Row) -> float:
    return 1 / (nonempty(rows) * len(row.tokens))


def per_token(rows: list[Row], row: Row) -> float:
    return 1 / sum(len(other.tokens) for other in rows)


def per_prompt(rows: list[Row], row: Row) -> float:
    prompts = {other.group for other in rows if other.tokens}
    return 1 / (len(prompts) * sum(len(other.tokens) for other in group_of(rows, row)))


def per_constant(length: int) -> Callable[[list[Row], Row], float]:
    return lambda rows, row: 1 / (len(rows) * length)


WEIGHTS = {
    "sequence_mean": per_row_and_length,
    "sequence_sum": per_row,
    "token_mean": per_token,
    "prompt_mean": per_prompt,
    "constant": per_constant(7),
}
