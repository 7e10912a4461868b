"""Divergences of the current policy p from the behaviour policy q at one state (DPPO, arXiv 2602.04879).

Shape legend: T tokens, K likeliest tokens of q. Arguments are log-probs of p, then of q: of the sampled token [T] for
the binary forms, of q's likeliest tokens [T, K] for the top-k forms, which put all other tokens in one bucket.
None has a gradient. By data processing binary <= top-k <= full, where the sampled token is among the K.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BINARY_FLOOR = 1e-8
REST_FLOOR = 1e-12


def binary_tv(policy: Tensor, behaviour: Tensor) -> Tensor:
    """|p - q|."""
    return (policy.exp() - behaviour.exp()).abs()


def binary_kl(policy: Tensor, behaviour: Tensor) -> Tensor:
    """q log(q/p) + (1-q) log((1-q)/(1-p)), 1e-8 added inside the second logarithm."""
    p, q = policy.exp(), behaviour.exp()
    rest_p, rest_q = (1 - p).clamp(min=0), (1 - q).clamp(min=0)
    return q * (behaviour - policy) + rest_q * ((rest_q + BINARY_FLOOR) / (rest_p + BINARY_FLOOR)).log()


def topk_tv(policy: Tensor, behaviour: Tensor) -> Tensor:
    """Half the sum of |p_k - q_k| over the K + 1 buckets."""
    p, q = policy.exp(), behaviour.exp()
    return ((p - q).abs().sum(-1) + (rest(p) - rest(q)).abs()) / 2


def topk_kl(policy: Tensor, behaviour: Tensor) -> Tensor:
    """Sum of q_k log(q_k/p_k) over the K + 1 buckets."""
    p, q = policy.exp(), behaviour.exp()
    # A sampler that reports fewer than K leaves -inf: no probability, no term.
    listed = torch.where(q > 0, q * (behaviour - policy), 0.0).sum(-1)
    return listed + rest(q) * (rest(q) / rest(p)).log()


def rest(probabilities: Tensor) -> Tensor:
    """[T, K] -> [T]: what the K leave over, 1e-12 at least."""
    return (1 - probabilities.sum(-1)).clamp(min=REST_FLOOR)


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tv": binary_tv,
    "kl": binary_kl,
    "topk_tv": topk_tv,
    "topk_kl": topk_kl,
}
