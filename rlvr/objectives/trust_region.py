"""Policy terms to minimise, each with its own way of keeping the policy near the behaviour policy.

Shape legend: T tokens of all rows; A[t] the advantage (constant), rho[t] = exp(log_ratio[t]).
Each function returns the terms [T] and a bool [T]: where the trust region changed the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rlvr.objectives import kl
from rlvr.objectives.divergence import DIVERGENCES
from rlvr.objectives.segments import Segments
from rlvr.objectives.spec import TOP_K, TrustSpec


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a policy term is made of, one value a token; 0 where the loss mask is False."""

    policy_logprobs: Tensor
    """[T], with gradient."""
    anchor_logprobs: Tensor
    """[T]: the behaviour policy's."""
    log_ratio: Tensor | None
    """[T], with gradient; None when `ratio.level` is none."""
    advantages: Tensor
    """[T]."""
    rows: Segments
    coef: float = 1.0
    """Weight of a penalty, as its controller left it."""
    picked: Tensor | None = None
    """[T] bool: tokens that `covariance.py` picked."""
    topk_logprobs: tuple[Tensor, Tensor] | None = None
    """([T, K], [T, K]) of the current and the behaviour policy, at the latter's likeliest tokens."""

    @cached_property
    def ratio(self) -> Tensor:
        """[T]: rho, with gradient."""
        assert self.log_ratio is not None, "the spec's check lets no trust region pass without a ratio"
        return self.log_ratio.exp()

    @cached_property
    def nothing(self) -> Tensor:
        """[T] bool: False."""
        return torch.zeros_like(self.advantages, dtype=torch.bool)


Terms = tuple[Tensor, Tensor]


def none(step: Step, spec: TrustSpec) -> Terms:
    """-A rho, or REINFORCE's -A logp without a ratio."""
    score = step.policy_logprobs if step.log_ratio is None else step.ratio
    return -step.advantages * score, step.nothing


def clip(step: Step, spec: TrustSpec) -> Terms:
    """-min(rho A, clip(rho, 1-low, 1+high) A) (PPO, arXiv 1707.06347, eq. 7): a mask on the gradient.

    The gradient is -A rho, and 0 where A > 0 and rho > 1+high or A < 0 and rho < 1-low.
    Dual clip (arXiv 1912.09729): for A < 0 at most -dual A, so also 0 where rho > dual.
    """
    ratio, advantages = step.ratio, step.advantages
    bounded = ratio.detach().clamp(1 - spec.low, 1 + spec.high)
    outside = torch.where(advantages > 0, ratio > bounded, ratio < bounded) & (advantages != 0)
    if spec.dual is not None:
        beyond = (advantages < 0) & (ratio > spec.dual)
        bounded, outside = torch.where(beyond, spec.dual, bounded), outside | beyond
    return -advantages * torch.where(outside, bounded, ratio), outside


def weight_clip(step: Step, spec: TrustSpec) -> Terms:
    """-sg(clip(rho, 1-low, 1+high)) A logp (CISPO, arXiv 2506.13585): a cap on the weight, no token is lost."""
    ratio = step.ratio.detach()
    weight = ratio.clamp(1 - spec.low, 1 + spec.high)
    return -weight * step.advantages * step.policy_logprobs, (weight != ratio) & (step.advantages != 0)


def divergence_mask(step: Step, spec: TrustSpec) -> Terms:
    """-sg(min(rho, cap)) A M logp (DPPO, arXiv 2602.04879), M = 0 where the step goes on and is far enough already.

    With p the current and q the behaviour policy's probability of the token: where A > 0, p > q and the divergence
    is above `high`, or A < 0, p < q and it is above `low`. Taken anew at every step from the current p.
    """
    policy, anchor = step.policy_logprobs.detach(), step.anchor_logprobs
    goes_on = step.advantages * (policy - anchor) > 0
    if spec.divergence in TOP_K:
        assert step.topk_logprobs is not None, "the objective asks for them"
        policy, anchor = step.topk_logprobs
    far = DIVERGENCES[spec.divergence](policy, anchor) > by_sign(step.advantages, spec.high, spec.low)
    ratio = step.ratio.detach()
    weight = torch.where(goes_on & far, 0.0, ratio.clamp(max=spec.cap))
    return -weight * step.advantages * step.policy_logprobs, (weight != ratio) & (step.advantages != 0)


def soft_gate(step: Step, spec: TrustSpec) -> Terms:
    """-(4/tau) sigmoid(tau (rho - 1)) A (SAPO, arXiv 2511.20347): the gradient fades as 4 s (1-s), s the sigmoid."""
    tau = by_sign(step.advantages, spec.tau_positive, spec.tau_negative)
    return -(4 / tau) * torch.sigmoid(tau * (step.ratio - 1)) * step.advantages, step.nothing


def geo_mean(step: Step, spec: TrustSpec) -> Terms:
    """-A exp(mean_t b_t), b the log-ratio held to at most high where A > 0, at least -low where A < 0 (GMPO).

    One term a row (arXiv 2507.20673), put at each of its tokens: `sequence_mean` counts it once.
    """
    assert step.log_ratio is not None, "the spec's check lets no trust region pass without a ratio"
    upper, lower = step.log_ratio.clamp(max=spec.high), step.log_ratio.clamp(min=-spec.low)
    bounded = torch.where(step.advantages > 0, upper, lower)
    mean_ratio = step.rows.spread(step.rows.row_mean(bounded).exp())
    return -step.advantages * mean_ratio, (bounded != step.log_ratio) & (step.advantages != 0)


def kl_penalty(step: Step, spec: TrustSpec) -> Terms:
    """-A rho + coef KL(old||policy) (PPO, arXiv 1707.06347, eq. 8), KL as k3 on the old policy's samples."""
    return -step.advantages * step.ratio + step.coef * kl.k3(step.policy_logprobs - step.anchor_logprobs), step.nothing


def clip_cov(step: Step, spec: TrustSpec) -> Terms:
    """PPO's clip, and no gradient from the picked tokens (Clip-Cov, arXiv 2505.22617)."""
    assert step.picked is not None, "weights() picks"
    terms, outside = clip(step, spec)
    return torch.where(step.picked, 0.0, terms), outside | (step.picked & (step.advantages != 0))


def kl_cov(step: Step, spec: TrustSpec) -> Terms:
    """-A rho, plus coef |logp - old| at the picked tokens (KL-Cov, arXiv 2505.22617)."""
    assert step.picked is not None, "weights() picks"
    distance = (step.policy_logprobs - step.anchor_logprobs).abs()
    return -step.advantages * step.ratio + torch.where(step.picked, step.coef * distance, 0.0), step.picked


def by_sign(advantages: Tensor, positive: float, other: float) -> Tensor:
    """[T]: `positive` where A > 0, `other` elsewhere; in the advantages' own precision."""
    return torch.full_like(advantages, other).masked_fill(advantages > 0, positive)


KINDS: dict[str, Callable[[Step, TrustSpec], Terms]] = {
    "none": none,
    "clip": clip,
    "weight_clip": weight_clip,
    "divergence_mask": divergence_mask,
    "soft_gate": soft_gate,
    "geo_mean": geo_mean,
    "kl_penalty": kl_penalty,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}
