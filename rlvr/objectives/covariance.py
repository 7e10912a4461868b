"""Tokens picked by the covariance of advantage and log-prob (Cui et al. 2025, arXiv 2505.22617).

Shape legend: T tokens of one optimizer minibatch. The log-probs are the behaviour policy's: they are known before any
forward, so that the choice is made once a minibatch and does not depend on how it is cut into microbatches. At the
first step on a batch they are the current ones, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlvr.objectives.spec import TrustSpec


def covariances(advantages: Tensor, logprobs: Tensor) -> Tensor:
    """[K] -> [K]: (A - mean A)(logp - mean logp) over the active tokens given."""
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


def random_in_band(values: Tensor, spec: TrustSpec, generator: torch.Generator) -> Tensor:
    """Indices of `cov_share` of the tokens, at random among those with cov_low < covariance < cov_high (Clip-Cov)."""
    (inside,) = torch.nonzero((values > spec.cov_low) & (values < spec.cov_high), as_tuple=True)
    order = torch.randperm(inside.numel(), generator=generator)
    return inside[order[: num_picked(values, spec)].to(inside.device)]


def largest(values: Tensor, spec: TrustSpec, generator: torch.Generator) -> Tensor:
    """Indices of `cov_share` of the tokens, those of the largest covariance (KL-Cov)."""
    return values.topk(num_picked(values, spec)).indices


def num_picked(values: Tensor, spec: TrustSpec) -> int:
    return min(max(1, int(spec.cov_share * values.numel())), values.numel())


PICKS: dict[str, Callable[[Tensor, TrustSpec, torch.Generator], Tensor]] = {
    "clip_cov": random_in_band,
    "kl_cov": largest,
}


def pick(advantages: Tensor, logprobs: Tensor, mask: Tensor, spec: TrustSpec, generator: torch.Generator) -> Tensor:
    """[T] bool: the active tokens that `spec.kind` drops or penalises."""
    picked = torch.zeros_like(mask)
    (active,) = torch.nonzero(mask, as_tuple=True)
    if active.numel():
        values = covariances(advantages[active], logprobs[active])
        picked[active[PICKS[spec.kind](values, spec, generator)]] = True
    return picked
