"""Each preset of `recipes/objective` written out from its paper, on the loops of `golden.py`."""

from __future__ import annotations

import math
from collections.abc import Callable

from .golden import (
    Result,
    Row,
    RowTerm,
    Term,
    Token,
    batch_centred,
    capped_weight,
    clipped,
    group_centred,
    group_normalised,
    group_of,
    k2,
    mean,
    others_centred,
    per_constant,
    per_prompt,
    per_row,
    per_row_and_length,
    per_token,
    score,
    std,
    total,
)


def reinforce(rows: list[Row]) -> Result:
    return total(rows, batch_centred(rows), score, per_row)


def rloo(rows: list[Row]) -> Result:
    penalised = [
        Row(row.reward - 0.05 * math.fsum(t.old - t.ref for t in row.tokens), row.group, row.tokens) for row in rows
    ]
    return total(penalised, others_centred(penalised), score, per_row)


def grpo(rows: list[Row]) -> Result:
    return total(rows, group_normalised(rows), clipped(0.2, 0.2), per_row_and_length, kl_coef=0.04)


def dr_grpo(rows: list[Row]) -> Result:
    return total(rows, group_centred(rows), clipped(0.2, 0.2), per_constant(7))


def dapo(rows: list[Row]) -> Result:
    return total(rows, group_normalised(rows), clipped(0.2, 0.28), per_token)


def cispo(rows: list[Row]) -> Result:
    return total(rows, group_normalised(rows), capped_weight(5.0), per_token)


# ---- one term a row


def row_total(rows: list[Row], advantages: list[float], term: RowTerm) -> Result:
    """Mean over the rows with tokens."""
    num_rows = sum(bool(row.tokens) for row in rows)
    value, gradients = 0.0, []
    for row, advantage in zip(rows, advantages, strict=True):
        x, slopes = term(row, advantage) if row.tokens else (0.0, [])
        value += x / max(num_rows, 1)
        gradients.append([slope / num_rows for slope in slopes])
    return value, gradients


def gspo(rows: list[Row]) -> Result:
    def term(row: Row, advantage: float) -> tuple[float, list[float]]:
        s = math.exp(mean([t.policy - t.old for t in row.tokens]))
        if (advantage > 0 and s > 1.0004) or (advantage < 0 and s < 0.9997):
            return -(1.0004 if advantage > 0 else 0.9997) * advantage, [0.0] * len(row.tokens)
        return -s * advantage, [-s * advantage / len(row.tokens)] * len(row.tokens)

    return row_total(rows, group_normalised(rows), term)


def gmpo(rows: list[Row]) -> Result:
    def term(row: Row, advantage: float) -> tuple[float, list[float]]:
        sign = 1 if advantage > 0 else -1
        logs, free = [], []
        for token in row.tokens:
            d = token.policy - token.old
            held = min(sign * d, sign * max(-0.4, min(d, 0.4)))
            logs.append(sign * held)
            free.append(held == sign * d)
        ratio = math.exp(mean(logs))
        return -advantage * ratio, [-advantage * ratio / len(logs) * f for f in free]

    return row_total(rows, group_normalised(rows), term)


# ---- other terms


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gated(token: Token, advantage: float) -> tuple[float, float]:
    tau = 1.0 if advantage > 0 else 1.05
    ratio = math.exp(token.policy - token.old)
    s = sigmoid(tau * (ratio - 1))
    return -4 / tau * s * advantage, -4 * s * (1 - s) * ratio * advantage


def sapo(rows: list[Row]) -> Result:
    return total(rows, group_normalised(rows), gated, per_row_and_length)


def divergence_masked(divergence: Callable[[Token], float], threshold: float) -> Term:
    def term(token: Token, advantage: float) -> tuple[float, float]:
        p, q = math.exp(token.policy), math.exp(token.rollout)
        goes_on = (advantage > 0 and p > q) or (advantage < 0 and p < q)
        if goes_on and divergence(token) > threshold:
            return 0.0, 0.0
        weight = min(math.exp(token.policy - token.rollout), 20.0)
        return -weight * advantage * token.policy, -weight * advantage

    return term


def two_way_tv(token: Token) -> float:
    return abs(math.exp(token.policy) - math.exp(token.rollout))


def two_way_kl(token: Token) -> float:
    p, q = math.exp(token.policy), math.exp(token.rollout)
    return q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))


def buckets(token: Token) -> list[tuple[float, float]]:
    rest = (1 - math.fsum(p for p, _ in token.topk), 1 - math.fsum(q for _, q in token.topk))
    return [*token.topk, rest]


def bucket_tv(token: Token) -> float:
    return math.fsum(abs(p - q) for p, q in buckets(token)) / 2


def bucket_kl(token: Token) -> float:
    return math.fsum(q * math.log(q / p) for p, q in buckets(token))


def dppo(divergence: Callable[[Token], float], threshold: float) -> Callable[[list[Row]], Result]:
    return lambda rows: total(
        rows, group_normalised(rows), divergence_masked(divergence, threshold), per_row_and_length
    )


def clip_cov(rows: list[Row]) -> Result:
    inside = clipped(1.0, 1.0)
    return total(rows, group_normalised(rows), lambda t, a: (0.0, 0.0) if t.picked else inside(t, a), per_token)


def kl_cov(rows: list[Row]) -> Result:
    def term(token: Token, advantage: float) -> tuple[float, float]:
        d = token.policy - token.old
        x, dx = -math.exp(d) * advantage, -math.exp(d) * advantage
        return (x + abs(d), dx + math.copysign(1, d)) if token.picked else (x, dx)

    return total(rows, group_normalised(rows), term, per_token)


# ---- other advantages


def maxrl(rows: list[Row]) -> Result:
    """By the successes' share: (r - rate)/rate."""
    rates = [mean([other.reward for other in group_of(rows, row)]) for row in rows]
    advantages = [(row.reward - rate) / rate if rate > 0 else 0.0 for row, rate in zip(rows, rates, strict=True)]
    return total(rows, advantages, score, per_row)


def maxrl_raw(rows: list[Row]) -> Result:
    """Written as a sum over the group: each row r / sum of the group's r, times the rows of the group over all rows."""
    advantages = []
    for row in rows:
        group = group_of(rows, row)
        successes = math.fsum(other.reward for other in group)
        advantages.append(len(group) * row.reward / successes if successes else 0.0)
    return total(rows, advantages, score, per_row)


def scalerl(rows: list[Row]) -> Result:
    def mixed(row: Row) -> bool:
        return len({other.correct for other in group_of(rows, row)}) == 2

    centred = group_centred(rows)
    kept = [c for row, c in zip(rows, centred, strict=True) if mixed(row)]
    scale = std(kept) + 1e-8 if kept else 1.0
    advantages = [c / scale for c in centred]
    left = [row if mixed(row) else Row(row.reward, row.group, []) for row in rows]
    value, slopes = total(left, advantages, capped_weight(5.0, "rollout"), per_prompt)
    return value, [s if mixed(row) else [0.0] * len(row.tokens) for row, s in zip(rows, slopes, strict=True)]


def whitened(advantages: list[list[float]]) -> list[list[float]]:
    every = [a for row in advantages for a in row]
    if not every:
        return advantages
    root = math.sqrt(std(every) ** 2 + 1e-8)
    return [[(a - mean(every)) / root for a in row] for row in advantages]


def reinforce_pp(rows: list[Row]) -> Result:
    advantages = []
    for row in rows:
        rewards = [-0.01 * (t.old - t.ref) for t in row.tokens]
        if rewards:
            rewards[-1] += row.reward
        advantages.append([math.fsum(rewards[t:]) for t in range(len(rewards))])
    return total(rows, whitened(advantages), clipped(0.2, 0.2), per_token)


def reinforce_pp_baseline(rows: list[Row]) -> Result:
    spread = [[c] * len(row.tokens) for row, c in zip(rows, group_centred(rows), strict=True)]
    return total(rows, whitened(spread), clipped(0.2, 0.2), per_token, kl_coef=0.001, estimator=k2)


def grpo_process(rows: list[Row]) -> Result:
    advantages = []
    for row in rows:
        steps = [t.step for other in group_of(rows, row) for t in other.tokens if t.step is not None]
        flat = len(set(steps)) <= 1
        own = [0.0 if t.step is None or flat else (t.step - mean(steps)) / (std(steps) + 1e-8) for t in row.tokens]
        advantages.append([math.fsum(own[t:]) for t in range(len(own))])
    return total(rows, advantages, clipped(0.2, 0.2), per_row_and_length, kl_coef=0.04)


# ---- critics


def gae(row: Row, lam: float, kl_coef: float = 0.0) -> list[float]:
    """gamma = 1; the double sum of the definition."""
    rewards = [-kl_coef * (t.old - t.ref) for t in row.tokens]
    values = [t.value for t in row.tokens] + [0.0]
    if rewards:
        rewards[-1] += row.reward
    deltas = [r + values[t + 1] - values[t] for t, r in enumerate(rewards)]
    return [math.fsum(lam**i * delta for i, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


def a2c(rows: list[Row]) -> Result:
    return total(rows, [[row.reward - t.value for t in row.tokens] for row in rows], score, per_token)


def ppo(rows: list[Row]) -> Result:
    return total(rows, whitened([gae(row, 0.95, 0.05) for row in rows]), clipped(0.2, 0.2), per_token)


def ppo_penalty(rows: list[Row]) -> Result:
    def term(token: Token, advantage: float) -> tuple[float, float]:
        ratio = math.exp(token.policy - token.old)
        return -ratio * advantage + ratio - 1 - math.log(ratio), -ratio * advantage + ratio - 1

    return total(rows, whitened([gae(row, 0.95) for row in rows]), term, per_token)


def vapo(rows: list[Row]) -> Result:
    advantages = [gae(row, max(0.0, 1 - 1 / (0.05 * len(row.tokens)))) if row.tokens else [] for row in rows]
    value, slopes = total(rows, advantages, clipped(0.2, 0.28), per_token)
    right = [token for row in rows if row.correct for token in row.tokens]
    if not right:
        return value, slopes
    value -= 0.1 * mean([token.policy for token in right])
    return value, [[s - 0.1 / len(right) * row.correct for s in own] for row, own in zip(rows, slopes, strict=True)]


PRESETS: dict[str, Callable[[list[Row]], Result]] = {
    "a2c": a2c,
    "cispo": cispo,
    "clip_cov": clip_cov,
    "dapo": dapo,
    "dppo_kl": dppo(two_way_kl, 0.05),
    "dppo_topk_kl": dppo(bucket_kl, 0.05),
    "dppo_topk_tv": dppo(bucket_tv, 0.15),
    "dppo_tv": dppo(two_way_tv, 0.15),
    "dr_grpo": dr_grpo,
    "gmpo": gmpo,
    "grpo": grpo,
    "grpo_process": grpo_process,
    "gspo": gspo,
    "kl_cov": kl_cov,
    "maxrl": maxrl,
    "maxrl_raw": maxrl_raw,
    "ppo": ppo,
    "ppo_penalty": ppo_penalty,
    "reinforce": reinforce,
    "reinforce_ema": reinforce,  # at the first step the average is the batch's own mean
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "rloo": rloo,
    "sapo": sapo,
    "scalerl": scalerl,
    "vapo": vapo,
}
